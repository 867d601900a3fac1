"""``PredictiveDistribution``: what a regressor believes of every row, as a mixture of Gaussians."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtr
from sklearn.utils import check_random_state

from gossamer.errors import InvalidData, InvalidValue
from gossamer.prediction import RealPrediction
from gossamer.prediction.conformal.real import RealCalibration

Array = NDArray[np.float64]

_HALF_LOG_TWO_PI = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True, eq=False)
class PredictiveDistribution:
    """The distribution of the target of N rows, in its own unit.

    A mixture of S Gaussians with equal shares: one for every posterior sample, or, where rows that
    members left out say how wide it is, around one mean and each of another width. Several outputs
    D are several such mixtures beside each other.

    Attributes:
        mean: [N] or [N, D].
        epistemic: Standard deviation that more data would remove, same shape.
        aleatoric: Standard deviation of the noise, same shape.
        means: Of each Gaussian, [S, N] or [S, N, D].
        stds: Of each Gaussian, same shape.
        calibration: What held-out rows say of ``interval``, ``quantile`` and ``cdf``
            (docs/conformal.md), or ``None``: then they are the mixture's own, as all else is.
        departures: How far the answers of M networks lie from ``mean`` in all rows at once, at the
            scale of ``epistemic``, [M, N] or [M, N, D]; ``None`` where ``means`` tell it.

    Example:
        >>> one = np.array([[0.0], [2.0]])
        >>> dist = PredictiveDistribution(one.mean(0), one.std(0), np.ones(1), one, np.ones((2, 1)))
        >>> dist.cdf([1.0]), dist.std.round(3)
        (array([0.5]), array([1.414]))
    """

    mean: Array
    epistemic: Array
    aleatoric: Array
    means: Array
    stds: Array
    calibration: RealCalibration | None = None
    departures: Array | None = None

    @property
    def std(self) -> Array:
        """Standard deviation of the target, [N] or [N, D]."""
        return np.hypot(self.epistemic, self.aleatoric)

    def logpdf(self, y: ArrayLike) -> Array:
        """Log-density at ``y``, which has the shape of ``mean``."""
        z = (self._target(y) - self.means) / self.stds
        terms = -0.5 * z**2 - np.log(self.stds) - _HALF_LOG_TWO_PI
        return np.asarray(logsumexp(terms, axis=0) - np.log(len(self.means)))

    def cdf(self, y: ArrayLike) -> Array:
        """Probability of a target no larger than ``y``, which has the shape of ``mean``."""
        target = self._target(y)
        if self.calibration is not None:
            z = torch.from_numpy((target - self.mean) / self.std)
            return np.asarray(self.calibration.cdf(z).numpy())
        return np.asarray(ndtr((target - self.means) / self.stds).mean(0))

    def quantile(self, q: float) -> Array:
        """The value that the target stays below with probability ``q``, [N] or [N, D].

        Raises:
            InvalidValue: ``q`` is not in (0, 1), or there were too few held-out rows for it.
        """
        if not 0.0 < q < 1.0:
            raise InvalidValue("q", q, "must lie in (0, 1)")
        if self.calibration is not None:
            mean, std = torch.from_numpy(self.mean), torch.from_numpy(self.std)
            return np.asarray(self.calibration.quantile(mean, std, q).numpy())
        # In units of each row's own: bisection then has the same relative accuracy everywhere.
        unit = self.std
        zero = torch.zeros(self.mean.shape, dtype=torch.float64)
        samples = torch.from_numpy((self.means - self.mean) / unit)
        noise = torch.from_numpy(self.stds / unit)
        found = RealPrediction(zero, zero, zero, samples, noise).quantile(float(q))
        return np.asarray(self.mean + unit * found.numpy())

    def interval(self, coverage: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper end of the central interval, [N] or [N, D] each."""
        if np.ndim(coverage):
            rule, hint = "must be one number in (0, 1)", "ask for one level after the other"
            raise InvalidValue("coverage", coverage, rule, hint)
        if not 0.0 < coverage < 1.0:
            raise InvalidValue("coverage", coverage, "must lie in (0, 1)", "0.9 is usual")
        if self.calibration is not None:
            mean, std = torch.from_numpy(self.mean), torch.from_numpy(self.std)
            lower, upper = self.calibration.interval(mean, std, coverage)
            return np.asarray(lower.numpy()), np.asarray(upper.numpy())
        tail = (1.0 - coverage) / 2.0
        return self.quantile(tail), self.quantile(1.0 - tail)

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score at ``y``, lower is better, [N] or [N, D].

        E|Y - y| - E|Y - Y'| / 2, in closed form for a mixture of Gaussians (Grimit et al. 2006).
        """
        first = _distance(self._target(y) - self.means, self.stds).mean(0)
        second = np.zeros_like(first)
        # One component at a time: [S, S, N] would not fit into memory.
        for mean, std in zip(self.means, self.stds, strict=True):
            second += _distance(mean - self.means, np.hypot(std, self.stds)).mean(0)
        return np.asarray(first - 0.5 * second / len(self.means))

    def sample(self, n: int = 1, random_state: Any = None) -> Array:
        """Draws of the target, [n, N] or [n, N, D]; each draw has one network for all rows.

        So rows of a draw err together as far as networks do, which a sum over rows or a choice of
        the best row needs.
        """
        if n < 1:
            raise InvalidValue("n", n, "must be at least 1")
        generator = check_random_state(random_state)
        networks = self.means if self.departures is None else self.departures
        chosen = generator.randint(len(networks), size=n)
        noise = generator.standard_normal((n, *self.mean.shape))
        if self.departures is None:
            return np.asarray(self.means[chosen] + self.stds[chosen] * noise)
        return np.asarray(self.mean + self.departures[chosen] + self.aleatoric * noise)

    def _target(self, y: ArrayLike) -> Array:
        target = np.asarray(y, dtype=np.float64)
        if target.shape != self.mean.shape:
            raise InvalidData("y", f"shape {target.shape}", f"must be {self.mean.shape}")
        return target


def _distance(mean: Array, std: Array) -> Array:
    """E|Y| of Y ~ N(mean, std²)."""
    z = mean / std
    density = np.exp(-0.5 * z**2 - _HALF_LOG_TWO_PI)
    return np.asarray(mean * (2.0 * ndtr(z) - 1.0) + 2.0 * std * density)
