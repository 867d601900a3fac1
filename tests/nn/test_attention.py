"""Parents that read ``layer.weight``: attention and transformer layers, slow and fast path."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import SelfAttention, encoder_layer
from gossamer.errors import InvalidValue
from gossamer.nn import BayesianLayer, sparse_layers, stochastic
from gossamer.ops import normal_like

CLOSE = {"rtol": 1e-10, "atol": 1e-10}  # float64, other order of sums


class Noisy(nn.Module):
    """A plain layer with local noise from given normals: y = μx + b + sqrt(σ²x²) ε."""

    def __init__(self, layer: BayesianLayer, seed: Tensor) -> None:
        super().__init__()
        mean, variance = torch.zeros(2, layer.layout.numel, dtype=torch.float64)
        mean[layer.support.positions()] = layer.weight_mean.detach()
        variance[layer.support.positions()] = layer.weight_std.detach() ** 2
        self.mean, self.variance = (t.view(layer.layout.shape) for t in (mean, variance))
        self.bias, self.seed = layer.bias, seed

    def forward(self, x: Tensor) -> Tensor:
        spread = (x**2) @ self.variance.T
        return x @ self.mean.T + self.bias + spread.sqrt() * normal_like(self.seed, spread)


class ByHand(nn.Module):
    """Attention over one batch-first input with noisy projections, head by head."""

    batch_first = True

    def __init__(self, into: nn.Module, out: nn.Module, heads: int) -> None:
        super().__init__()
        self.into, self.out, self.heads = into, out, heads

    def forward(self, x: Tensor, *others: Tensor, **options: object) -> tuple[Tensor, None]:
        q, k, v = (t.chunk(self.heads, -1) for t in self.into(x).chunk(3, -1))
        outputs = []
        for one, two, three in zip(q, k, v, strict=True):
            scores = one @ two.transpose(1, 2) / one.shape[-1] ** 0.5
            outputs.append(scores.exp() / scores.exp().sum(-1, keepdim=True) @ three)
        return self.out(torch.cat(outputs, -1)), None


def make(build, **options) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    bnn = gs.to_bayesian(build().double(), 0.3, posterior_std=0.2, **options)
    return bnn, torch.randn(2, 5, 8, dtype=torch.float64)


def record_seeds(monkeypatch) -> list[Tensor]:
    seeds: list[Tensor] = []

    def recording() -> Tensor:
        seeds.append(torch.randint(2**62, (), dtype=torch.int64))
        return seeds[-1]

    monkeypatch.setattr(stochastic, "draw_seed", recording)
    return seeds


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_in_training(monkeypatch, norm_first):
    """All layers are called, so that all have local noise."""

    def build():
        return nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
        )

    bnn, x = make(build)
    seeds = record_seeds(monkeypatch)
    y = bnn.train()(x)
    assert len(seeds) == 4
    plain = gs.to_deterministic(bnn).train()
    into, out = bnn.self_attn.in_proj, bnn.self_attn.out_proj
    plain.self_attn = ByHand(Noisy(into, seeds[0]), Noisy(out, seeds[1]), 2)
    plain.linear1 = Noisy(bnn.linear1, seeds[2])
    plain.linear2 = Noisy(bnn.linear2, seeds[3])
    torch.testing.assert_close(y, plain(x), **CLOSE)
    y.square().sum().backward()
    for layer in sparse_layers(bnn).values():
        for parameter in layer.parameters():
            assert torch.isfinite(parameter.grad).all()
            assert (parameter.grad != 0).any()


@pytest.mark.parametrize("grad", [False, True], ids=["fast-path", "slow-path"])
def test_encoder_layer_in_eval(grad):
    """Without gradients torch takes its fused path, which never calls our layers."""
    bnn, x = make(encoder_layer)
    plain = gs.to_deterministic(bnn).eval()
    calls: list[str] = []
    with torch.set_grad_enabled(grad):
        mean = bnn.eval()(x)
        torch.testing.assert_close(mean, plain(x), **CLOSE)
        with gs.sampling(bnn, seed=4):
            sample = bnn(x)
            plain.self_attn.in_proj_weight.data = bnn.self_attn.in_proj_weight.detach()
            for name in ("self_attn.out_proj", "linear1", "linear2"):
                layer = bnn.get_submodule(name)
                plain.get_submodule(name).weight = nn.Parameter(layer.weight.detach())
                calls.append(name)
        torch.testing.assert_close(sample, plain(x), **CLOSE)
    assert not torch.equal(sample, mean)
    assert len(calls) == 3


def test_the_fast_path_is_really_taken(monkeypatch):
    """Otherwise the test above proves nothing."""
    bnn, x = make(encoder_layer)
    taken = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: taken.append(1) or fused(*a)
    )
    with torch.no_grad():
        bnn.eval()(x)
    assert taken == [1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_encoder_stack_with_padding(nested, inference):
    """nn.TransformerEncoder turns padded batches into nested tensors on its fast path."""
    torch.manual_seed(0)
    net = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=nested).double()
    bnn = gs.to_bayesian(net, 0.3, posterior_std=0.2).eval()
    plain = gs.to_deterministic(bnn).eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.inference_mode() if inference else torch.no_grad():
        ours, theirs = (m(x, src_key_padding_mask=padding) for m in (bnn, plain))
    torch.testing.assert_close(ours[~padding], theirs[~padding], **CLOSE)
    assert len(sparse_layers(bnn)) == 8


@pytest.mark.parametrize("mode", ["eval", "sampling"])
@pytest.mark.parametrize("grad", [False, True])
def test_attention(mode, grad):
    bnn, x = make(SelfAttention)
    attention = bnn.attention
    plain = gs.to_deterministic(bnn).eval()
    with torch.set_grad_enabled(grad):
        if mode == "eval":
            y = bnn.eval()(x)
        else:
            with gs.sampling(bnn.eval(), seed=2):
                y = bnn(x)
                plain.attention.in_proj_weight.data = attention.in_proj_weight.detach()
                plain.attention.out_proj.weight.data = attention.out_proj.weight.detach()
        torch.testing.assert_close(y, plain(x), **CLOSE)
    if grad:
        y.square().sum().backward()
        for layer in sparse_layers(bnn).values():
            assert (layer.weight_mean.grad != 0).any()
            assert (layer.weight_raw_std.grad is None) == (mode == "eval")


KINDS = {
    "plain": {},
    "batch-first": {"batch_first": True},
    "no-bias": {"bias": False},
    "separate": {"kdim": 6, "vdim": 4},
    "separate-no-bias": {"kdim": 6, "bias": False, "batch_first": True},
    "bias-kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True, "batch_first": True},
}


def masks(rows: int, length: int, source: int) -> dict[str, dict[str, object]]:
    later = torch.ones(length, source, dtype=torch.bool).triu(1)
    added = torch.randn(length, source, dtype=torch.float64)
    padding = torch.zeros(rows, source, dtype=torch.bool)
    padding[0, -2:] = True
    each = torch.randn(rows * 2, length, source, dtype=torch.float64)
    return {
        "none": {},
        "without-weights": {"need_weights": False},
        "per-head": {"average_attn_weights": False},
        "bool": {"attn_mask": later, "need_weights": False},
        "float": {"attn_mask": added},
        "each-head": {"attn_mask": each, "need_weights": False},
        "padding": {"key_padding_mask": padding, "need_weights": False},
        "padding-weights": {"key_padding_mask": padding},
        "both": {"attn_mask": later, "key_padding_mask": padding, "need_weights": False},
        "causal": {"attn_mask": later, "is_causal": True, "need_weights": False},
        "causal-weights": {"attn_mask": later, "is_causal": True},
        "causal-padding": {
            "attn_mask": later,
            "key_padding_mask": padding,
            "is_causal": True,
            "need_weights": False,
        },
    }


@pytest.mark.parametrize("source", ["one", "two", "three", "unbatched"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_and_option_is_torch_s(kind, source):
    """The outputs of every call of torch's module, its errors too."""
    torch.manual_seed(0)
    options = KINDS[kind]
    net = nn.MultiheadAttention(8, 2, **options).double().eval()
    bnn = gs.to_bayesian(net).eval()
    assert not gs.summary(bnn).unconverted
    kdim, vdim = options.get("kdim", 8), options.get("vdim", 8)
    k = torch.randn(3, 5, kdim, dtype=torch.float64)
    v = k if source != "three" and vdim == kdim else torch.randn(3, 5, vdim, dtype=torch.float64)
    q = k if source == "one" and kdim == 8 else torch.randn(3, 5, 8, dtype=torch.float64)
    rows, length = (3, 5) if net.batch_first else (5, 3)
    if source == "unbatched":
        q, k, v, rows, length = q[0], k[0], v[0], 1, 5
    for name, call in masks(rows, length, length).items():
        if source == "unbatched" and "key_padding_mask" in call:
            call["key_padding_mask"] = call["key_padding_mask"][0]
        ours, theirs = bnn(q, k, v, **call), net(q, k, v, **call)
        torch.testing.assert_close(ours[0], theirs[0], **CLOSE, msg=name)
        assert (ours[1] is None) == (theirs[1] is None), name
        if ours[1] is not None:
            torch.testing.assert_close(ours[1], theirs[1], **CLOSE, msg=name)
    for wrong in (
        {"attn_mask": torch.zeros(1, length, dtype=torch.bool)},
        {"attn_mask": torch.zeros(length, length, dtype=torch.int64)},
        {"key_padding_mask": torch.zeros(rows + 1, length, dtype=torch.bool)},
        {"is_causal": True},
    ):
        for module in (bnn, net):
            with pytest.raises((RuntimeError, AssertionError, InvalidValue)):
                module(q, k, v, **{"need_weights": False, **wrong})


def test_dropout_of_the_scores_is_torch_s():
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    made, x = gs.to_sparse(net).train(), torch.randn(2, 3, 8)
    outputs = []
    for module in (net, made):
        torch.manual_seed(3)
        outputs.append(module(x, x, x)[0])
    torch.testing.assert_close(*outputs)
    made.eval()
    assert torch.equal(made(x, x, x)[0], made(x, x, x)[0])


def test_cross_attention_moves_through_swaps():
    """Its layer is called for queries and for keys: gradients of both uses are summed."""
    torch.manual_seed(0)
    net = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    bnn = gs.to_bayesian(net, 0.5)
    x, memory = torch.randn(4, 3, 8), torch.randn(4, 5, 8)
    opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
    subspace = gs.Subspace(bnn, opt, total_steps=20, update_every=2)
    layer = bnn.multihead_attn.in_proj
    before, nnz = layer.support.positions().clone(), layer.nnz
    for _ in range(8):
        opt.zero_grad()
        bnn(x, memory).square().mean().backward()
        opt.step()
        subspace.step()
    assert layer.nnz == nnz
    assert not torch.equal(before, layer.support.positions())
    torch.testing.assert_close(
        gs.to_deterministic(bnn).eval()(x, memory), bnn.eval()(x, memory), rtol=1e-5, atol=1e-5
    )


def test_deepcopied_layers_of_a_stack_draw_independently():
    """nn.TransformerEncoder copies one layer: the copies are not shared weights."""
    bnn = gs.to_bayesian(nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False))
    assert not any(layer.draws_weights for layer in sparse_layers(bnn).values())
    assert not torch.equal(bnn.layers[0].linear1.weight, bnn.layers[1].linear1.weight)
    assert len({id(p) for p in copy.deepcopy(bnn).parameters()}) == len(list(bnn.parameters()))
