"""Preparation: how raw values become tensors, and how outputs become labels or original units."""

from __future__ import annotations

from gossamer.data.prepare.category_column import CategoryColumn
from gossamer.data.prepare.date_column import DateColumn
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.image_input import ImageInput
from gossamer.data.prepare.number_column import NumberColumn
from gossamer.data.prepare.preparation import Preparation, fit_preparation
from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.table_input import Column, Columns, TableInput
from gossamer.data.prepare.target import ClassTarget, Target, Task, ValueTarget
from gossamer.data.prepare.texts import Texts

__all__ = [
    "CategoryColumn",
    "ClassTarget",
    "Column",
    "Columns",
    "DateColumn",
    "Findings",
    "ImageInput",
    "NumberColumn",
    "Preparation",
    "TableInput",
    "TableRules",
    "Target",
    "Task",
    "Texts",
    "ValueTarget",
    "fit_preparation",
]
