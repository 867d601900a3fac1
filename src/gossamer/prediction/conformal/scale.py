"""The factor of the predicted std that standardised residuals ask for."""

from __future__ import annotations

import math

from torch import Tensor

from gossamer.errors import InvalidData

PRIOR_STD = 1.0
"""Of the log of the factor, about 0. It counts like half a residual: a hint for few rows only."""

_STEPS = 100


def std_factor(z: Tensor) -> float:
    """The factor s of std of the largest posterior: Gaussian residuals, log s ~ N(0, 1).

    n·log s + Σ z²/(2s²) + (log s)²/2 is smallest. With u = log s and q = mean z² its slope is
    n(1 - q·e^{-2u}) + u, which rises in u: one root, by bisection.

    Args:
        z: Standardised residuals of any shape, all of one factor.

    Returns:
        s > 0; near √(mean z²) for many residuals, towards 1 for few.

    Raises:
        InvalidData: All residuals are 0, or one is not finite.

    Example:
        >>> round(std_factor(torch.tensor([2.0] * 1000)), 3)
        1.999
    """
    count, square = z.numel(), float(z.double().square().mean())
    if not 0.0 < square < math.inf:
        raise InvalidData(
            "standardised residuals", square, "must be finite and not all 0: they have no spread"
        )

    def slope(u: float) -> float:
        return count * (1.0 - square * math.exp(-2.0 * u)) + u / PRIOR_STD**2

    # The root lies between that of the residuals and that of the prior.
    low, high = sorted((0.0, 0.5 * math.log(square)))
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0.0 else (low, middle)
    return math.exp(0.5 * (low + high))
