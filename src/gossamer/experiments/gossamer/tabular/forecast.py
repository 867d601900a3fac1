"""``Forecast``: what a contender says of test rows, and the figures that judge it.

NLL and CRPS are of the normal distribution with the contender's mean and standard deviation: one
measure for all. Coverage and width are of the intervals that a contender itself gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from gossamer.errors import InvalidData

Array = NDArray[np.float64]

LEVELS = (0.5, 0.9, 0.95)


@dataclass(frozen=True, eq=False)
class Forecast:
    """The answer for N rows, in the target's unit.

    Attributes:
        mean: ``[N]``.
        std: ``[N]``.
        intervals: By level of ``LEVELS``: lower and upper, ``[N]`` each.
    """

    mean: Array
    std: Array
    intervals: Mapping[float, tuple[Array, Array]]

    @classmethod
    def normal(cls, mean: Array, std: Array) -> Forecast:
        """With the central intervals of normal distributions.

        Example:
            >>> found = Forecast.normal(np.zeros(2), np.ones(2))
            >>> [round(float(end[0]), 2) for end in found.intervals[0.9]]
            [-1.64, 1.64]
        """
        half = {level: norm.ppf(0.5 * (1.0 + level)) * std for level in LEVELS}
        return cls(mean, std, {level: (mean - h, mean + h) for level, h in half.items()})

    @classmethod
    def of_quantiles(cls, mean: Array, intervals: Mapping[float, tuple[Array, Array]]) -> Forecast:
        """From intervals alone: the std is that of a normal distribution of the same 90 %."""
        lower, upper = intervals[0.9]
        width = np.maximum(upper - lower, 1e-9 * max(1.0, float(np.abs(mean).max())))
        return cls(mean, width / (2.0 * norm.ppf(0.95)), intervals)

    def figures(self, y: Array) -> dict[str, float]:
        """RMSE, NLL, CRPS; coverage of every level, width of 90 %.

        Raises:
            InvalidData: An answer is not finite, or a std is not positive.
        """
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all()):
            raise InvalidData("forecast", None, "must be finite in every row")
        if not (self.std > 0.0).all():
            raise InvalidData("std of the forecast", float(self.std.min()), "must be positive")
        z = (y - self.mean) / self.std
        found = {
            "rmse": float(np.sqrt(np.mean((y - self.mean) ** 2))),
            "nll": float(np.mean(0.5 * z**2 + np.log(self.std) + 0.5 * np.log(2.0 * np.pi))),
            "crps": float(np.mean(self.std * _standard_crps(z))),
        }
        for level, (lower, upper) in self.intervals.items():
            found[f"coverage_{round(100 * level)}"] = float(np.mean((lower <= y) & (y <= upper)))
        found["width"] = float(np.mean(self.intervals[0.9][1] - self.intervals[0.9][0]))
        return found


def _standard_crps(z: Array) -> Array:
    """CRPS of a standard normal distribution at z (Gneiting & Raftery 2007, Eq. 5)."""
    return np.asarray(z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / np.sqrt(np.pi))
