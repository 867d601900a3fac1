"""The predictive distribution against quadrature and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from gossamer.errors import InvalidData, InvalidValue
from gossamer.sklearn import PredictiveDistribution

MEANS = np.array([[0.0, 5e5], [2.0, 5.1e5], [-1.0, 4.9e5]])
STDS = np.array([[1.0, 3e3], [0.5, 1e3], [2.0, 2e3]])


@pytest.fixture(name="dist")
def _dist() -> PredictiveDistribution:
    noise = np.sqrt((STDS**2).mean(0))
    return PredictiveDistribution(MEANS.mean(0), MEANS.std(0), noise, MEANS, STDS)


def test_density_and_distribution_are_those_of_the_mixture(dist: PredictiveDistribution) -> None:
    y = np.array([0.7, 5.05e5])
    density = norm.pdf(y, MEANS, STDS).mean(0)
    np.testing.assert_allclose(dist.logpdf(y), np.log(density), rtol=1e-12)
    np.testing.assert_allclose(dist.cdf(y), norm.cdf(y, MEANS, STDS).mean(0), rtol=1e-12)
    variance = (MEANS**2 + STDS**2).mean(0) - MEANS.mean(0) ** 2
    np.testing.assert_allclose(dist.std, np.sqrt(variance), rtol=1e-9)


def test_quantiles_undo_the_distribution(dist: PredictiveDistribution) -> None:
    for q in (0.001, 0.05, 0.5, 0.95):
        np.testing.assert_allclose(dist.cdf(dist.quantile(q)), q, rtol=1e-9)
    lower, upper = dist.interval(0.8)
    np.testing.assert_allclose(dist.cdf(upper) - dist.cdf(lower), 0.8, rtol=1e-9)


def test_crps_is_its_integral(dist: PredictiveDistribution) -> None:
    y = 0.7
    found = dist.crps([y, 5.05e5])[0]

    def cdf(t: float) -> float:
        return float(norm.cdf(t, MEANS[:, 0], STDS[:, 0]).mean())

    below = quad(lambda t: cdf(t) ** 2, -40.0, y, limit=200)[0]
    above = quad(lambda t: (1.0 - cdf(t)) ** 2, y, 40.0, limit=200)[0]
    assert found == pytest.approx(below + above, rel=1e-7)


def test_draws_follow_the_mixture(dist: PredictiveDistribution) -> None:
    draws = dist.sample(20_000, random_state=0)
    assert draws.shape == (20_000, 2)
    np.testing.assert_allclose(draws.mean(0), dist.mean, atol=4 * dist.std.max() / 141, rtol=0)
    np.testing.assert_allclose(draws.std(0), dist.std, rtol=0.02)
    assert np.array_equal(draws, dist.sample(20_000, random_state=0))


def test_rows_of_a_draw_err_together_as_networks_do() -> None:
    mean = np.array([10.0, 20.0])
    apart = np.array([-1.5, -0.5, 0.5, 1.5])
    departures = np.stack([apart, 2.0 * apart], 1)
    epistemic, aleatoric = departures.std(0), np.array([0.5, 0.5])
    parts = np.broadcast_to(mean, (3, 2))
    widths = np.broadcast_to(np.hypot(epistemic, aleatoric), (3, 2))
    dist = PredictiveDistribution(mean, epistemic, aleatoric, parts, widths, departures=departures)
    draws = dist.sample(40_000, random_state=0)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(draws.std(0), dist.std, rtol=0.02)
    together = (epistemic[0] * epistemic[1]) / (dist.std[0] * dist.std[1])
    assert np.corrcoef(draws.T)[0, 1] == pytest.approx(together, abs=0.01)


def test_what_makes_no_sense_is_refused(dist: PredictiveDistribution) -> None:
    with pytest.raises(InvalidValue, match="coverage"):
        dist.interval(1.0)
    with pytest.raises(InvalidData, match="shape"):
        dist.logpdf([0.0])
