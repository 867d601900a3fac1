"""Spike-and-slab inclusion against the enumeration of all sets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import betaln, logsumexp
from scipy.stats import multivariate_normal

from gossamer.errors import InvalidValue
from gossamer.selection.features import main_effects
from gossamer.selection.spike_slab import Models, Problem, posterior_inclusion, standardised


def enumerated(
    x: np.ndarray, y: np.ndarray, slab: float, most: int
) -> dict[tuple[int, ...], float]:
    """Log posterior of every set, by the n × n marginal covariance: a second way to the formula."""
    n, m = x.shape
    x, y = (x - x.mean(0)) / x.std(0), y - y.mean()
    centring = np.linalg.svd(np.eye(n) - 1.0 / n)[0][:, : n - 1]  # n-1 contrasts without the mean
    x, y = centring.T @ x, centring.T @ y
    found = {}
    for k in range(most + 1):
        for chosen in combinations(range(m), k):
            part = x[:, list(chosen)]
            shape = np.eye(n - 1) + slab * part @ part.T
            quadratic = float(y @ np.linalg.solve(shape, y))
            log_lik = -0.5 * np.linalg.slogdet(shape)[1] - 0.5 * (n - 1) * np.log(quadratic)
            found[chosen] = log_lik + betaln(1 + k, 2 * m - k) - betaln(1, m)
    return found


def problem(seed: int, n: int = 30, m: int = 8) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((n, m))
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]  # so that sets compete
    y = 0.9 * x[:, 0] - 0.7 * x[:, 4] + draw.standard_normal(n)
    return x, y


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inclusion_is_that_of_all_sets(seed: int) -> None:
    x, y = problem(seed)
    heights = enumerated(x, y, 1.5, 8)
    total = logsumexp(list(heights.values()))
    truth = np.zeros(8)
    for chosen, height in heights.items():
        truth[list(chosen)] += np.exp(height - total)
    found = posterior_inclusion(x, y, slab=1.5, steps=6000, seed=seed)
    assert truth.max() > 0.2  # something is to be seen
    assert np.abs(found - truth).max() < 0.03


def test_a_group_is_in_where_any_of_its_features_is() -> None:
    x, y = problem(3)
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    heights = enumerated(x, y, 1.5, 8)
    total = logsumexp(list(heights.values()))
    truth = np.zeros(4)
    for chosen, height in heights.items():
        truth[sorted({int(groups[j]) for j in chosen})] += np.exp(height - total)
    found = posterior_inclusion(x, y, groups=groups, slab=1.5, steps=6000)
    assert np.abs(found - truth).max() < 0.03


@pytest.mark.parametrize("chosen", [[], [2], [0, 4], [5, 1, 3]])
def test_odds_are_differences_of_log_posteriors(chosen: list[int]) -> None:
    x, y = problem(4)
    heights = enumerated(x, y, 2.0, 8)
    models = Models(Problem(standardised(x), y - y.mean(), 2.0, 8))
    odds, height = models.log_odds(chosen)
    for j in range(8):
        rest = set(chosen) - {j}
        truth = heights[tuple(sorted(rest | {j}))] - heights[tuple(sorted(rest))]
        assert odds[j] == pytest.approx(truth, abs=1e-9)
    base = models.log_odds([])[1] - heights[()]
    assert height - base == pytest.approx(heights[tuple(sorted(chosen))], abs=1e-9)


def test_the_noise_is_integrated_out() -> None:
    """∫ N(y; 0, σ² (I + τ² X Xᵀ)) dσ²/σ² by quadrature over log σ²: ratios of sets agree."""
    x, y = problem(5, n=12, m=5)
    heights = enumerated(x, y, 2.0, 5)
    contrasts = np.linalg.svd(np.eye(12) - 1.0 / 12)[0][:, :11]
    scaled, target = contrasts.T @ ((x - x.mean(0)) / x.std(0)), contrasts.T @ y

    def log_evidence(chosen: tuple[int, ...]) -> float:
        part = scaled[:, list(chosen)]
        law = multivariate_normal(np.zeros(11), np.eye(11) + 2.0 * part @ part.T)
        at_log = lambda t: law.logpdf(target * np.exp(-t / 2)) - 5.5 * t  # noqa: E731
        peak = max(at_log(t) for t in np.linspace(-8, 8, 400))
        return peak + float(np.log(quad(lambda t: np.exp(at_log(t) - peak), -12, 12, limit=400)[0]))

    for chosen in [(0,), (1, 2), (0, 1, 4)]:
        prior = betaln(1 + len(chosen), 10 - len(chosen)) - betaln(1, 10)
        truth = log_evidence(chosen) - log_evidence(()) + prior
        assert heights[chosen] - heights[()] == pytest.approx(truth, abs=1e-6)


def test_same_seed_same_bits_and_constant_columns_are_never_in() -> None:
    x, y = problem(6)
    x[:, 3] = 7.0
    first, second = (posterior_inclusion(x, y, steps=300, seed=9) for _ in range(2))
    assert np.array_equal(first, second)
    assert first[3] == 0.0
    assert not posterior_inclusion(x, np.ones(len(y))).any()


def test_refusals_name_the_value() -> None:
    x, y = problem(7)
    for bad in ({"slab": 0.0}, {"steps": 0}, {"groups": np.zeros(3, dtype=np.int64)}):
        with pytest.raises(InvalidValue, match=next(iter(bad))):
            posterior_inclusion(x, y, **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="y"):
        posterior_inclusion(x, y[:-1])


def test_curves_are_orthogonal_to_their_lines_and_bounded() -> None:
    draw = np.random.default_rng(0)
    x = np.stack(
        [draw.standard_normal(200), draw.standard_cauchy(200), draw.integers(0, 2, 200)], 1
    )
    features, groups = main_effects(x)
    assert groups.tolist() == [0, 1, 2] * 3
    for column in range(3):
        own = features[:, groups == column]
        gram = own.T @ own / len(x)
        expected = np.diag([1.0, 1.0, 1.0] if column < 2 else [1.0, 0.0, 0.0])
        assert np.abs(gram - expected).max() < 1e-9
    # |x| of a symmetric column is in the even curve, hardly in the line.
    target = np.abs(x[:, 0])
    assert abs(np.corrcoef(features[:, 3], target)[0, 1]) > 0.85
