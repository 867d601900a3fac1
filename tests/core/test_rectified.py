"""Moments of rectified Gaussians and of maxima: 50 digits, quadrature, and both tails."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from gossamer.core import rectified
from gossamer.core.rectified import max_moments, relu_moments, smooth_moments

BOUND = {torch.float32: 2e-7, torch.float64: 4e-16}
"""Largest error in units of σ and σ²: a few roundings of numbers of size one."""

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def relu_truth(a: float) -> tuple[mp.mpf, mp.mpf]:
    """Of max(X, 0), X ~ N(a, 1), from the textbook's formulas."""
    with mp.workdps(50):
        a = mp.mpf(a)
        first = a * mp.ncdf(a) + mp.npdf(a)
        second = (a**2 + 1) * mp.ncdf(a) + a * mp.npdf(a)
        return first, second - first**2


def max_truth(m1: float, v1: float, m2: float, v2: float) -> tuple[float, float]:
    """By integrating the density of the maximum."""
    one, two = stats.norm(m1, v1**0.5), stats.norm(m2, v2**0.5)
    low = min(m1 - 12 * v1**0.5, m2 - 12 * v2**0.5)
    high = max(m1 + 12 * v1**0.5, m2 + 12 * v2**0.5)
    x = np.linspace(low, high, 400_001)
    density = one.pdf(x) * two.cdf(x) + two.pdf(x) * one.cdf(x)
    mean = integrate.simpson(x * density, x=x)
    return mean, integrate.simpson((x - mean) ** 2 * density, x=x)


class TestRelu:
    @every_dtype
    def test_against_fifty_digits(self, dtype):
        """Over both tails; errors in units of σ, so that no scale hides them."""
        a = torch.cat([torch.linspace(-13, 13, 521), torch.tensor([-1e4, -40.0, 40.0, 1e4])])
        mean, variance = relu_moments(a.to(dtype), torch.ones_like(a, dtype=dtype))
        for i, value in enumerate(a.to(dtype).tolist()):
            wanted = relu_truth(value)
            # The mean itself is rounded to its own size.
            allowed = BOUND[dtype] * max(1.0, value)
            assert abs(mean[i].item() - wanted[0]) <= allowed, value
            assert abs(variance[i].item() - wanted[1]) <= BOUND[dtype], value

    def test_the_lower_tail_keeps_its_digits_in_float64(self):
        """A relative error: dead units matter by what they still let through."""
        for value in (-1.0, -3.0, -5.0, -8.0, -10.0):
            got = relu_moments(torch.tensor([value]).double(), torch.ones(1).double())
            for mine, wanted in zip(got, relu_truth(value), strict=True):
                assert abs(mine.item() / wanted - 1) < 1e-9, value

    @every_dtype
    def test_a_small_variance_beside_a_large_mean(self, dtype):
        """E X² - (E X)² would lose it all."""
        mean, variance = relu_moments(
            torch.full((1,), 300.0, dtype=dtype), torch.full((1,), 1e-6, dtype=dtype)
        )
        assert mean.item() == 300.0
        assert variance.item() == pytest.approx(1e-6, rel=1e-6)

    @every_dtype
    def test_no_variance(self, dtype):
        given = torch.tensor([-2.0, -1e-30, 0.0, 1e-30, 3.0], dtype=dtype)
        mean, variance = relu_moments(given, torch.zeros_like(given))
        torch.testing.assert_close(mean, given.relu(), rtol=0, atol=1e-37)
        assert not variance.any()

    def test_a_variance_that_rounding_made_negative(self):
        mean, variance = relu_moments(torch.ones(1), torch.full((1,), -1e-12))
        assert (mean.item(), variance.item()) == (1.0, 0.0)

    def test_no_subnormal_numbers(self):
        """They would slow every later product down tenfold."""
        a = torch.linspace(-20, -4, 2001)
        for std in (1.0, 1e-3):
            mean, variance = relu_moments(std * a, torch.full_like(a, std**2))
            for found in (mean, variance, mean.square() * 1e-6, variance * 1e-6):
                kept = found[found != 0]
                assert kept.min() > torch.finfo(torch.float32).tiny

    def test_scale(self):
        """max(cX, 0) = c max(X, 0)."""
        m, v = torch.randn(50).double(), torch.rand(50).double()
        one = relu_moments(m, v)
        for c in (1e-6, 1e6):
            scaled = relu_moments(c * m, c**2 * v)
            torch.testing.assert_close(scaled[0], c * one[0], rtol=1e-12, atol=0)
            torch.testing.assert_close(scaled[1], c**2 * one[1], rtol=1e-10, atol=0)

    def test_blocks_are_the_whole(self, monkeypatch):
        m, v = torch.randn(3, 7, 11), torch.rand(3, 7, 11)
        whole = relu_moments(m, v)
        monkeypatch.setattr(rectified, "_BLOCK", 16)
        for got, wanted in zip(relu_moments(m, v), whole, strict=True):
            assert got.shape == m.shape
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)
        transposed = relu_moments(m.transpose(0, 2), v.transpose(0, 2))
        torch.testing.assert_close(transposed[0], whole[0].transpose(0, 2), rtol=1e-6, atol=1e-7)


class TestMax:
    @pytest.mark.parametrize(
        "case",
        [
            (0.0, 1.0, 0.0, 1.0),
            (0.3, 1.0, -0.4, 2.5),
            (-0.4, 2.5, 0.3, 1.0),
            (5.0, 0.5, 0.0, 0.5),
            (0.0, 0.01, 0.1, 4.0),
            (200.0, 1.0, 200.5, 2.0),
        ],
    )
    def test_against_quadrature(self, case):
        got = max_moments(*(torch.tensor([value], dtype=torch.float64) for value in case))
        mean, variance = max_truth(*case)
        assert got[0].item() == pytest.approx(mean, rel=1e-9, abs=1e-9)
        assert got[1].item() == pytest.approx(variance, rel=1e-7)

    def test_order_does_not_matter(self):
        a, b = ((torch.randn(40).double(), torch.rand(40).double()) for _ in range(2))
        for one, two in zip(max_moments(*a, *b), max_moments(*b, *a), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)

    def test_what_is_fixed_and_what_never_counts(self):
        low = torch.full((1,), -1e19)
        zero, one = torch.zeros(1), torch.ones(1)
        assert [t.item() for t in max_moments(2 * one, one, low, zero)] == [2.0, 1.0]
        assert [t.item() for t in max_moments(low, zero, low, zero)] == [low.item(), 0.0]
        assert [t.item() for t in max_moments(one, zero, 3 * one, zero)] == [3.0, 0.0]

    def test_against_zero_it_is_relu(self):
        m, v = 3 * torch.randn(200).double(), torch.rand(200).double()
        nothing = torch.zeros_like(m)
        for one, two in zip(max_moments(m, v, nothing, nothing), relu_moments(m, v), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


class TestSmooth:
    @pytest.mark.parametrize("name", ["tanh", "gelu", "silu", "sigmoid", "softplus"])
    def test_against_quadrature(self, name):
        function = getattr(torch.nn.functional, name)
        for mean, std in ((0.0, 0.3), (1.2, 0.8), (-2.0, 1.5), (4.0, 0.01)):
            x = np.linspace(mean - 12 * std, mean + 12 * std, 200_001)
            weight = stats.norm(mean, std).pdf(x)
            values = function(torch.from_numpy(x)).numpy()
            first = integrate.simpson(values * weight, x=x)
            second = integrate.simpson((values - first) ** 2 * weight, x=x)
            m, v = (torch.tensor([t], dtype=torch.float64) for t in (mean, std**2))
            got: tuple[Tensor, Tensor] = smooth_moments(function, m, v)
            assert got[0].item() == pytest.approx(first, abs=2e-5), (mean, std)
            assert got[1].item() == pytest.approx(second, rel=5e-4), (mean, std)

    def test_no_variance(self):
        m, v = smooth_moments(torch.tanh, torch.randn(5), torch.zeros(5))
        assert not v.any()
        assert m.abs().max() < 1
