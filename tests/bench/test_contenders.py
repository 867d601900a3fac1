"""The baselines compute what they claim to: a fast wrong baseline would make us look slow."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gossamer.bench import token_networks
from gossamer.bench.csr import CSRLinear
from gossamer.bench.dense_vi import (
    PRIOR_STD,
    DenseVI,
    DenseVIConv2d,
    DenseVILinear,
    dense_kl,
    draw_weights,
    to_dense_vi,
)
from gossamer.bench.networks import QUICK_MLP, QUICK_RESNET, DenseStep, SparseStep, with_swaps
from gossamer.bench.rivals import deterministic_rivals
from gossamer.nn import sparse_layers

DRAWS = 4000


def _layers() -> list[tuple[DenseVI, torch.Tensor]]:
    torch.manual_seed(1)
    linear = to_dense_vi(nn.Linear(5, 3))
    conv = to_dense_vi(nn.Conv2d(2, 3, 3, stride=2, padding=1))
    assert isinstance(linear, DenseVILinear)
    assert isinstance(conv, DenseVIConv2d)
    for layer in (linear, conv):
        with torch.no_grad():
            layer.raw_std.uniform_(-2.0, 0.0)
    return [(linear, torch.randn(2, 5)), (conv, torch.randn(2, 2, 4, 4))]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("draws", [False, True])
def test_dense_vi_has_the_analytic_moments(place: int, draws: bool) -> None:
    layer, x = _layers()[place]
    layer.draws_weights = draws
    with torch.no_grad():
        samples = torch.stack([layer(x) for _ in range(DRAWS)]).double()
        std = torch.log1p(layer.raw_std.double().exp())
        mean, x = layer.mean.double(), x.double()
        bias = layer.bias.double() if layer.bias is not None else None
        if place == 0:
            centre, variance = x @ mean.t() + bias, x.square() @ std.square().t()
        else:
            # By unfolding: not the convolution that the layer itself uses.
            patches = F.unfold(x, 3, padding=1, stride=2)
            shape = samples.shape[1:]
            centre = (mean.flatten(1) @ patches).reshape(shape) + bias[:, None, None]
            variance = (std.flatten(1).square() @ patches.square()).reshape(shape)
    # Five standard errors of a mean, and of a Gaussian's variance.
    error = 5 * (variance / DRAWS).sqrt()
    assert ((samples.mean(0) - centre).abs() < error).all()
    error = 5 * variance * (2 / DRAWS) ** 0.5
    assert ((samples.var(0) - variance).abs() < error).all()


def test_local_noise_is_independent_per_row_and_a_drawn_weight_is_not() -> None:
    layer, x = _layers()[0]
    rows = x[:1].repeat(2, 1)
    same = layer(rows)
    assert not torch.equal(same[0], same[1])
    same = draw_weights(layer)(rows)
    assert torch.equal(same[0], same[1])


def test_dense_kl_is_that_of_torch() -> None:
    model = to_dense_vi(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    prior = torch.distributions.Normal(0.0, PRIOR_STD)
    truth = 0.0
    for layer in model.modules():
        if isinstance(layer, DenseVI):
            std = F.softplus(layer.raw_std.detach())
            posterior = torch.distributions.Normal(layer.mean.detach(), std)
            truth += float(torch.distributions.kl_divergence(posterior, prior).double().sum())
    assert dense_kl(model).item() == pytest.approx(truth, rel=1e-5)


def test_conversion_reaches_every_layer_and_copies() -> None:
    model = QUICK_RESNET.build()
    before = copy.deepcopy(model.state_dict())
    twin = to_dense_vi(model)
    assert not [m for m in twin.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    weights = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len([m for m in twin.modules() if isinstance(m, DenseVI)]) == len(weights)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_csr_layer_against_a_dense_one() -> None:
    weight = torch.randn(7, 5, dtype=torch.float64)
    weight[torch.rand(7, 5) < 0.6] = 0.0
    weight[2] = 0.0  # an empty row
    x = torch.randn(4, 5, dtype=torch.float64)
    gradient = torch.randn(4, 7, dtype=torch.float64)
    layer, dense = CSRLinear(weight), weight.clone().requires_grad_()
    x_sparse, x_dense = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = layer(x_sparse)
    y.backward(gradient)
    truth = F.linear(x_dense, dense)
    truth.backward(gradient)
    torch.testing.assert_close(y, truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x_sparse.grad, x_dense.grad, rtol=1e-12, atol=1e-12)
    assert layer.values.grad is not None
    assert dense.grad is not None
    torch.testing.assert_close(layer.values.grad, dense.grad[weight != 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", [nn.Linear(32, 16, bias=False), nn.Conv2d(8, 8, 3, padding=1)])
def test_rivals_that_are_installed_compute_the_layer(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        layer.bias = None
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    with torch.no_grad():
        weight.mul_(torch.rand(weight.shape) < 0.2)
    x = torch.randn(16, 32) if isinstance(layer, nn.Linear) else torch.randn(8, 8, 8, 8)
    rivals = deterministic_rivals(layer, 0.8)
    assert isinstance(layer, nn.Conv2d) or "torch CSR" in rivals
    for name, rival in rivals.items():
        if name != "SparseLab":  # draws its own support
            torch.testing.assert_close(rival(x), layer(x), rtol=1e-4, atol=1e-4)


def test_a_swap_step_swaps_and_a_plain_one_does_not() -> None:
    step = SparseStep(QUICK_MLP.build(), 0.9, "erk", QUICK_MLP.batch(16))

    def supports() -> list[torch.Tensor]:
        found = [layer.indices for layer in sparse_layers(step.model).values()]
        return [indices.clone() for indices in found if indices is not None]

    before = supports()
    step.plain()
    step.plain()
    assert all(torch.equal(a, b) for a, b in zip(before, supports(), strict=True))
    for _ in range(2):  # again and again
        before = supports()
        step.swap()
        assert any(not torch.equal(a, b) for a, b in zip(before, supports(), strict=True))
        assert all(layer.growth is None for layer in sparse_layers(step.model).values())
    assert with_swaps(2.0, 12.0) == pytest.approx(2.1, rel=1e-12)


def test_the_kl_is_in_every_variational_step() -> None:
    batch = QUICK_MLP.batch(4)
    model = QUICK_MLP.build()
    dense = DenseStep.variational(model, batch)
    plain = DenseStep(model, None, batch)
    for step in (dense, SparseStep(model, 0.9, "erk", batch)):
        step.loss().backward()
        stds = [p for name, p in step.model.named_parameters() if name.endswith("raw_std")]
        assert stds
        assert all(p.grad is not None and bool((p.grad != 0).all()) for p in stds)
    assert torch.equal(plain.loss(), F.cross_entropy(plain.model(batch[0]), batch[1]))


@pytest.mark.parametrize("network", token_networks.QUICK, ids=lambda network: network.name)
def test_networks_of_tokens_do_what_their_name_says(network: token_networks.TokenNetwork) -> None:
    """The full ones have the sizes they are known by; the small ones train."""
    torch.manual_seed(0)
    x, y = network.batch(3)
    model = network.build()
    assert model(x).shape == (3, 10)
    # Attention asks no position: a permutation of tokens and positions changes nothing.
    order = torch.randperm(network.tokens)
    before = model(x)
    with torch.no_grad():
        model.position.copy_(model.position[order])
    assert torch.allclose(model(x[:, order]), before, atol=1e-5) is (network.heads > 0)
    step = SparseStep(model, 0.9, "erk", (x, y))
    assert len(sparse_layers(step.model)) == (3 if network.patch is not None else 2) + 3
    step.swap()


@pytest.mark.parametrize("network", token_networks.FULL, ids=lambda network: network.name)
def test_the_sizes_of_the_networks_of_tokens(network: token_networks.TokenNetwork) -> None:
    d, t = network.width, network.tokens
    mixing = 4 * d * (d + 1) if network.heads else (d // 2) * (2 * t + 1) + t
    block = mixing + 4 * d * (d + 1) + d * (4 * d + 1) + 4 * d
    embed = 1000 * d if network.patch is None else d * (network.patch + 1)
    size = embed + t * d + network.depth * block + 2 * d + 10 * (d + 1)
    assert sum(p.numel() for p in network.build().parameters()) == size
