"""Real and count predictions: decomposition and quantiles against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.prediction import RealPrediction
from gossamer.prediction.passes import ROW_BLOCK


def real(samples: torch.Tensor, noise: torch.Tensor, *, counts: bool = False) -> RealPrediction:
    return RealPrediction(
        mean=samples.mean(0),
        epistemic=samples.std(0, correction=0),
        aleatoric=noise.square().mean(0).sqrt(),
        samples=samples,
        noise=noise,
        counts=counts,
    )


def mixture_quantile(means: np.ndarray, stds: np.ndarray, p: float) -> float:
    """Root of the mixture's distribution function by Brent's method."""
    low, high = (means - 15 * stds).min(), (means + 15 * stds).max()
    return optimize.brentq(
        lambda v: stats.norm.cdf(v, means, stds).mean() - p, low, high, xtol=1e-13, rtol=1e-14
    )


class TestGaussian:
    def test_decomposition_is_the_law_of_total_variance(self):
        torch.manual_seed(0)
        bnn = gs.to_bayesian(nn.Linear(4, 4), posterior_std=0.4)
        x = torch.randn(ROW_BLOCK + 3, 4)
        pred = gs.predict(bnn, x, 9, likelihood=gs.Gaussian("head"))
        assert pred.mean.shape == (ROW_BLOCK + 3, 2)
        assert pred.samples.shape == pred.noise.shape == (9, ROW_BLOCK + 3, 2)
        samples, noise = pred.samples.double().numpy(), pred.noise.double().numpy()
        # float32 sums of nine.
        np.testing.assert_allclose(pred.mean, samples.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(pred.epistemic, samples.std(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(pred.aleatoric, np.sqrt((noise**2).mean(0)), rtol=1e-5)
        second = (samples**2 + noise**2).mean(0) - samples.mean(0) ** 2
        np.testing.assert_allclose(pred.std, np.sqrt(second), rtol=1e-4)
        assert not pred.counts

    @pytest.mark.parametrize("noise_std", [0.3, "learn"])
    def test_constant_noise_and_the_dropped_column(self, noise_std):
        bnn = gs.to_bayesian(nn.Linear(4, 1), posterior_std=0.4)
        pred = gs.predict(bnn, torch.randn(6, 4), 5, likelihood=gs.Gaussian(noise_std))
        assert pred.mean.shape == pred.epistemic.shape == pred.aleatoric.shape == (6,)
        wanted = torch.full((6,), 0.3 if noise_std == 0.3 else 0.5)
        torch.testing.assert_close(pred.aleatoric, wanted, rtol=1e-6, atol=0)
        assert not pred.noise.requires_grad

    def test_a_deterministic_network_has_no_epistemic_part(self):
        pred = gs.predict(nn.Linear(4, 1), torch.randn(6, 4), 5, likelihood=gs.Gaussian(0.3))
        assert not pred.epistemic.any()

    @settings(max_examples=60)
    @given(
        means=st.lists(st.floats(-50, 50), min_size=1, max_size=6),
        scale=st.floats(1e-3, 20.0),
        level=st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.9999]),
    )
    def test_interval_is_the_root_of_the_mixture(self, means, scale, level):
        centre = np.array(means)
        spread = scale * (1 + np.arange(len(means)) / 3)
        pred = real(torch.tensor(centre)[:, None], torch.tensor(spread)[:, None])
        low, high = pred.interval(level)
        tail = (1 - level) / 2
        reach = float(np.abs(centre).max() + 20 * spread.max())
        for ours, p in ((low, tail), (high, 1 - tail)):
            # In a gap between components the distribution function is flat: compare probabilities
            # there, values elsewhere.
            value = float(ours)
            wanted = mixture_quantile(centre, spread, p)
            reached = stats.norm.cdf(value, centre, spread).mean()
            assert value == pytest.approx(wanted, abs=1e-9 * reach) or reached == pytest.approx(
                p, abs=1e-12
            )

    def test_interval_of_one_sample_is_the_normals(self):
        pred = real(torch.tensor([[1.0, -3.0]]), torch.tensor([[0.5, 2.0]]))
        low, high = pred.interval(0.95)
        wanted = stats.norm([1.0, -3.0], [0.5, 2.0]).interval(0.95)
        np.testing.assert_allclose(low, wanted[0], rtol=1e-6)
        np.testing.assert_allclose(high, wanted[1], rtol=1e-6)

    def test_interval_covers_simulated_targets(self):
        """90 % of 20,000 draws from the mixture fall inside, within five standard errors."""
        generator = torch.Generator().manual_seed(0)
        samples, noise = torch.tensor([[-4.0], [0.0], [1.0]]), torch.tensor([[0.3], [1.0], [2.0]])
        low, high = real(samples, noise).interval(0.9)
        which = torch.randint(3, (20_000,), generator=generator)
        draws = samples[which, 0] + noise[which, 0] * torch.randn(20_000, generator=generator)
        inside = ((draws >= low) & (draws <= high)).double().mean()
        assert abs(float(inside) - 0.9) < 5 * math.sqrt(0.09 / 20_000)

    def test_to_scale(self):
        pred = real(torch.randn(4, 5), torch.rand(4, 5) + 0.1)
        moved = pred.to_scale(10.0, 3.0)
        torch.testing.assert_close(moved.mean, 10 + 3 * pred.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(moved.std, 3 * pred.std, rtol=1e-6, atol=1e-6)
        for ours, base in zip(moved.interval(0.8), pred.interval(0.8), strict=True):
            torch.testing.assert_close(ours, 10 + 3 * base, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
    def test_bad_scale(self, scale):
        """A std of the wrong sign would turn every interval inside out."""
        with pytest.raises(InvalidValue, match="scale"):
            real(torch.zeros(2, 3), torch.ones(2, 3)).to_scale(0.0, scale)

    @pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 1.5, math.nan])
    def test_bad_level(self, level):
        with pytest.raises(InvalidValue, match="level"):
            real(torch.zeros(2, 3), torch.ones(2, 3)).interval(level)

    @pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, 1.5, math.nan])
    def test_bad_probability(self, probability):
        """No finite quantile exists there: never the end of the search interval."""
        with pytest.raises(InvalidValue, match="probability"):
            real(torch.zeros(2, 3), torch.ones(2, 3)).quantile(probability)


class TestPoisson:
    def test_moments(self):
        bnn = gs.to_bayesian(nn.Linear(3, 1), posterior_std=0.3)
        x = torch.randn(8, 3)
        pred = gs.predict(bnn, x, 6, likelihood="poisson")
        rates = pred.samples.double()
        assert pred.counts
        assert pred.mean.shape == (8,)
        torch.testing.assert_close(pred.mean.double(), rates.mean(0), rtol=1e-5, atol=0)
        # Variance of a Poisson mixture: mean rate + variance of the rates.
        variance = rates.mean(0) + rates.var(0, correction=0)
        torch.testing.assert_close(pred.std.double(), variance.sqrt(), rtol=1e-5, atol=0)

    @settings(max_examples=60)
    @given(
        rates=st.lists(st.floats(1e-3, 300.0), min_size=1, max_size=5),
        level=st.sampled_from([0.1, 0.5, 0.9, 0.99, 0.9999]),
    )
    def test_interval_as_a_scipy_mixture(self, rates, level):
        r = np.array(rates)
        pred = real(torch.tensor(r)[:, None], torch.tensor(r).sqrt()[:, None], counts=True)
        low, high = (int(v) for v in pred.interval(level))
        grid = np.arange(int(r.max() + 40 * math.sqrt(r.max()) + 40))
        cdf = stats.poisson.cdf(grid[:, None], r).mean(1)
        for ours, p in ((low, (1 - level) / 2), (high, 1 - (1 - level) / 2)):
            # The smallest count whose distribution function reaches p, up to rounding of the two
            # implementations at the very step.
            assert cdf[ours] >= p - 1e-12
            assert ours == 0 or cdf[ours - 1] < p + 1e-12
        below = cdf[low - 1] if low > 0 else 0.0
        assert cdf[high] - below >= level - 1e-12

    def test_single_rate_as_scipy(self):
        rates = torch.tensor([[0.5, 3.0, 40.0, 1000.0]])
        low, high = real(rates, rates.sqrt(), counts=True).interval(0.9)
        wanted = stats.poisson.interval(0.9, rates[0].numpy())
        assert low.tolist() == wanted[0].tolist()
        assert high.tolist() == wanted[1].tolist()

    def test_counts_have_no_other_scale(self):
        with pytest.raises(InvalidValue, match="cannot be shifted or scaled"):
            real(torch.ones(2, 3), torch.ones(2, 3), counts=True).to_scale(0.0, 2.0)
