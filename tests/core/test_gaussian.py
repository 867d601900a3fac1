"""Softplus std, its inverse, and the KL to a prior, against 50-digit arithmetic and torch."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from gossamer.core.gaussian import kl_to_prior, raw_from_std, std_from_raw
from gossamer.errors import InvalidValue
from reference.folded_truth import relative_error

EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
DTYPES = (torch.float32, torch.float64)


def kl_truth(mean: float, std: float, prior_std: float, prior_mean: float = 0.0) -> mp.mpf:
    t = (mp.mpf(std) / mp.mpf(prior_std)) ** 2
    d = (mp.mpf(mean) - mp.mpf(prior_mean)) / mp.mpf(prior_std)
    return (t - 1 - mp.log(t) + d * d) / 2


def stds(dtype: torch.dtype) -> torch.Tensor:
    wide = torch.logspace(-12, 3, 400, dtype=torch.float64)
    middle = torch.linspace(0.3, 45, 300, dtype=torch.float64)  # raw = 0 and both softplus branches
    return torch.cat((wide, middle, torch.tensor([math.log(2.0)], dtype=torch.float64))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_from_std(dtype):
    """To 4 units of rounding of the raw value, absolute where it is below 1."""
    std = stds(dtype)
    raw = raw_from_std(std)
    assert raw.dtype == dtype
    for s, r in zip(std.tolist(), raw.tolist(), strict=True):
        exact = mp.mpf(s) + mp.log(-mp.expm1(-mp.mpf(s)))
        assert relative_error(r, exact, floor=1.0) < 4 * EPS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_std_from_raw(dtype):
    """To 4 units of rounding of the std, on both sides of torch's softplus threshold."""
    raw = torch.linspace(-80, 80, 801, dtype=dtype)
    std = std_from_raw(raw)
    assert std.dtype == dtype
    for r, s in zip(raw.tolist(), std.tolist(), strict=True):
        assert relative_error(s, mp.log1p(mp.exp(mp.mpf(r)))) < 4 * EPS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype):
    """The raw value of 1e-12 is -27.6: half an ulp of it, 16 units of rounding, moves the std."""
    std = stds(dtype)
    back = std_from_raw(raw_from_std(std))
    assert ((back - std) / std).abs().max() < 34 * EPS[dtype]


def test_std_gradients():
    raw = torch.tensor([-25.0, -7.0, 0.0, 3.0, 39.0, 41.0], dtype=torch.float64, requires_grad=True)
    std_from_raw(raw).sum().backward()
    assert raw.grad is not None
    assert torch.allclose(raw.grad, torch.sigmoid(raw.detach()), rtol=1e-14, atol=0.0)
    std = torch.tensor([1e-3, 0.1, 0.69, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(raw_from_std, (std,), eps=1e-7)


@pytest.mark.parametrize("wrong", [0.0, -1e-3, math.inf, math.nan])
def test_raw_from_std_refuses(wrong):
    with pytest.raises(InvalidValue, match=r"std = .*must be finite and > 0"):
        raw_from_std(torch.tensor([0.1, wrong]))


def test_kl_against_torch_distributions():
    generator = torch.Generator().manual_seed(0)
    mean, prior_mean = torch.randn(2, 4000, dtype=torch.float64, generator=generator)
    exponent = torch.empty(2, 4000, dtype=torch.float64).uniform_(-8, 3, generator=generator)
    std, prior_std = 10.0**exponent
    got = kl_to_prior(mean, std, prior_std, prior_mean)
    expected = kl_divergence(Normal(mean, std), Normal(prior_mean, prior_std))
    # torch forms ½(t + d² - 1 - log t) outright: right to 1e-13 of its largest term, hence 1e-13
    # relative beside 1e-13 absolute.
    assert torch.allclose(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kl_keeps_its_digits_at_the_prior(dtype):
    """40 units of rounding for every std/prior_std, however near to 1."""
    near = torch.logspace(-7 if dtype == torch.float32 else -15, -0.6, 200, dtype=torch.float64)
    far = torch.logspace(-12, 6, 200, dtype=torch.float64)
    std = (0.005 * torch.cat((1 + near, 1 - near, far))).to(dtype)
    prior = torch.tensor(0.005, dtype=dtype)
    kl = kl_to_prior(torch.zeros_like(std), std, prior)
    assert kl.dtype == dtype
    assert (kl >= 0).all()
    for s, value in zip(std.tolist(), kl.tolist(), strict=True):
        assert relative_error(value, kl_truth(0.0, s, prior.item())) < 40 * EPS[dtype]


@settings(deadline=None, max_examples=200)
@given(
    mean=st.floats(-10, 10, width=32),
    std=st.floats(-8, 1).map(lambda k: 10.0**k),
    prior_std=st.floats(-4, 1).map(lambda k: 10.0**k),
    prior_mean=st.floats(-1, 1, width=32),
)
def test_kl_anywhere(mean, std, prior_std, prior_mean):
    """40 units of rounding, and 2 more of (mean - prior_mean), which is rounded once."""
    args = [torch.tensor([v], dtype=torch.float64) for v in (mean, std, prior_std, prior_mean)]
    value = kl_to_prior(*args).item()
    assert relative_error(value, kl_truth(mean, std, prior_std, prior_mean)) < 42 * 2.0**-53


def test_kl_is_zero_at_the_prior_and_finite_far_away():
    zero = torch.zeros(3)
    assert torch.equal(kl_to_prior(zero, torch.full((3,), 0.1), 0.1), zero)
    far = kl_to_prior(torch.zeros(2), torch.tensor([1e-12, 1e3]), 1.0)
    assert torch.isfinite(far).all()


def test_kl_gradients():
    """Around the series, at the prior, and of a prior that broadcasts; first and second order."""
    mean = torch.tensor(
        [[0.3, -1.0, 0.0], [0.1, 0.2, 2.0]], dtype=torch.float64, requires_grad=True
    )
    std = torch.tensor(
        [[0.05, 0.7, 0.999], [1.0, 1.04, 9.0]], dtype=torch.float64, requires_grad=True
    )
    prior_std = torch.tensor([1.0, 1.0, 0.97], dtype=torch.float64, requires_grad=True)
    prior_mean = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    inputs = (mean, std, prior_std, prior_mean)
    assert torch.autograd.gradcheck(kl_to_prior, inputs)
    assert torch.autograd.gradgradcheck(kl_to_prior, inputs)


def test_kl_gradient_keeps_its_digits():
    """d KL / d std = std/prior² - 1/std, right to 4 units of rounding in float32 near the prior."""
    prior = torch.tensor(0.005)
    std = (0.005 * (1 + torch.logspace(-6, 1, 100))).requires_grad_()
    kl_to_prior(torch.zeros(100), std, prior).sum().backward()
    assert std.grad is not None
    for s, slope in zip(std.tolist(), std.grad.tolist(), strict=True):
        exact = mp.mpf(s) / mp.mpf(prior.item()) ** 2 - 1 / mp.mpf(s)
        assert relative_error(slope, exact) < 4 * EPS[torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_kl_keeps_the_dtype(dtype):
    mean, std = torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)
    wide = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert kl_to_prior(mean, std, 0.5, 0.1).dtype == dtype
    assert kl_to_prior(mean, std, wide, wide).dtype == dtype


def test_kl_has_one_value_per_weight():
    """A prior may broadcast to the weights, not the weights to a prior."""
    assert kl_to_prior(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(3)).shape == (2, 3)
    with pytest.raises(RuntimeError, match="expand"):
        kl_to_prior(torch.zeros(3), torch.ones(3), torch.ones(2, 3))


def test_kl_under_function_transforms():
    """vmap over rows of functional gradients equals the plain gradient."""
    mean, std = torch.full((2, 3), 0.1), torch.tensor([[0.5, 1.0, 1.01], [2.0, 0.1, 0.98]])
    slope = torch.func.vmap(torch.func.grad(lambda m, s: kl_to_prior(m, s, 1.0).sum(), argnums=1))
    plain = std.clone().requires_grad_()
    kl_to_prior(mean, plain, 1.0).sum().backward()
    assert torch.equal(slope(mean, std), plain.grad)
