"""Warnings about columns that say too much, or nothing: the target again, an id, a constant.

They are remarks: nothing is left out. A column that is the target under another name makes every
test figure worthless, and only who made the table knows whether it is one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.prepare.category_column import CategoryColumn
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_column import NumberColumn
from gossamer.data.prepare.table_input import Column, TableInput

SAME = 0.9999
"""Correlation above which a column is taken for the target under another name."""
# Fewer rows are in order, or all different, by chance.
_LEAST_ROWS = 20


def leak_notes(inputs: TableInput, x: Tensor, y: Tensor, target: str) -> tuple[str, ...]:
    """What is suspicious in a training part, one sentence each.

    Args:
        inputs: How the table was prepared.
        x: Prepared inputs of the training part, float32 [N, features].
        y: Its targets: int64 [N] classes, or float32 [N] or [N, D].
        target: The target's name.
    """
    if len(x) < _LEAST_ROWS:
        return ()
    told = Findings()
    order = np.argsort(y.numpy(), kind="stable") if y.ndim == 1 else None
    for column, features in _by_column(inputs, x):
        if (features == features[0]).all():
            told.tell(column.name, "constant in the training part, and so of no use")
            continue
        same = None if order is None else _same_as_target(column, features, y.numpy(), order)
        if same is not None:
            way = "leave it out if it is the target under another name"
            told.tell(column.name, f"warning: {same} the target {target!r}; {way}")
        elif column.dtype == "int" and len(np.unique(features[:, 0])) == len(features):
            way = "leave it out if it is one"
            different = "a different whole number in every training row, as an id has"
            told.tell(column.name, f"warning: {different}; {way}")
    if y.ndim == 1 and y.is_floating_point() and bool((y == y[0]).all()):
        told.say(f"warning: the target {target!r} is constant in the training part")
    return told.sentences()


def _by_column(inputs: TableInput, x: Tensor) -> Iterator[tuple[Column, NDArray[np.float32]]]:
    start, values = 0, x.numpy()
    for column in inputs.columns:
        width = len(column.features)
        yield column, values[:, start : start + width]
        start += width


def _same_as_target(
    column: Column, features: NDArray[np.float32], y: NDArray[np.generic], order: NDArray[np.int64]
) -> str | None:
    """How a column repeats the target, or ``None``."""
    if np.issubdtype(y.dtype, np.integer):
        if isinstance(column, CategoryColumn):
            return _one_to_one(features.argmax(1), y)
        return _one_to_one(features[:, 0], y) if isinstance(column, NumberColumn) else None
    if not isinstance(column, NumberColumn) or y[order[0]] == y[order[-1]]:
        return None
    values = features[:, 0].astype(np.float64)
    steps, of_target = np.diff(values[order]), np.diff(y[order])
    # Equal targets must have equal values, or it is no function; then up or down throughout.
    is_function = not steps[of_target == 0].any()
    has_many_steps = np.count_nonzero(steps) * 2 > np.count_nonzero(of_target)
    if is_function and has_many_steps and ((steps >= 0).all() or (steps <= 0).all()):
        return "rises or falls throughout with"
    correlation = np.corrcoef(values, y.astype(np.float64))[0, 1]
    return f"has a correlation of {correlation:.6f} with" if abs(correlation) > SAME else None


def _one_to_one(values: NDArray[np.generic], y: NDArray[np.generic]) -> str | None:
    classes = len(np.unique(y))
    if len(np.unique(values[:_LEAST_ROWS])) > classes or classes < 2:
        return None
    pairs = set(zip(values.tolist(), y.tolist(), strict=True))
    if len(pairs) == classes == len(np.unique(values)):
        return "names exactly the classes of"
    return None
