"""Figures over repeated runs: the mean and its standard error. No torch: reports use it too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A mean over runs.

    Attributes:
        mean: The mean.
        standard_error: s / √n with the n − 1 form of s; ``None`` for one run.
        n: Number of runs that have the value.
    """

    mean: float
    standard_error: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The estimate from the values of independent runs, at least one."""
        numbers = np.asarray(values, dtype=np.float64)
        n = len(numbers)
        if n > 1 and bool((numbers == numbers[0]).all()):  # exact: a sum would round
            return cls(float(numbers[0]), 0.0, n)
        error = float(numbers.std(ddof=1) / math.sqrt(n)) if n > 1 else None
        return cls(float(numbers.mean()), error, n)
