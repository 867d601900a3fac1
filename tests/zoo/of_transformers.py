"""Networks of Hugging Face's transformers, with tiny configurations and random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo.torchvision_schemas import declare

declare()  # transformers imports torchvision where it is installed

import transformers as hf  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from zoo.entries import Entry, Inputs  # noqa: E402

_TEXT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 8,
}


def _ids() -> dict[str, Tensor]:
    ids = torch.randint(4, 60, (6, 7))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _pixels() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(6, 3, 16, 16)}


def _of(
    model: type[nn.Module], config: Any, inputs: Callable[[], dict[str, Tensor]], **more: Any
) -> Callable[[], tuple[nn.Module, Inputs]]:
    return lambda: (model(config(**more)), inputs())


def _seq2seq() -> dict[str, Tensor]:
    return {**_ids(), "decoder_input_ids": torch.randint(4, 60, (6, 5))}


def _whisper() -> tuple[nn.Module, Inputs]:
    config = hf.WhisperConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=10,
        vocab_size=60,
        pad_token_id=0,
        num_labels=3,
    )
    network = hf.WhisperForAudioClassification(config)
    return network, {"input_features": torch.randn(4, 8, 20)}


_T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
_GQA = {**_TEXT, "num_key_value_heads": 2}
_STAGES = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 5}

ENTRIES = tuple(
    Entry("transformers", name, build, "logits", class_dim)
    for name, build, class_dim in (
        (
            "BERT, classes",
            _of(hf.BertForSequenceClassification, hf.BertConfig, _ids, **_TEXT),
            1,
        ),
        ("BERT, masked words", _of(hf.BertForMaskedLM, hf.BertConfig, _ids, **_TEXT), -1),
        (
            "RoBERTa, tags",
            _of(hf.RobertaForTokenClassification, hf.RobertaConfig, _ids, pad_token_id=0, **_TEXT),
            -1,
        ),
        (
            "DistilBERT, classes",
            _of(
                hf.DistilBertForSequenceClassification,
                hf.DistilBertConfig,
                _ids,
                vocab_size=60,
                dim=32,
                n_layers=2,
                n_heads=4,
                hidden_dim=64,
            ),
            1,
        ),
        ("GPT-2", _of(hf.GPT2LMHeadModel, hf.GPT2Config, _ids, **_GPT2), -1),
        ("Llama", _of(hf.LlamaForCausalLM, hf.LlamaConfig, _ids, **_GQA), -1),
        ("Mistral", _of(hf.MistralForCausalLM, hf.MistralConfig, _ids, **_GQA), -1),
        ("Qwen2", _of(hf.Qwen2ForCausalLM, hf.Qwen2Config, _ids, **_GQA), -1),
        ("T5", _of(hf.T5ForConditionalGeneration, hf.T5Config, _seq2seq, **_T5), -1),
        ("ViT", _of(hf.ViTForImageClassification, hf.ViTConfig, _pixels, **_VISION), 1),
        (
            "ResNet",
            _of(
                hf.ResNetForImageClassification,
                hf.ResNetConfig,
                _pixels,
                embedding_size=8,
                layer_type="basic",
                **_STAGES,
            ),
            1,
        ),
        (
            "ConvNeXt",
            _of(
                hf.ConvNextForImageClassification,
                hf.ConvNextConfig,
                _pixels,
                patch_size=2,
                num_stages=2,
                **_STAGES,
            ),
            1,
        ),
        ("Whisper, encoder", _whisper, 1),
    )
)
