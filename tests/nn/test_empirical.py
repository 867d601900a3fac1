"""Layers under the empirical prior: both ways to the KL, and a problem whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import ISAS, needs_native, using
from cases.zoo import mlp
from gossamer.core.gaussian import std_from_raw
from gossamer.core.priors import EmpiricalGaussian, Gaussian
from gossamer.core.support import Support
from gossamer.errors import InvalidValue
from gossamer.nn import move, sparse_layers, weights_of
from gossamer.nn.prior import EMPIRICAL_FLOOR, POSTERIOR_SHARE
from gossamer.ops import gaussian


def converted(net: nn.Module, sparsity: float = 0.0, **options) -> nn.Module:
    return gs.to_bayesian(net, sparsity, prior_std="empirical", **options)


def expected(layer) -> tuple[float, float]:
    """The scale and the KL of a layer, by their closed forms."""
    mean, std = layer.weight_mean.detach().double(), layer.weight_std.detach().double()
    scale = (mean.square() + std.square()).mean().sqrt()
    return float(scale), float((scale / std).log().sum())


@pytest.mark.parametrize("net", [nn.Linear(7, 5), nn.Conv2d(3, 4, 3), nn.ConvTranspose1d(3, 2, 3)])
@pytest.mark.parametrize("sparsity", [0.0, 0.6])
def test_the_kl_and_the_scale_of_a_layer(net, sparsity):
    layer = converted(net.double(), sparsity)
    scale, kl = expected(layer)
    assert layer.prior_std == pytest.approx(scale, rel=1e-13)
    assert float(layer.kl_divergence().detach()) == pytest.approx(kl, rel=1e-12)


def test_every_layer_has_a_scale_of_its_own_which_follows_the_weights():
    bnn = converted(mlp())
    before = {name: layer.prior_std for name, layer in sparse_layers(bnn).items()}
    with torch.no_grad():
        bnn[0].weight_mean.mul_(3.0)
    after = {name: layer.prior_std for name, layer in sparse_layers(bnn).items()}
    assert after["0"] == pytest.approx(expected(bnn[0])[0], rel=1e-6)
    assert after["0"] > 2.5 * before["0"]
    assert all(after[name] == before[name] for name in before if name != "0")
    assert len(set(after.values())) == len(after)


def test_it_starts_like_the_scaled_prior():
    one, two = (gs.to_bayesian(mlp(), prior_std=p) for p in ("scaled", "empirical"))
    for ours, theirs in zip(*(sparse_layers(n).values() for n in (one, two)), strict=True):
        assert torch.equal(ours.weight_raw_std, theirs.weight_raw_std)
        assert theirs.prior == EmpiricalGaussian(EMPIRICAL_FLOOR * ours.prior.std)
        assert ours.prior_std == ours.prior.std
    assert EMPIRICAL_FLOOR < POSTERIOR_SHARE, "the floor must not hold at the start"


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_way_is_the_plain_one(isa, dtype, monkeypatch):
    layer = converted(nn.Linear(37, 11).to(dtype), 0.3)
    found = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(gaussian, "is_fused", lambda *parameters: False)
        with using(isa):
            kl, scale = layer.kl_divergence(), layer.prior_std
            gradients = torch.autograd.grad(kl, (layer.weight_mean, layer.weight_raw_std))
        assert type(kl.grad_fn).__name__.startswith("_Kl") == fused
        found.append((kl.detach(), torch.tensor(scale, dtype=dtype), *gradients))
    digits = 2e-6 if dtype == torch.float32 else 1e-12
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=digits, atol=digits * float(ours.abs().max()))


@needs_native
@pytest.mark.parametrize("isa", ISAS)
def test_the_second_moment_of_any_length_and_number_of_threads(isa):
    before = torch.get_num_threads()
    try:
        for count in (0, 1, 7, 8, 50_001):
            mean, raw = torch.randn(2 * count)[::2], torch.randn(count) - 2
            found = []
            for threads in (1, 2, 8):
                torch.set_num_threads(threads)
                with using(isa):
                    found.append(gaussian.second_moment(mean, raw))
            assert len(set(found)) == 1, count
            wanted = mean.double().square().sum() + std_from_raw(raw.double()).square().sum()
            assert found[0] == pytest.approx(float(wanted), rel=1e-7)
    finally:
        torch.set_num_threads(before)


def test_compiled_it_keeps_following_the_weights():
    layer = converted(nn.Linear(6, 4))
    run = torch.compile(layer.kl_divergence, backend="eager", fullgraph=True)
    for factor in (1.0, 5.0):
        with torch.no_grad():
            layer.weight_mean.mul_(factor)
        assert float(run().detach()) == pytest.approx(expected(layer)[1], rel=1e-5)


def test_half_precision():
    layer = converted(nn.Linear(8, 8).bfloat16())
    kl = layer.kl_divergence()
    assert kl.dtype == torch.float32
    assert float(kl.detach()) == pytest.approx(expected(layer)[1], rel=1e-5)
    assert layer.prior_std == pytest.approx(expected(layer)[0], rel=1e-6)


@pytest.mark.parametrize("is_fused", [True, False])
def test_normal_means_reach_the_type_two_maximum(is_fused, monkeypatch):
    """y_i ~ N(θ_i, τ²), θ_i ~ N(0, s²): the evidence is largest at s² = mean y² - τ².

    The posterior factorises, so that the ELBO is the evidence there: mean field loses nothing.
    """
    if not is_fused:
        monkeypatch.setattr(gaussian, "is_fused", lambda *parameters: False)
    y = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2.0
    tau, layer = 0.8, converted(nn.Linear(40, 1, bias=False).double())
    found = _minimise(layer, y, tau)
    scale2 = float(y.square().mean()) - tau**2
    assert layer.prior_std == pytest.approx(math.sqrt(scale2), rel=1e-6)
    shrink = scale2 / (scale2 + tau**2)
    torch.testing.assert_close(layer.weight_mean.detach(), shrink * y, rtol=1e-5, atol=1e-7)
    std = torch.full_like(y, math.sqrt(shrink) * tau)
    torch.testing.assert_close(layer.weight_std.detach(), std, rtol=1e-5, atol=0)
    marginal = torch.distributions.Normal(torch.zeros_like(y), math.sqrt(scale2 + tau**2))
    evidence = marginal.log_prob(y).sum()
    assert -found == pytest.approx(float(evidence), rel=1e-9)


def test_a_layer_that_the_data_do_not_need_comes_to_rest_at_its_floor():
    """mean y² < τ²: the best s is 0. Nothing diverges; means go to 0, std to the floor."""
    y = 0.1 * torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = converted(nn.Linear(40, 1, bias=False).double())
    _minimise(layer, y, 1.0)
    assert layer.prior_std == pytest.approx(layer.prior.floor, rel=1e-2)
    assert float(layer.weight_mean.detach().abs().max()) < 2e-2 * layer.prior.floor
    assert (layer.weight_std.detach() / layer.prior.floor - 1).abs().max() < 1e-2


def _minimise(layer, y: torch.Tensor, tau: float) -> float:
    """The negative ELBO with its exact expectation, by L-BFGS."""
    optimizer = torch.optim.LBFGS(
        layer.parameters(),
        max_iter=3000,
        max_eval=6000,
        tolerance_grad=1e-10,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        error = (y - layer.weight_mean).square() + layer.weight_std.square()
        nll = 0.5 * (error / tau**2 + math.log(2 * math.pi * tau**2)).sum()
        total = nll + layer.kl_divergence()
        total.backward()
        return total

    optimizer.step(loss)
    return float(loss().detach())


def test_a_support_that_moves_takes_its_scale_along():
    bnn = converted(nn.Linear(6, 4), 0.5)
    (weight,) = weights_of(bnn)
    keep = torch.tensor([0, 3, 5])
    positions = bnn.support.positions()[keep]
    std = bnn.weight_std.detach()[keep]
    mean = bnn.weight_mean.detach()[keep]
    move(weight, Support.from_positions(positions, (4, 6)), keep)
    wanted = (mean.square() + std.square()).mean().sqrt()
    assert bnn.prior_std == pytest.approx(float(wanted), rel=1e-6)


def test_summary_shows_it():
    bnn = converted(mlp())
    shown = gs.summary(bnn)
    for row, layer in zip(shown.rows, sparse_layers(bnn).values(), strict=True):
        assert row.note == f"prior std {layer.prior_std:.4g}, empirical"
    assert f"0: {shown.rows[0].note}" in str(shown)
    assert gs.summary(gs.to_bayesian(mlp())).rows[0].note == ""


def test_two_priors_are_one_too_many():
    with pytest.raises(InvalidValue, match="prior_std = empirical: is a prior itself"):
        converted(mlp(), prior=Gaussian(1.0))
    layer = gs.to_bayesian(nn.Linear(3, 2), prior=EmpiricalGaussian(1e-2))
    assert layer.prior == EmpiricalGaussian(1e-2)
