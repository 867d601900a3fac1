"""Updates of SGLD and SGHMC against the formulas in plain numpy, and temperatures by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.langevin import (
    momentum_,
    noise_scale,
    sampled_temperature,
    sghmc,
    sghmc_,
    sgld,
    sgld_,
    spread_at_temperature,
    spread_of_noise_scale,
)
from gossamer.errors import InvalidValue

BETAS = (0.7, 0.4)
T = 0.03
LR = 0.02
CLOSE = 1e-14  # a handful of float64 roundings of numbers up to 3


def tensors(count: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return list(torch.randn(count, 3, 4, dtype=torch.float64, generator=generator).to(dtype))


def decays() -> list[float | torch.Tensor]:
    return [0.0, 0.3, torch.linspace(0.0, 2.0, 12, dtype=torch.float64).reshape(3, 4)]


@pytest.mark.parametrize("decay", decays(), ids=["none", "number", "tensor"])
def test_sgld(decay):
    w, grad, eps = tensors(3)
    before = [x.clone() for x in (w, grad, eps)]
    got = sgld(w, grad, eps, lr=LR, temperature=T, decay=decay)
    expected = w - LR * (grad + decay * w) + math.sqrt(2 * LR * T) * eps
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=0, atol=CLOSE)
    for x, y in zip((w, grad, eps), before, strict=True):
        assert torch.equal(x, y), "arguments stay"
    assert sgld_(w, grad, eps, lr=LR, temperature=T, decay=decay) is w
    assert torch.equal(w, got)


@pytest.mark.parametrize("decay", decays(), ids=["none", "number", "tensor"])
def test_sghmc(decay):
    w, v, grad, eps = tensors(4)
    before = [x.clone() for x in (w, v, grad, eps)]
    got = sghmc(w, v, grad, eps, lr=LR, betas=BETAS, temperature=T, decay=decay)
    scale = math.sqrt(2 * (1 - 0.7) * 0.4 * T * LR)
    speed = 0.7 * v - 0.4 * LR * (grad + decay * w) + scale * eps
    np.testing.assert_allclose(got.v.numpy(), speed.numpy(), rtol=0, atol=CLOSE)
    np.testing.assert_allclose(got.w.numpy(), (w + speed).numpy(), rtol=0, atol=CLOSE)
    for x, y in zip((w, v, grad, eps), before, strict=True):
        assert torch.equal(x, y), "arguments stay"
    sghmc_(w, v, grad, eps, lr=LR, betas=BETAS, temperature=T, decay=decay)
    assert torch.equal(w, got.w)
    assert torch.equal(v, got.v)


def test_sghmc_without_memory_is_sgld():
    w, v, grad, eps = tensors(4)
    moved = sghmc(w, v, grad, eps, lr=LR, betas=(0.0, 1.0), temperature=T, decay=0.3)
    langevin = sgld(w, grad, eps, lr=LR, temperature=T, decay=0.3)
    np.testing.assert_allclose(moved.w.numpy(), langevin.numpy(), rtol=0, atol=CLOSE)


def test_momentum_is_torchs():
    """At β₂ = 1 and a constant step: torch's SGD with momentum."""
    w, v, first, second = tensors(4)
    p = torch.nn.Parameter(w.clone())
    opt = torch.optim.SGD([p], lr=LR, momentum=0.7)
    v.zero_()
    for grad in (first, second, first):
        p.grad = grad
        opt.step()
        momentum_(w, v, grad, lr=LR, betas=(0.7, 1.0))
    np.testing.assert_allclose(w.numpy(), p.detach().numpy(), rtol=0, atol=CLOSE)


def test_dtype_is_kept():
    w, v, grad, eps = tensors(4, torch.float32)
    moved = sghmc(w, v, grad, eps, lr=LR, betas=BETAS, temperature=T, decay=0.1)
    assert moved.w.dtype == moved.v.dtype == torch.float32
    assert sgld(w, grad, eps, lr=LR, temperature=T).dtype == torch.float32


def test_temperature_of_the_authors_settings():
    """β = (0.1, 1): T = 1.122 k²τΔt; at k = 1/√N, Δt = 0.1, τ = ½ it is 0.056 of 1/N."""
    assert sampled_temperature(1.0, 1.0, (0.1, 1.0)) == pytest.approx(1.01 / 0.9, rel=1e-14)
    relative = 10_000 * sampled_temperature(0.01, 0.1, (0.1, 1.0), 0.5)
    assert relative == pytest.approx(0.0561, abs=5e-5)


def test_temperature_of_the_papers_claim():
    """K = 1/√N is the posterior only where hβ₂ = (1+β₁²)τ."""
    beta1, dt, tau = 0.6, 0.3, 0.4
    beta2 = (1 + beta1**2) * tau * dt / (1 - beta1)
    assert 50 * sampled_temperature(50**-0.5, dt, (beta1, beta2), tau) == pytest.approx(1.0)


@given(
    st.floats(1e-8, 1e3),
    st.floats(1e-4, 10),
    st.floats(0, 0.999),
    st.floats(1e-3, 10),
    st.floats(1e-3, 1),
)
def test_noise_scale_is_the_inverse(temperature, dt, beta1, beta2, tau):
    k = noise_scale(temperature, dt, (beta1, beta2), tau)
    back = sampled_temperature(k, dt, (beta1, beta2), tau)
    assert back == pytest.approx(temperature, rel=1e-12)


def test_spread():
    """α = kΔt^{1.5}, and from a temperature the same α, down to Δt = 0."""
    assert spread_of_noise_scale(2.0, 0.25) == pytest.approx(2.0 * 0.5**1.5, rel=1e-14)
    k = noise_scale(T, math.sqrt(LR), BETAS)
    assert spread_at_temperature(T, LR, BETAS) == pytest.approx(k * LR**0.75, rel=1e-14)
    assert spread_at_temperature(T, 0.0, BETAS) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_scale(-1.0, 0.1, BETAS), "temperature = -1.0: must be finite and not"),
        (lambda: sampled_temperature(math.nan, 0.1, BETAS), "noise_scale = nan"),
        (lambda: noise_scale(1.0, 0.0, BETAS), "dt = 0.0: must be finite and > 0"),
        (lambda: noise_scale(1.0, 0.1, (1.0, 1.0)), r"betas = \(1.0, 1.0\): need 0 <= beta1 < 1"),
        (lambda: noise_scale(1.0, 0.1, (0.5, 0.0)), r"betas = \(0.5, 0.0\)"),
        (lambda: noise_scale(1.0, 0.1, BETAS, 0.0), r"tau = 0.0: must lie in \(0, 1\]"),
        (lambda: sampled_temperature(1.0, 0.1, BETAS, 1.5), "tau = 1.5"),
    ],
)
def test_wrong_settings(call, message):
    with pytest.raises(InvalidValue, match=message):
        call()
