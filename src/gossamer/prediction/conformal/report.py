"""What held-out rows saw: how often intervals held, before calibration and after."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.prediction.conformal.rank import exact, rank_of
from gossamer.prediction.conformal.real import RealCalibration

LEVELS = (0.5, 0.9, 0.95)


@dataclass(frozen=True)
class Coverage:
    """Of intervals of one level; where a target has several columns, of all together.

    Attributes:
        level: What they say.
        before: Share of rows in the uncalibrated Gaussian interval, mean ± std · z.
        held_out: Share of rows in the conformal interval of the *other* rows: a row is never judged
            by a factor that its own score set. Rows one at a time whose scores all differ give
            ⌈n · level⌉/n whatever the model, so only ``before`` and folds tell something about it;
            NaN where the other rows are too few.
        factor: Half the width of the conformal interval in predicted stds, mean over columns; NaN
            where rows are too few.
        spread: Std of the coverage of new rows about its mean, over the choice of n held-out rows:
            what so few rows can promise.
    """

    level: float
    before: float
    held_out: float
    factor: float
    spread: float


def coverage_report(
    z: Tensor,
    levels: tuple[float, ...] = LEVELS,
    *,
    kind: str = "symmetric",
    fold: Tensor | None = None,
) -> list[Coverage]:
    """Coverage on held-out or out-of-fold rows, each judged by others alone.

    Args:
        z: Standardised residuals ``[n]`` or ``[n, D]``, before any scaling.
        levels: Of the intervals.
        kind: ``symmetric`` or ``signed``, as in ``RealCalibration``.
        fold: ``[n]``: rows of a fold are judged by all other folds together; each row is a fold of
            its own if left out.

    Raises:
        InvalidData: Residuals or folds do not fit.

    Example:
        >>> for found in coverage_report(torch.linspace(-1, 1, 100), (0.5, 0.9)):
        ...     print(found.level, found.before, found.held_out)
        0.5 0.66 0.5
        0.9 1.0 0.9
    """
    own = RealCalibration.of(z, kind)
    columns = z.double().reshape(len(z), -1)
    if fold is not None and fold.shape != (len(z),):
        raise InvalidData("fold", tuple(fold.shape), f"must have the shape ({len(z)},)")
    found = []
    for level in levels:
        bound = torch.special.ndtri(torch.tensor(0.5 * (1.0 + level), dtype=torch.float64))
        count, rank = own.rows, rank_of(own.rows, level)
        found.append(
            Coverage(
                level=level,
                before=float((columns.abs() <= bound).double().mean()),
                held_out=_by_others(columns, level, kind, fold),
                factor=_half_width(own, level),
                spread=math.sqrt(rank * (count + 1 - rank) / ((count + 1) ** 2 * (count + 2))),
            )
        )
    return found


def _half_width(calibration: RealCalibration, level: float) -> float:
    ends = _ends(calibration, level)
    return math.nan if ends is None else 0.5 * float((ends[1] - ends[0]).mean())


def _by_others(columns: Tensor, level: float, kind: str, fold: Tensor | None) -> float:
    count = len(columns)
    if fold is None:
        return float(_left_out(columns, level, kind).double().mean()) if count > 1 else math.nan
    inside = []
    for number in sorted(set(fold.tolist())):
        judged = fold == number
        if bool(judged.all()):
            return math.nan
        ends = _ends(RealCalibration.of(columns[~judged], kind), level)
        if ends is None:
            return math.nan
        part = columns[judged].reshape(-1, *ends[0].shape)
        inside.append(((part >= ends[0]) & (part <= ends[1])).flatten())
    return float(torch.cat(inside).double().mean())


def _left_out(columns: Tensor, level: float, kind: str) -> Tensor:
    """Whether each row is inside the interval of all others, without fitting n of them.

    Score k of the others is score k of all if that stands before the row's own, else the next one.
    A row is at most score k of the others just where it is at most score k of all.
    """
    others = len(columns) - 1
    nan = torch.tensor(math.nan, dtype=torch.float64)
    wanted = exact(level)
    if kind == "symmetric":
        rank = rank_of(others, wanted)
        size = columns.abs()
        return size <= size.sort(0).values[rank - 1] if rank <= others else nan
    rank = rank_of(others, (1 + wanted) / 2)
    if rank > others:
        return nan
    ordered = columns.sort(0).values
    return (columns <= ordered[rank - 1]) & (columns >= ordered[-rank])


def _ends(calibration: RealCalibration, level: float) -> tuple[Tensor, Tensor] | None:
    """In predicted stds; ``None`` where rows are too few."""
    part = exact(level) if calibration.symmetric else (1 + exact(level)) / 2
    if rank_of(calibration.rows, part) > calibration.rows:
        return None
    zero = torch.zeros_like(calibration.scores[0])
    return calibration.interval(zero, zero + 1.0, level)
