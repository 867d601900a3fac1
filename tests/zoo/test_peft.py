"""The adapters of ``peft``, with a posterior."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.adapters import ADAPTERS, Network, batch, with_values
from reference import adapter_checks
from zoo.torchvision_schemas import declare

pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]


def adapted() -> nn.Module:
    declare()  # peft imports transformers, and that torchvision where it is installed
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["first", "second"])
    found: nn.Module = get_peft_model(Network(), config)
    return found


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_only_adapters_change(sparsity):
    adapter_checks.only_adapters_change(adapted, sparsity)


def test_outputs_are_those_of_dense_matrices():
    adapter_checks.outputs_are_those_of_dense_matrices(adapted)


def test_state_and_way_back():
    adapter_checks.state_and_way_back(adapted)


def test_the_mean_is_an_adapter_that_peft_saves_loads_and_merges(tmp_path):
    from peft import PeftModel

    torch.manual_seed(0)
    bnn = with_values(gs.to_bayesian(adapted(), 0.5, include=ADAPTERS)).eval()
    x, _ = batch()
    mean = bnn(x)
    gs.to_deterministic(bnn).save_pretrained(tmp_path)
    torch.manual_seed(0)
    again = PeftModel.from_pretrained(Network(), tmp_path).eval()
    torch.testing.assert_close(again(x), mean, rtol=1e-5, atol=1e-6)
    merged = again.merge_and_unload()
    assert type(merged) is Network
    torch.testing.assert_close(merged(x), mean, rtol=1e-4, atol=1e-4)
