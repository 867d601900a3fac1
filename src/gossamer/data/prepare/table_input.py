"""Tables as network input: named columns in, standardised numbers and one-hot categories out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.prepare.target import standardisation
from gossamer.data.prepare.values import Kind, as_numbers, as_texts, kind_of
from gossamer.errors import InvalidData

Columns = Mapping[str, NDArray[Any]]

# One-hot code of more categories than this is an identifier or free text, not a category.
MAX_CATEGORIES = 1000


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its name.
        dtype: ``"int"``, ``"float"`` or ``"str"`` (a category).
        mean: Mean over the training part (numbers).
        scale: Standard deviation over the training part, 1 where it is constant (numbers).
        categories: Known categories, sorted; ``None`` for numbers.
    """

    name: str
    dtype: Kind
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.dtype == "str") != (self.categories is not None):
            raise InvalidData(f"column {self.name!r}", self.dtype, "has categories if it is text")
        if not (np.isfinite([self.mean, self.scale]).all() and self.scale > 0):
            raise InvalidData(
                f"column {self.name!r}",
                f"mean {self.mean}, scale {self.scale}",
                "needs a finite mean and a positive scale",
                "check the column for huge values",
            )

    @classmethod
    def fit(cls, name: str, values: NDArray[Any], rows: NDArray[np.int64]) -> Column:
        """Fits to one column.

        Args:
            name: Its name.
            values: The whole column, [N]: its kind and its categories are the table's vocabulary,
                and a cell that cannot be read is an error in whatever part it lies.
            rows: Row numbers of the training part; nothing else enters mean and scale.
        """
        dtype = kind_of(name, values)
        if dtype != "str":
            mean, scale = standardisation(as_numbers(name, values)[rows])
            return cls(name, dtype, mean, scale)
        categories = tuple(sorted(set(as_texts(name, values))))
        if len(categories) > MAX_CATEGORIES:
            raise InvalidData(
                f"column {name!r}",
                f"{len(categories)} distinct texts",
                f"a category column has at most {MAX_CATEGORIES}",
                "remove the column",
            )
        return cls(name, dtype, categories=categories)

    def encode(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Turns raw values [N] into float32 features, [N, 1] or one-hot [N, categories]."""
        if self.categories is None:
            numbers = as_numbers(self.name, values)
            with np.errstate(over="ignore"):
                scaled = ((numbers - self.mean) / self.scale).astype(np.float32)
            bad = np.flatnonzero(~np.isfinite(scaled))
            if bad.size:
                raise InvalidData(
                    f"column {self.name!r}, row {int(bad[0])}",
                    str(numbers[bad[0]]),
                    "is too large for float32",
                    "correct the cell",
                )
            return scaled[:, None]
        index = {category: i for i, category in enumerate(self.categories)}
        codes = np.zeros(len(values), dtype=np.int64)
        for row, text in enumerate(as_texts(self.name, values)):
            if text not in index:
                raise InvalidData(
                    f"column {self.name!r}, row {row}",
                    text,
                    "is a category that training never saw",
                    "known: " + ", ".join(self.categories[:12]),
                )
            codes[row] = index[text]
        return np.eye(len(self.categories), dtype=np.float32)[codes]

    @property
    def features(self) -> list[str]:
        """Names of the features it becomes."""
        if self.categories is None:
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Column:
        """Rebuilds from the values that ``Preparation.to_json`` gives."""
        categories = data["categories"]
        if data["dtype"] not in ("int", "float", "str"):
            raise InvalidData(
                f"column {data['name']!r}", data["dtype"], "must be int, float or str"
            )
        return cls(
            str(data["name"]),
            data["dtype"],
            float(data["mean"]),
            float(data["scale"]),
            None if categories is None else tuple(map(str, categories)),
        )


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
    def fit(cls, columns: Columns, rows: NDArray[np.int64]) -> TableInput:
        """Fits to a table without its target.

        Args:
            columns: All rows of each column, [N].
            rows: Row numbers of the training part; nothing else enters the scaling.
        """
        check_columns(columns)
        return cls(tuple(Column.fit(name, values, rows) for name, values in columns.items()))

    def prepare(self, raw: Columns | NDArray[Any], target: str) -> Tensor:
        """Turns raw rows into network input.

        Args:
            raw: A mapping of column names to [N] in any order, or an array [N, number of columns]
                in the order of training.
            target: Name of the target column, which a mapping may hold and which is ignored.

        Returns:
            float32 [N, number of features].
        """
        columns = self._by_name(raw, target)
        return torch.from_numpy(
            np.concatenate([column.encode(columns[column.name]) for column in self.columns], axis=1)
        )

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
        return cls(tuple(Column.from_json(column) for column in data["columns"]))

    def _by_name(self, raw: Columns | NDArray[Any], target: str) -> Columns:
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
        if missing or extra:
            said = [f"column {', '.join(map(repr, missing))} is missing"] if missing else []
            said += [f"column {', '.join(map(repr, extra))} was not there in training"] * bool(
                extra
            )
            raise InvalidData(
                "columns",
                None,
                " and ".join(said),
                "the run was trained on " + ", ".join(self.names),
            )
        chosen = {name: np.asarray(raw[name]) for name in self.names}
        check_columns(chosen)
        return chosen


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
