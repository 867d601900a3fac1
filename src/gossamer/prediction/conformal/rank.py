"""The one quantile that conformal guarantees rest on: a rank, never an interpolation.

If n held-out scores and a new one are exchangeable, the new one is at most the k-th smallest of the
n with probability k/(n + 1) or more, exactly that where no two are equal. So k = ⌈(n + 1)·coverage⌉
gives at least ``coverage``, and less than 1/(n + 1) beyond it.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue

_FINEST = 10**9
"""Denominators of coverages: 0.07 is 7/100, not the binary number beside it."""


def exact(probability: float | Fraction, name: str = "coverage") -> Fraction:
    """The fraction that a number between 0 and 1 stands for.

    Binary rounding must not move a rank: 100 · 0.07 is more than 7 in floating point.

    Raises:
        InvalidValue: It does not lie in (0, 1).

    Example:
        >>> exact(0.07)
        Fraction(7, 100)
    """
    if not 0.0 < probability < 1.0:
        raise InvalidValue(name, probability, "must lie in (0, 1)")
    found = Fraction(probability).limit_denominator(_FINEST)
    if not 0 < found < 1:
        raise InvalidValue(name, probability, f"must be {1 / _FINEST} or more away from 0 and 1")
    return found


def rank_of(count: int, coverage: float | Fraction) -> int:
    """The rank k = ⌈(n + 1)·coverage⌉, from 1 to n + 1; at n + 1 the quantile is infinite.

    Args:
        count: n, held-out scores.
        coverage: In (0, 1).
    """
    return math.ceil((count + 1) * exact(coverage))


def rows_needed(coverage: float | Fraction) -> int:
    """The fewest scores that have a finite quantile: 9 for 0.9, 19 for 0.95.

    Example:
        >>> rows_needed(0.9), rows_needed(0.95), rows_needed(0.99)
        (9, 19, 99)
    """
    wanted = exact(coverage)
    return math.ceil(wanted / (1 - wanted))


def conformal_quantile(scores: Tensor, coverage: float | Fraction) -> Tensor:
    """The k-th smallest score, k = ⌈(n + 1)·coverage⌉.

    Args:
        scores: ``[n, ...]``, each column by itself; in any order.
        coverage: In (0, 1).

    Returns:
        ``[...]``: a new score exceeds it with probability 1 - ``coverage`` at most.

    Raises:
        InvalidValue: There are too few scores; the message says how many are needed.
        InvalidData: A score is not finite.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), 0.9)
        tensor(9.)
    """
    ordered = ordered_scores(scores)
    return ordered[place_of(len(ordered), coverage)]


def ordered_scores(scores: Tensor) -> Tensor:
    """Scores ``[n, ...]`` from the smallest on, every column by itself.

    Raises:
        InvalidData: There is none, or one is not finite.
    """
    if scores.dim() < 1 or len(scores) < 1:
        raise InvalidData("scores", tuple(scores.shape), "must be [n, ...] with one row at least")
    if not bool(torch.isfinite(scores).all()):
        raise InvalidData("scores", None, "must be finite", "remove the rows, or mend the model")
    return scores.sort(0).values


def place_of(count: int, probability: float | Fraction, *, both_tails: bool = False) -> int:
    """Where the quantile stands among ``count`` ordered scores, counted from 0.

    Args:
        count: n.
        probability: In (0, 1).
        both_tails: Whether messages should speak of an interval with such a tail on each side.

    Raises:
        InvalidValue: There are too few scores.
    """
    wanted = exact(probability)
    found = rank_of(count, wanted)
    if found <= count:
        return found - 1
    asked, most = wanted, Fraction(count, count + 1)
    if both_tails:
        asked, most = 2 * wanted - 1, max(Fraction(0), 2 * most - 1)
    raise InvalidValue(
        "coverage",
        float(asked),
        f"needs {rows_needed(wanted)} held-out rows or more, and there are {count}: "
        "no finite interval is that sure",
        f"hold out more rows, or ask for {math.floor(most * 1000) / 1000} or less",
    )
