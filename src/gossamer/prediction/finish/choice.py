"""What held-out rows decide: a temperature, and with it the scale of a last layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

COLDEST, HOTTEST = 0.05, 20.0
"""Temperatures that are looked at."""

HOT_STD = 1.0
"""Of log T above 0 in the prior: few rows suffice to show that a network is too sure."""

SCALES = (0.0, *(2.0**step for step in range(-10, 1)))
"""Scales c that are looked at: none, and 0.001 to 1 in steps of 2, which is 1.4 of a deviation.

At 1 the Gaussian is that of the curvature. More would know less than the rows say: in trials only
the chance of some held-out rows chose it, and a lower temperature had to make up for it.
"""

HAIR = 5e-4
"""Nats by which a scale may be above temperature scaling alone: less than a test part can see."""

SURE = 2.0
"""Standard errors by which a scale must be known not to be worse than temperature scaling."""

_WORSE = 4.0
"""Standard errors above the best at which the search goes no further up."""

_GOLDEN = 0.5 * (3.0 - math.sqrt(5.0))


class Loss(Protocol):
    """Negative log-likelihood of every held-out row."""

    @property
    def cold_std(self) -> float:
        """Of log T below 0 before any row is seen, half a Gaussian; above it is ``HOT_STD``."""
        ...

    @property
    def count(self) -> int:
        """Targets that the rows hold."""
        ...

    def rows(self, temperature: float) -> Tensor:
        """Of the averaged prediction at a temperature, ``[n]``."""
        ...


def best_temperature(loss: Loss, around: float | None = None) -> float:
    """The temperature of the highest posterior density, to 1e-6 of itself; bounded.

    log T has a prior, half a Gaussian on either side of 0. Some hundred rows that a network gets
    all right would ask for T = 0, whatever its confidence is worth: the likelihood has no maximum
    there. So more confidence than the network's own needs evidence; a thousand rows do not see it.

    Args:
        loss: Of held-out rows.
        around: A guess that is likely to be near: then to 2e-3 only.
    """

    def mean(log_temperature: float) -> float:
        std = loss.cold_std if log_temperature < 0.0 else HOT_STD
        prior = 0.5 * (log_temperature / std) ** 2 / loss.count
        return float(loss.rows(math.exp(log_temperature)).mean()) + prior

    low, high = math.log(COLDEST), math.log(HOTTEST)
    if around is not None:
        near = math.log(around)
        found = minimise(mean, max(low, near - 0.3), min(high, near + 0.3), 2e-3)
        if abs(found - near) < 0.28:
            return math.exp(found)
    return math.exp(minimise_over(mean, low, high, parts=12))


def best_scale(loss_at: Callable[[float], Loss], tolerance: float) -> float:
    """The scale of a last layer, the temperature refined for each.

    Scale 0 is temperature scaling alone. A scale is safe if its loss is above that one's by no more
    than ``HAIR``, even ``SURE`` standard errors to the worse: where rows are few they cannot vouch
    for a wide last layer. Of the safe scales one has the lowest mean loss; held-out rows cannot
    tell it from others whose losses, row by row, differ by less than their standard error. Of those
    the largest is taken, because a wider last layer knows foreign inputs better. So where a last
    layer does not pay on known inputs it is narrow, and yet its mutual information ranks foreign
    ones.

    Args:
        loss_at: The loss at a scale.
        tolerance: Standard errors within which losses count as alike; 0 takes the lowest.
    """
    losses: dict[float, Tensor] = {}
    near: float | None = None
    lowest = SCALES[0]
    for scale in SCALES:
        loss = loss_at(scale)
        near = best_temperature(loss, near)
        losses[scale] = loss.rows(near).double()
        above = float(losses[scale].mean() - losses[lowest].mean())
        if above < 0.0:
            lowest = scale
        elif above > HAIR and _excess(losses[scale], losses[lowest]) > max(_WORSE, tolerance):
            break
    alone = losses[0.0]
    safe = {scale: rows for scale, rows in losses.items() if _at_worst(rows, alone) <= HAIR}
    best = min(safe.values(), key=lambda rows: float(rows.mean()))
    return max(
        scale
        for scale, rows in safe.items()
        if float(rows.mean() - best.mean()) <= HAIR or _excess(rows, best) <= tolerance
    )


def _at_worst(rows: Tensor, alone: Tensor) -> float:
    """How far the mean of ``rows`` may be above that of ``alone``."""
    difference = rows - alone
    return float(difference.mean()) + SURE * float(difference.std()) / math.sqrt(len(rows))


def _excess(rows: Tensor, best: Tensor) -> float:
    """How far the mean of ``rows`` is above that of ``best``, in standard errors, row by row."""
    difference = rows - best
    error = float(difference.std()) / math.sqrt(len(rows))
    mean = float(difference.mean())
    return mean / error if error > 0.0 else (math.inf if mean > 0.0 else 0.0)


def minimise_over(f: Callable[[float], float], low: float, high: float, *, parts: int) -> float:
    """The minimum of ``f`` next to the lowest of ``parts`` + 1 even points, to 1e-6."""
    points = [low + (high - low) * number / parts for number in range(parts + 1)]
    values = [f(point) for point in points]
    place = min(range(len(points)), key=values.__getitem__)
    found = minimise(f, points[max(0, place - 1)], points[min(parts, place + 1)], 1e-6)
    return found if f(found) < values[place] else points[place]


def minimise(f: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """The minimum of a function with one valley between two points, by Brent's method.

    Parabolas through the three lowest points, golden sections where those do not help.
    """
    best = second = third = low + _GOLDEN * (high - low)
    f_best = f_second = f_third = f(best)
    step = before = 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if abs(best - middle) <= 2.0 * tolerance - 0.5 * (high - low):
            break
        r = (best - second) * (f_best - f_third)
        q = (best - third) * (f_best - f_second)
        p = (best - third) * q - (best - second) * r
        q = 2.0 * (q - r)
        p, q = (-p, q) if q > 0.0 else (p, -q)
        before, last = step, before
        if abs(p) < abs(0.5 * q * last) and q * (low - best) < p < q * (high - best):
            step = p / q
            if best + step - low < 2.0 * tolerance or high - best - step < 2.0 * tolerance:
                step = math.copysign(tolerance, middle - best)
        else:
            before = (high if best < middle else low) - best
            step = _GOLDEN * before
        point = best + (step if abs(step) >= tolerance else math.copysign(tolerance, step))
        value = f(point)
        if value <= f_best:
            low, high = (low, best) if point < best else (best, high)
            second, third, best = best, second, point
            f_second, f_third, f_best = f_best, f_second, value
        else:
            low, high = (point, high) if point < best else (low, point)
            if value <= f_second or second == best:
                second, third, f_second, f_third = point, second, value, f_second
            elif value <= f_third or third in (best, second):
                third, f_third = point, value
    return best
