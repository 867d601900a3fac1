"""Knockoffs (Candès, Fan, Janson and Lv, JRSS B 2018): false discoveries in a stated share.

A knockoff of a column looks like it to all other columns, but knows nothing of the target. Columns
that beat their knockoffs much more often than they lose to them are discoveries. Here columns are
taken to be jointly Gaussian with covariance Σ, and D = s I::

    cov(x, x̃) = [Σ, Σ - D; Σ - D, Σ]      x̃ | x  ~  N(x - x Σ⁻¹ D,  2D - D Σ⁻¹ D)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.linear_model import Lasso
from threadpoolctl import threadpool_limits

from gossamer.errors import InvalidValue
from gossamer.selection.spike_slab import Array, standardised


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A covariance that is one number times I but for some directions.

    Attributes:
        base: The eigenvalue of all other directions.
        vectors: Orthonormal columns [p, r].
        values: Their eigenvalues [r].
    """

    base: float
    vectors: Array
    values: Array

    @classmethod
    def shrunk(cls, x: Array) -> Spectrum:
        """(1 - ρ) XᵀX/n + ρ I of a standardised table [n, p], ρ by Ledoit and Wolf.

        In O(n² p) where columns are more than rows: the p × p matrix is never made.
        """
        rho = float(ledoit_wolf_shrinkage(x, assume_centered=True))
        _, singular, vectors = np.linalg.svd(x, full_matrices=False)
        # Standardised columns have trace p, so that the target of the shrinkage is I itself.
        return cls(max(rho, 1e-6), vectors.T, (1.0 - rho) * singular**2 / len(x) + max(rho, 1e-6))

    @property
    def smallest(self) -> float:
        """The least eigenvalue."""
        least = float(self.values.min())
        return least if self.values.size == len(self.vectors) else min(least, self.base)

    def times(self, x: Array, function: Callable[[Array], Array]) -> Array:
        """X f(Σ) of rows X [n, p]."""
        base = float(function(np.array([self.base]))[0])
        changed: Array = (
            base * x + ((x @ self.vectors) * (function(self.values) - base)) @ self.vectors.T
        )
        return changed


def gaussian_knockoffs(x: Array, spectrum: Spectrum, generator: np.random.Generator) -> Array:
    """Knockoffs [n, p] of rows x ~ N(0, Σ), with the same s for all columns: min(1, 2 λ_min)."""
    s = min(1.0, 2.0 * spectrum.smallest)
    noise = generator.standard_normal(x.shape)
    # Rounding can make the variance of the least direction, 0 at s = 2 λ_min, negative.
    spread = spectrum.times(noise, lambda v: np.sqrt(np.maximum(2.0 * s - s * s / v, 0.0)))
    return spectrum.times(x, lambda v: 1.0 - s / v) + spread


def knockoff_threshold(wins: Array, level: float) -> float:
    """The least t > 0 with (1 + #{W ≤ -t}) / #{W ≥ t} ≤ level; infinity if there is none."""
    for t in np.unique(np.abs(wins[wins != 0.0])):
        if (1 + int((wins <= -t).sum())) <= level * int((wins >= t).sum()):
            return float(t)
    return float("inf")


def lasso_wins(x: Array, copies: Array, y: Array) -> Array:
    """W [p]: |coefficient| of a column less that of its knockoff, in one Lasso of both.

    The penalty is √(2 log(2p)/n) times the noise, which is estimated along with the coefficients
    (the scaled Lasso of Sun and Zhang, 2012): a column and its knockoff are treated alike.
    """
    both = np.concatenate([x, standardised(copies)], axis=1)
    penalty = np.sqrt(2.0 * np.log(both.shape[1]) / len(y))
    noise, coefficients = float(y.std()), np.zeros(both.shape[1])
    for _ in range(20):
        lasso = Lasso(alpha=penalty * noise, fit_intercept=False, tol=1e-5, max_iter=10_000)
        coefficients = lasso.fit(both, y).coef_
        latest = float(np.sqrt(np.mean((y - both @ coefficients) ** 2)))
        if abs(latest - noise) <= 1e-3 * noise or latest == 0.0:
            break
        noise = latest
    own, other = np.split(np.abs(coefficients), 2)
    found: Array = own - other
    return found


def select_by_knockoffs(
    x: Array, y: Array, *, level: float = 0.1, draws: int = 1, seed: int = 0
) -> tuple[NDArray[np.int64], Array]:
    """Columns whose expected share of false ones is at most ``level``.

    One draw is the knockoff+ filter. Several are made into one choice by the e-values of Ren and
    Barber (JRSS B 2024), which keeps the guarantee and depends less on the seed. Fewer than
    1/level columns, with several draws 2/level, are never chosen: use it where many are true.

    Args:
        x: A table [n, p] whose rows are taken to be Gaussian.
        y: Target [n].
        level: The false discovery rate, in (0, 1).
        draws: Sets of knockoffs.
        seed: Of the knockoffs.

    Returns:
        The chosen columns, ascending; and the share of draws [p] in which each beat the threshold.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).standard_normal((200, 50))
        >>> y = x[:, :12].sum(1) + np.random.default_rng(1).standard_normal(200)
        >>> chosen, share = select_by_knockoffs(x, y, level=0.2)
        >>> set(range(12)) <= set(chosen.tolist())
        True
    """
    if not 0.0 < level < 1.0:
        raise InvalidValue("level", level, "must lie in (0, 1)")
    if draws < 1:
        raise InvalidValue("draws", draws, "must be at least 1")
    x = standardised(x)
    y = np.asarray(y, dtype=np.float64) - np.mean(y)
    size, generator = x.shape[1], np.random.default_rng(seed)
    evidence, share = np.zeros(size), np.zeros(size)
    if not y.any():
        return np.zeros(0, dtype=np.int64), share
    with threadpool_limits(1):  # as in spike_slab
        spectrum = Spectrum.shrunk(x)
        copies = [gaussian_knockoffs(x, spectrum, generator) for _ in range(draws)]
        contests = [lasso_wins(x, copy, y) for copy in copies]
    for wins in contests:
        t = knockoff_threshold(wins, level if draws == 1 else level / 2.0)
        won = wins >= t
        evidence += won * size / (1.0 + (wins <= -t).sum()) / draws
        share += won / draws
    if draws == 1:
        return np.flatnonzero(share > 0.0), share
    # e-BH: the largest k whose k-th largest e-value is at least p / (level k).
    ordered = np.sort(evidence)[::-1]
    enough = np.flatnonzero(ordered * level * np.arange(1, size + 1) >= size)
    if not enough.size:
        return np.zeros(0, dtype=np.int64), share
    return np.flatnonzero(evidence >= ordered[enough[-1]]), share
