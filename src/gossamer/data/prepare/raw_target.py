"""The target taken out of a table: which rows have one, and money and per cent as numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.number_style import PLAIN
from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.values import Values, missing_in, recognise
from gossamer.errors import InvalidData


class RawTarget(NamedTuple):
    """A target column of a table as an array.

    Attributes:
        values: Numbers, or an object array of ``str``, [N]. A row without a target holds that of
            another row, so that rows keep their numbers, and belongs to no part.
        rows: Numbers of the rows that have a target.
        notes: What was done, one sentence each.
    """

    values: NDArray[Any]
    rows: NDArray[np.int64]
    notes: tuple[str, ...]


def raw_target(name: str, column: Values, rules: TableRules) -> RawTarget:
    """Takes the target out of a table: rows without one are told, money and per cent are numbers.

    Args:
        name: The target's name.
        column: The column, [N].
        rules: What was told of ambiguous cells.
    """
    missing = missing_in(name, column)
    rows = np.flatnonzero(~missing)
    notes: list[str] = []
    if not rows.size:
        raise InvalidData(f"target {name!r}", None, "is missing in every row", "check the column")
    if missing.any():
        lost = int(missing.sum())
        notes.append(f"{lost} of {len(missing)} rows have no target {name!r} and are left out")
    found = recognise(name, column, rules)
    if isinstance(column, np.ndarray):
        values = column.copy()
    elif found.kind in ("int", "float"):
        if found.style != PLAIN:
            notes.append(f"target {name!r}: numbers are read as {found.style.sample}")
        values = found.style.read(column)[0].copy()
    else:
        values = np.asarray(column)
    values[missing] = values[rows[0]]
    if found.kind == "int" and values.dtype.kind == "f" and np.abs(values).max() < 2**53:
        values = values.astype(np.int64)
    return RawTarget(values, rows, tuple(notes))
