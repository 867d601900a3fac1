"""Knockoffs: their joint covariance, the filter, and the rate of false discoveries."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.errors import InvalidValue
from gossamer.selection import select_by_knockoffs
from gossamer.selection.knockoffs import (
    Spectrum,
    gaussian_knockoffs,
    knockoff_threshold,
    lasso_wins,
)
from gossamer.selection.spike_slab import standardised


def spectrum(covariance: np.ndarray) -> Spectrum:
    values, vectors = np.linalg.eigh(covariance)
    return Spectrum(1.0, vectors, values)


def autoregressive(size: int, rho: float) -> np.ndarray:
    return rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))


class _Fixed:
    """Gives the noise that it was given, so that the map from noise to knockoffs can be read."""

    def __init__(self, noise: np.ndarray) -> None:
        self.noise = noise

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        assert shape == self.noise.shape
        return self.noise


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.8])
def test_joint_covariance_is_exact(rho: float) -> None:
    """x̃ = x A + z B, so cov(x̃) = AᵀΣA + BᵀB and cov(x, x̃) = ΣA, without any simulation."""
    size = 6
    sigma = autoregressive(size, rho)
    known = spectrum(sigma)
    eye, zero = np.eye(size), np.zeros((size, size))
    a = gaussian_knockoffs(eye, known, _Fixed(zero))  # type: ignore[arg-type]
    b = gaussian_knockoffs(zero, known, _Fixed(eye))  # type: ignore[arg-type]
    s = min(1.0, 2.0 * float(np.linalg.eigvalsh(sigma).min()))
    assert np.abs(a.T @ sigma @ a + b.T @ b - sigma).max() < 1e-10
    assert np.abs(sigma @ a - (sigma - s * eye)).max() < 1e-10


def test_low_rank_spectrum_is_the_shrunk_matrix() -> None:
    from sklearn.covariance import ledoit_wolf

    x = standardised(np.random.default_rng(0).standard_normal((20, 50)))
    truth, _ = ledoit_wolf(x, assume_centered=True)
    known = Spectrum.shrunk(x)
    assert np.abs(known.times(np.eye(50), lambda v: v) - truth).max() < 1e-10
    assert np.abs(known.times(np.eye(50), lambda v: 1.0 / v) - np.linalg.inv(truth)).max() < 1e-9
    assert known.smallest == pytest.approx(float(np.linalg.eigvalsh(truth).min()), abs=1e-10)


def test_threshold_by_hand() -> None:
    wins = np.array([5.0, 4.0, 3.0, 2.0, -1.0, 1.5, 0.0])
    assert knockoff_threshold(wins, 0.25) == 1.5  # (1 + 0)/5; at 1: (1 + 1)/5 = 0.4
    assert knockoff_threshold(wins, 0.4) == 1.0
    assert knockoff_threshold(wins, 0.1) == np.inf


def test_wins_change_sign_when_column_and_knockoff_change_places() -> None:
    draw = np.random.default_rng(1)
    x, copies = (standardised(draw.standard_normal((80, 6))) for _ in range(2))
    y = x[:, 0] + 0.3 * copies[:, 2] + 0.5 * draw.standard_normal(80)
    y = y - y.mean()
    first = lasso_wins(x, copies, y)
    swapped, other = x.copy(), copies.copy()
    swapped[:, [0, 2]], other[:, [0, 2]] = copies[:, [0, 2]], x[:, [0, 2]]
    second = lasso_wins(swapped, other, y)
    sign = np.array([-1, 1, -1, 1, 1, 1])
    assert abs(first[0]) > 0.1
    assert np.abs(second - sign * first).max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("draws", "rho"), [(1, 0.0), (1, 0.5), (4, 0.3)])
def test_false_discoveries_stay_within_the_level(draws: int, rho: float) -> None:
    level, repetitions, true = 0.2, 150, 15
    root = np.linalg.cholesky(autoregressive(60, rho))
    shares, powers = [], []
    for repetition in range(repetitions):
        draw = np.random.default_rng([5, repetition])
        x = draw.standard_normal((150, 60)) @ root.T
        at = draw.choice(60, true, replace=False)
        y = x[:, at] @ draw.choice([-0.6, 0.6], true) + draw.standard_normal(150)
        chosen, _ = select_by_knockoffs(x, y, level=level, draws=draws, seed=repetition)
        right = len(set(chosen.tolist()) & set(at.tolist()))
        shares.append((len(chosen) - right) / max(1, len(chosen)))
        powers.append(right / true)
    error = float(np.std(shares) / np.sqrt(repetitions))
    assert np.mean(shares) <= level + 2.0 * error
    print(f"draws {draws}, rho {rho}: false {np.mean(shares):.3f} ± {error:.3f}", np.mean(powers))
    # A filter that chooses nothing would pass the line above. Several draws need twice as many
    # columns before they choose any, which 15 true ones often do not give.
    assert np.mean(powers) > (0.4 if draws == 1 else 0.1)


def test_refusals() -> None:
    x, y = np.ones((4, 3)), np.arange(4.0)
    with pytest.raises(InvalidValue, match="level"):
        select_by_knockoffs(x, y, level=1.0)
    with pytest.raises(InvalidValue, match="draws"):
        select_by_knockoffs(x, y, draws=0)
