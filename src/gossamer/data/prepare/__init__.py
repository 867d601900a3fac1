"""Preparation: how raw values become tensors, and how outputs become labels or original units."""

from __future__ import annotations

from gossamer.data.prepare.image_input import ImageInput
from gossamer.data.prepare.preparation import Preparation, fit_preparation
from gossamer.data.prepare.table_input import Column, Columns, TableInput
from gossamer.data.prepare.target import ClassTarget, Target, Task, ValueTarget

__all__ = [
    "ClassTarget",
    "Column",
    "Columns",
    "ImageInput",
    "Preparation",
    "TableInput",
    "Target",
    "Task",
    "ValueTarget",
    "fit_preparation",
]
