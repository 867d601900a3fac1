"""Tables with more columns than their rows can tell apart: the network reads those that matter."""

from __future__ import annotations

from typing import Any

from gossamer.data import DataSet
from gossamer.selection import Selection, is_wide, screen

_LEAST_ROWS = 10
"""Rows below which columns cannot be compared."""


def screened(dataset: DataSet, seed: int) -> Selection | None:
    """The columns that matter for the training rows; ``None`` where the table is not wide.

    Held-out rows, and those of the test, have no say.

    Args:
        dataset: Prepared.
        seed: Of what the screening draws.
    """
    rows = dataset.num_train
    if len(dataset.input_shape) != 1 or rows < _LEAST_ROWS:
        return None
    if not is_wide(rows, dataset.input_shape[0]):
        return None
    return screen(dataset.x_train, dataset.y_train, dataset.task, seed)


def options_of(selection: Selection | None) -> dict[str, Any]:
    """Options of an ``mlp`` that reads the chosen columns, with a linear way past its layers."""
    if selection is None or selection.is_whole:
        return {}
    return {"columns": list(selection.inputs), "skip": True}


def told(selection: Selection) -> str:
    """What was chosen, in a sentence."""
    count, whole = len(selection.inputs), selection.num_columns
    which = "all" if selection.is_whole else f"{count} of {whole:,}"
    return f"wide table: the network reads {which} features; {selection.reason}"
