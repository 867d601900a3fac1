"""Spike-and-slab regression: the posterior probability that a column is in a linear model.

Of a target y [n], centred, and features X [n, m], centred and of variance 1, with γ the set of
features in the model and k its size::

    y | β, σ²  ~  N(X_γ β_γ, σ² I)        β_γ | σ²  ~  N(0, σ² τ² I)        p(σ²) ∝ 1/σ²
    p(γ) = B(1 + k, m + m - k) / B(1, m)   a uniform-like chance that itself has a Beta(1, m) law
    log p(y | γ) = -½ log|I + τ² X_γᵀX_γ| - (n-1)/2 log(yᵀy - yᵀX_γ (X_γᵀX_γ + τ⁻²I)⁻¹ X_γᵀy) + c

β and σ² are gone, so that what is left is a law over sets. It is sampled by the weighted tempered
Gibbs sampler (Zanella and Roberts, JRSS B 2019): every step computes the odds of all m features
at once, flips one that is likely to flip, and weighs the state by how long it would have stayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import betaln, expit
from threadpoolctl import threadpool_limits

from gossamer.errors import InvalidValue

Array = NDArray[np.float64]
Groups = NDArray[np.int64]

SLABS = (0.3, 3.0, 30.0, 300.0)
"""Candidates for τ²; the one under which the best model found is likeliest is taken."""
MOST_FEATURES = 60
"""No model holds more, nor more than a third of the rows: larger ones are left out of the prior."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What the posterior over sets depends on.

    Attributes:
        x: Features [n, m], centred, each of mean square 1 or all 0.
        y: Target [n], centred.
        slab: τ².
        most: The largest number of features in a model.
    """

    x: Array
    y: Array
    slab: float
    most: int

    @property
    def size(self) -> int:
        """m, the number of features."""
        return int(self.x.shape[1])

    def log_prior(self, count: int) -> float:
        """Logarithm of p(γ) of a set of ``count`` features."""
        return float(betaln(1 + count, 2 * self.size - count) - betaln(1, self.size))


class Models:
    """Odds of all features given the rest of a set, with the products that sets share kept."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._xy = problem.x.T @ problem.y
        self._yy = float(problem.y @ problem.y)
        self._squares = np.einsum("ij,ij->j", problem.x, problem.x)
        self._products: dict[int, Array] = {}

    def log_odds(self, chosen: list[int]) -> tuple[Array, float]:
        """What a feature adds to the log posterior, given the others of a set.

        Args:
            chosen: The set γ.

        Returns:
            Log odds of being in rather than out, [m]: -inf where the set is as large as it may be,
            and for a feature without variance; and the set's log posterior, but for a constant.
        """
        problem, count = self.problem, len(chosen)
        ridge = 1.0 / problem.slab
        rows = np.array([self._row(j) for j in chosen]).reshape(count, problem.size)
        inner = rows[:, chosen] + ridge * np.eye(count)
        lower = np.linalg.cholesky(inner)
        half = solve_triangular(lower, rows, lower=True)
        projected = solve_triangular(lower, self._xy[chosen], lower=True)
        rest = self._rest(self._yy - float(projected @ projected))
        half_dof = 0.5 * (len(problem.y) - 1)
        # One more: the Schur complement of its column, and what is left of the residual.
        scale = np.maximum(self._squares + ridge - np.einsum("ij,ij->j", half, half), ridge)
        gain = (self._xy - projected @ half) ** 2 / scale
        after = np.maximum(rest - gain, self._floor)
        odds = -0.5 * np.log(problem.slab * scale) - half_dof * (np.log(after) - np.log(rest))
        odds += problem.log_prior(count + 1) - problem.log_prior(count)
        if count >= problem.most:
            odds[:] = -np.inf
        odds[self._squares == 0.0] = -np.inf
        if count:
            # One less: by the diagonal of the inverse and the coefficient.
            inverse = solve_triangular(lower, np.eye(count), lower=True)
            inverse = inverse.T @ inverse
            spread = np.diag(inverse)
            without = rest + (inverse @ self._xy[chosen]) ** 2 / spread
            odds[chosen] = (
                0.5 * np.log(spread / problem.slab)
                - half_dof * (np.log(rest) - np.log(without))
                + problem.log_prior(count)
                - problem.log_prior(count - 1)
            )
        height = -np.log(np.diag(lower)).sum() - 0.5 * count * np.log(problem.slab)
        height += problem.log_prior(count) - half_dof * np.log(rest)
        return odds, float(height)

    @property
    def _floor(self) -> float:
        # The residual is positive in exact arithmetic; rounding must not make it less.
        return 1e-13 * self._yy

    def _rest(self, value: float) -> float:
        return max(value, self._floor)

    def _row(self, feature: int) -> Array:
        if feature not in self._products:
            self._products[feature] = self.problem.x[:, feature] @ self.problem.x
        return self._products[feature]


def best_slab(x: Array, y: Array, most: int) -> tuple[Problem, list[int], float]:
    """The slab under which the best set on a forward path is likeliest, and that set.

    Returns:
        The problem with that τ², the set, and its log posterior.
    """
    best: tuple[Problem, list[int], float] | None = None
    for slab in SLABS:
        problem = Problem(x, y, slab, most)
        chosen, height = forward(Models(problem))
        if best is None or height > best[2]:
            best = (problem, chosen, height)
    assert best is not None
    return best


def forward(models: Models) -> tuple[list[int], float]:
    """Add or drop the feature that raises the posterior most, while one does."""
    chosen: list[int] = []
    while True:
        odds, height = models.log_odds(chosen)
        change = odds.copy()
        change[chosen] *= -1.0
        place = int(np.argmax(change))
        if not change[place] > 1e-9:
            return chosen, height
        _flip(chosen, place)


def posterior_inclusion(
    x: Array,
    y: Array,
    *,
    groups: Groups | None = None,
    slab: float | None = None,
    steps: int = 1000,
    seed: int = 0,
) -> Array:
    """The posterior probability of each group of features to have one in the model.

    Args:
        x: Features [n, m]; they are centred and scaled to variance 1 here.
        y: Target [n]; centred here.
        groups: Which group each feature belongs to, int64 [m], from 0 without a gap; by default
            each is its own.
        slab: τ², the variance of a coefficient over that of the noise; by default chosen from the
            data among ``SLABS``.
        steps: Of the sampler; its start, the best set of a forward search, is likely already.
        seed: Of the sampler.

    Returns:
        Probabilities [groups]: Rao-Blackwell averages over the visited sets.

    Raises:
        InvalidValue: Shapes that do not fit, or a slab that is not positive.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).standard_normal((100, 30))
        >>> y = 2.0 * x[:, 3] - x[:, 7] + 0.5 * np.random.default_rng(1).standard_normal(100)
        >>> np.flatnonzero(posterior_inclusion(x, y) > 0.5).tolist()
        [3, 7]
    """
    x, y = standardised(x), np.asarray(y, dtype=np.float64)
    if y.shape != (len(x),):
        raise InvalidValue("y", y.shape, f"must have one number for each row of x: ({len(x)},)")
    if steps < 1:
        raise InvalidValue("steps", steps, "must be at least 1")
    if slab is not None and not slab > 0.0:
        raise InvalidValue("slab", slab, "must be positive")
    groups = np.arange(x.shape[1]) if groups is None else np.asarray(groups)
    if groups.shape != (x.shape[1],):
        raise InvalidValue("groups", groups.shape, f"must name a group per feature: {x.shape[1:]}")
    y = y - y.mean()
    if not y.any():  # a constant is explained by nothing
        return np.zeros(int(groups.max()) + 1)
    most = max(1, min(MOST_FEATURES, len(y) // 3, x.shape[1]))
    # The products are small: several threads take many times as long as one on a busy machine.
    with threadpool_limits(1):
        if slab is None:
            problem, chosen, _ = best_slab(x, y, most)
        else:
            problem = Problem(x, y, slab, most)
            chosen, _ = forward(Models(problem))
        return _sampled(Models(problem), chosen, groups, steps, np.random.default_rng(seed))


def standardised(x: Array) -> Array:
    """Columns of mean 0 and variance 1, float64; constant ones as zeros."""
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or 0 in x.shape:
        raise InvalidValue("x", x.shape, "must be a table [rows, columns] with both")
    centred = x - x.mean(0)
    spread = np.sqrt((centred**2).mean(0))
    # What rounding leaves of a constant is no information.
    constant = spread <= 1e-9 * np.abs(x).max(0)
    found: Array = np.where(constant, 0.0, centred / np.where(constant, 1.0, spread))
    return found


def _sampled(
    models: Models, chosen: list[int], groups: Groups, steps: int, generator: np.random.Generator
) -> Array:
    chosen, size = list(chosen), models.problem.size
    members = np.bincount(groups)
    total, mass = np.zeros(len(members)), 0.0
    for _ in range(steps):
        odds, _ = models.log_odds(chosen)
        chance = expit(odds)
        state = np.zeros(size, dtype=bool)
        state[chosen] = True
        # η / p(γ_j | rest), with η = p(γ_j = 1 | rest) + 1/m so that features out of the model are
        # tried as often as they deserve, and none never. -inf odds: never moved.
        stay = np.where(state, chance, expit(-odds))
        rate = (chance + 1.0 / size) / np.maximum(stay, 1e-300)
        rate[np.isneginf(odds)] = 0.0
        sum_of_rates = float(rate.sum())
        if sum_of_rates == 0.0:  # nothing may enter: the empty set is all there is
            return np.zeros(len(members))
        weight = 1.0 / sum_of_rates
        total += weight * _group_chance(chance, state, groups, members)
        mass += weight
        place = int(generator.choice(size, p=rate / sum_of_rates))
        _flip(chosen, place)
    return np.clip(total / mass, 0.0, 1.0)


def _group_chance(
    chance: Array, state: NDArray[np.bool_], groups: Groups, members: Groups
) -> Array:
    """The chance that a group has a feature in the model, given all but one, over that one."""
    inside = np.bincount(groups, weights=state, minlength=len(members))
    others = inside[groups] - state > 0
    each = np.where(others, 1.0, chance)
    return np.bincount(groups, weights=each, minlength=len(members)) / members


def _flip(chosen: list[int], place: int) -> None:
    if place in chosen:
        chosen.remove(place)
    else:
        chosen.append(place)
