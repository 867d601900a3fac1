"""The formulas of natural-gradient steps: positivity, Stein's identity, Adam's rule, the guard."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.natural import Rates, adam_, curvature_, natural_, posterior_std


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def test_std_in_fifty_digits():
    h, decay, size = 0.0123, 3e-4, 17_500.0
    with mpmath.workdps(50):
        wanted = 1 / mpmath.sqrt(mpmath.mpf(size) * (mpmath.mpf(h) + mpmath.mpf(decay)))
    assert float(posterior_std(one(h), size=size, decay=decay)) == pytest.approx(wanted, rel=1e-15)


@given(
    h=st.floats(1e-6, 1e3),
    product=st.floats(-1e4, 1e4),
    beta=st.floats(0.0, 0.99999),
    decay=st.floats(1e-6, 1.0),
    size=st.floats(1.0, 1e6),
)
def test_curvature_plus_decay_stays_positive(h, product, beta, decay, size):
    """Whatever the gradient was: h + d never falls below half of what it was."""
    held = one(h)
    curvature_(held, one(product), size=size, curvature_beta=beta, decay=decay)
    assert float(held) + decay >= 0.499999 * (h + decay)


def test_curvature_step_is_the_published_one():
    """βh + (1-β)ĥ + ½(1-β)²(h-ĥ)²/(h+d), in 50 digits; σ is the one of the draw."""
    h, product, beta, decay, size = 0.4, -0.013, 0.93, 0.02, 900.0
    held = one(h)
    std = curvature_(held, one(product), size=size, curvature_beta=beta, decay=decay)
    with mpmath.workdps(50):
        h_, p, b, d, n = map(mpmath.mpf, (h, product, beta, decay, size))
        hat = p * mpmath.sqrt(n * (h_ + d))
        wanted = b * h_ + (1 - b) * hat + (1 - b) ** 2 * (h_ - hat) ** 2 / (h_ + d) / 2
    assert float(held) == pytest.approx(wanted, rel=1e-14)
    assert float(std) == pytest.approx((size * (h + decay)) ** -0.5, rel=1e-14)


def test_adam_is_torch_adam():
    torch.manual_seed(3)
    ours, theirs = torch.randn(5, dtype=torch.float64), None
    theirs = torch.nn.Parameter(ours.clone())
    adam = torch.optim.Adam([theirs], lr=0.03, betas=(0.8, 0.97))
    m, v = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 30):
        grad = torch.randn(5, dtype=torch.float64)
        adam_(ours, grad, m, v, Rates(0.03, 0.8, 0.97, 0.9, step))
        theirs.grad = grad
        adam.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_guard_bounds_the_move(sign):
    """A gradient of 50 would move the mean by 4.2; the guard lets it go 0.1."""
    for limit, wanted in ((None, 50.0 * 0.05 / 0.6), (0.1, 0.1), (10.0, 50.0 * 0.05 / 0.6)):
        mean, m = one(0.0), one(0.0)
        rates = Rates(0.05, 0.0, 0.9, 0.9, 1)
        bound = None if limit is None else one(limit)
        natural_(mean, one(sign * 50.0), m, one(0.5), rates, decay=0.1, limit=bound)
        assert float(mean) == pytest.approx(-sign * wanted, rel=1e-12)


def test_the_prior_pulls_the_mean():
    """Without a gradient μ falls by lr·dμ/(h + d)."""
    mean = one(2.0)
    natural_(mean, one(0.0), one(0.0), one(0.5), Rates(0.3, 0.9, 0.9, 0.9, 4), decay=0.1)
    assert float(mean) == pytest.approx(2.0 - 0.3 * 0.1 * 2.0 / 0.6, rel=1e-14)
