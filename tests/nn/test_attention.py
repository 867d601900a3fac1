"""Parents that read ``layer.weight``: attention and transformer layers, slow and fast path."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import SelfAttention, encoder_layer
from gossamer.nn import BayesianLayer, sparse_layers, stochastic
from gossamer.ops import normal_like

pytestmark = pytest.mark.filterwarnings("ignore:only .* weights of linear maps:UserWarning")

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


def drawn(layer: BayesianLayer, seed: Tensor) -> Tensor:
    """θ = μ + σε, dense."""
    weight = torch.zeros(layer.layout.numel, dtype=torch.float64)
    noise = normal_like(seed, layer.weight_mean)
    values = layer.weight_mean + layer.weight_std * noise
    weight[layer.support.positions()] = values.detach()
    return weight.view(layer.layout.shape)


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
    """Out-projection: one θ, because attention reads the weight. Linear layers: local noise."""

    def build():
        return nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
        )

    bnn, x = make(build)
    seeds = record_seeds(monkeypatch)
    y = bnn.train()(x)
    assert len(seeds) == 3
    plain = gs.to_deterministic(bnn).train()
    plain.self_attn.out_proj.weight = nn.Parameter(drawn(bnn.self_attn.out_proj, seeds[0]))
    plain.linear1 = Noisy(bnn.linear1, seeds[1])
    plain.linear2 = Noisy(bnn.linear2, seeds[2])
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


def test_encoder_stack_with_padding():
    """nn.TransformerEncoder turns padded batches into nested tensors on its fast path."""
    torch.manual_seed(0)
    net = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False).double()
    bnn = gs.to_bayesian(net, 0.3, posterior_std=0.2).eval()
    plain = gs.to_deterministic(bnn).eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        ours, theirs = (m(x, src_key_padding_mask=padding) for m in (bnn, plain))
    torch.testing.assert_close(ours[~padding], theirs[~padding], **CLOSE)
    assert len(sparse_layers(bnn)) == 6


@pytest.mark.parametrize("mode", ["train", "eval", "sampling"])
@pytest.mark.parametrize("grad", [False, True])
def test_attention(monkeypatch, mode, grad):
    bnn, x = make(SelfAttention)
    layer = bnn.attention.out_proj
    plain = gs.to_deterministic(bnn)
    seeds = record_seeds(monkeypatch)
    with torch.set_grad_enabled(grad):
        if mode == "train":
            y = bnn.train()(x)
            weight = drawn(layer, seeds[-1])
        elif mode == "eval":
            y = bnn.eval()(x)
            weight = layer.weight.detach()
        else:
            with gs.sampling(bnn.eval(), seed=2):
                y, weight = bnn(x), layer.weight.detach()
        plain.attention.out_proj.weight = nn.Parameter(weight)
        torch.testing.assert_close(y, plain.train(mode == "train")(x), **CLOSE)
    if grad:
        y.square().sum().backward()
        assert (layer.weight_mean.grad != 0).all()
        assert (layer.weight_raw_std.grad is None) == (mode == "eval")


def test_attention_cross_and_weights():
    """Separate projections, returned attention weights."""
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True).double()
    bnn = gs.to_bayesian(net, 0.3).eval()
    plain = gs.to_deterministic(bnn).eval()
    q, k, v = (torch.randn(2, 3, d, dtype=torch.float64) for d in (8, 6, 4))
    for ours, theirs in zip(bnn(q, k, v), plain(q, k, v), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_deepcopied_layers_of_a_stack_draw_independently():
    """nn.TransformerEncoder copies one layer: the copies are not shared weights."""
    bnn = gs.to_bayesian(nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False))
    assert not any(layer.draws_weights for layer in sparse_layers(bnn).values())
    assert not torch.equal(bnn.layers[0].linear1.weight, bnn.layers[1].linear1.weight)
    assert len({id(p) for p in copy.deepcopy(bnn).parameters()}) == len(list(bnn.parameters()))
