"""Tables as network input: named columns in, standardised numbers, dates and categories out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.prepare.category_column import CategoryColumn
from gossamer.data.prepare.date_column import DateColumn
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_column import NumberColumn
from gossamer.data.prepare.rules import DEFAULT_RULES, TableRules
from gossamer.data.prepare.texts import Texts
from gossamer.data.prepare.values import Values, missing_in, recognise
from gossamer.errors import InvalidData

Columns = Mapping[str, Values]
Column = NumberColumn | CategoryColumn | DateColumn


def fit_column(
    name: str, values: Values, rows: NDArray[np.int64], rules: TableRules, findings: Findings
) -> Column:
    """Fits to one column whatever it holds.

    Args:
        name: Its name.
        values: The whole column, [N]: its kind is decided by all cells.
        rows: Row numbers of the training part, from which levels and scales come.
        rules: What is done to cells that are missing, new or ambiguous.
        findings: Is told what was done.
    """
    found = recognise(name, values, rules)
    if found.kind == "str":
        return CategoryColumn.fit(name, values, rows, rules, findings)
    if found.kind == "date":
        return DateColumn.fit(name, values, rows, found, rules, findings)
    return NumberColumn.fit(name, values, rows, found, rules, findings)


def _column_from_json(data: dict[str, Any]) -> Column:
    if data["dtype"] == "date":
        return DateColumn.from_json(data)
    if (data["dtype"] == "str") != (data["categories"] is not None):
        raise InvalidData(f"column {data['name']!r}", data["dtype"], "has categories if it is text")
    if data["dtype"] == "str":
        return CategoryColumn.from_json(data)
    return NumberColumn.from_json(data)


@dataclass(frozen=True)
class TableInput:
    """How named columns become network input; their order is the order of the features."""

    columns: tuple[Column, ...]
    kind: Literal["table"] = "table"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise InvalidData("columns", ", ".join(names), "must be at least one, each name once")

    @classmethod
    def fit(
        cls,
        columns: Columns,
        rows: NDArray[np.int64],
        rules: TableRules = DEFAULT_RULES,
        findings: Findings | None = None,
    ) -> TableInput:
        """Fits to a table without its target.

        Args:
            columns: All rows of each column, [N].
            rows: Row numbers of the training part; nothing else enters scales and levels.
            rules: What is done to cells that are missing, new or ambiguous.
            findings: Is told what was done to which column.
        """
        check_columns(columns)
        told = Findings() if findings is None else findings
        return cls(
            tuple(fit_column(name, values, rows, rules, told) for name, values in columns.items())
        )

    def prepare(
        self, raw: Columns | NDArray[Any], target: str, findings: Findings | None = None
    ) -> Tensor:
        """Turns raw rows into network input.

        Args:
            raw: A mapping of column names to [N] in any order, or an array [N, number of columns]
                in the order of training.
            target: Name of the target column, which a mapping may hold and which is ignored.
            findings: Is told of remarks, and of bad rows where it allows them; without it remarks
                are warnings.

        Returns:
            float32 [N, number of features].
        """
        told = Findings() if findings is None else findings
        columns = self._by_name(raw, target, told)
        encoded = [column.encode(columns[column.name], told) for column in self.columns]
        if findings is None:
            told.warn()
        return torch.from_numpy(np.concatenate(encoded, axis=1))

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.name for column in self.columns]

    @property
    def features(self) -> list[str]:
        """Names of the features, in order."""
        return [feature for column in self.columns for feature in column.features]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one prepared example, (number of features,)."""
        return (len(self.features),)

    def feature_name(self, index: tuple[int, ...]) -> str:
        """Names one value of an example, for messages."""
        return f"column {self.features[index[0]]!r}"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableInput:
        """Rebuilds from the values that ``Preparation.to_json`` gives."""
        return cls(tuple(_column_from_json(column) for column in data["columns"]))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"columns": [column.to_json() for column in self.columns], "kind": self.kind}

    def _by_name(self, raw: Columns | NDArray[Any], target: str, findings: Findings) -> Columns:
        if isinstance(raw, np.ndarray):
            if raw.ndim != 2 or raw.shape[1] != len(self.columns):
                raise InvalidData(
                    "table",
                    f"shape {raw.shape}",
                    f"must be [N, {len(self.columns)}], one column for each of training",
                    "the columns are " + ", ".join(self.names[:12]),
                )
            raw = {name: raw[:, i] for i, name in enumerate(self.names)}
        missing = [name for name in self.names if name not in raw]
        extra = [name for name in raw if name not in self.names and name != target]
        new = f"column {', '.join(map(repr, extra))} was not there in training"
        if missing:
            raise InvalidData(
                "columns",
                None,
                f"column {', '.join(map(repr, missing))} is missing" + f" and {new}" * bool(extra),
                "the run was trained on " + ", ".join(self.names),
            )
        if extra:
            findings.say(f"{new} and is ignored")
        chosen = {
            name: raw[name] if isinstance(raw[name], Texts) else np.asarray(raw[name])
            for name in self.names
        }
        check_columns(chosen)
        return chosen


def by_name(x: Columns | NDArray[Any]) -> Columns:
    """Columns as they are; those of an array [N, D] are called x0, x1, …."""
    if not isinstance(x, np.ndarray):
        return x
    return {f"x{i}": x[:, i] for i in range(x.shape[1])}


def complete_rows(columns: Columns) -> NDArray[np.bool_]:
    """Which rows of a table have no missing cell, [N]."""
    holes = np.stack([missing_in(name, values) for name, values in columns.items()])
    return np.asarray(~holes.any(axis=0))


def check_columns(columns: Columns) -> None:
    """Raises InvalidData for columns that are none, empty, not [N] or of different lengths."""
    if not columns:
        raise InvalidData("columns", None, "there is no column besides the target", "add some")
    first = next(iter(columns))
    for name, values in columns.items():
        if values.ndim != 1:
            raise InvalidData(f"column {name!r}", f"shape {values.shape}", "must be [N]")
        if len(values) != len(columns[first]):
            raise InvalidData(
                f"column {name!r}",
                f"{len(values)} rows",
                f"must have as many as column {first!r}: {len(columns[first])}",
            )
    if len(columns[first]) == 0:
        raise InvalidData("columns", None, "hold no row", "add rows")
