"""Arrays or columns of up to three parts, checked against each other and joined into a RawData."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gossamer.data.build import RawData
from gossamer.data.prepare.table_input import Columns, check_columns
from gossamer.data.prepare.target import Task
from gossamer.data.prepare.texts import concatenated
from gossamer.data.prepare.values import Values as Column
from gossamer.data.prepare.values import as_numbers
from gossamer.data.readers.frames import column_of, columns_of, is_frame
from gossamer.errors import InvalidData


@runtime_checkable
class Table(Protocol):
    """Columns by name: a mapping, or a data frame of any make."""

    def keys(self) -> Iterable[Any]:
        """Names of the columns."""

    def __getitem__(self, name: str, /) -> Any:
        """One column, [N]."""


Values = ArrayLike | Tensor
Inputs = Table | Values
"""Raw inputs as somebody holds them."""


class Part(NamedTuple):
    """Raw inputs and targets of one part, and what messages call them.

    Attributes:
        x_name: What messages call the inputs.
        y_name: What messages call the targets.
        x: Columns by name, or an array: [N, D], [N, H, W], [N, C, H, W] or [N, H, W, C].
        y: Raw target, [N] or [N, D].
    """

    x_name: str
    y_name: str
    x: Columns | NDArray[Any]
    y: NDArray[Any]


def optional_part(x_name: str, y_name: str, x: Inputs | None, y: Values | None) -> Part | None:
    """The part of these values; ``None`` where there are none, an error where one half is missing.

    Args:
        x_name: What messages call the inputs.
        y_name: What messages call the targets.
        x: Raw inputs.
        y: Raw targets.
    """
    if x is None and y is None:
        return None
    if x is None or y is None:
        missing = x_name if x is None else y_name
        raise InvalidData(missing, None, "is missing though its partner is there", "add it")
    return Part(x_name, y_name, raw_inputs(x_name, x), raw_values(y))


def raw_inputs(name: str, x: Inputs) -> Columns | NDArray[Any]:
    """Inputs of any sort as an array or as columns by name."""
    if is_frame(x):
        return columns_of(x, name)
    if not isinstance(x, Table):
        return raw_values(x)
    columns: dict[str, Column] = {}
    for column in x.keys():  # noqa: SIM118 (a table need not iterate over its names)
        if not isinstance(column, str):
            raise InvalidData(f"column name of {name}", column, "must be text", "rename it")
        columns[column] = column_of(x[column], column)
    return columns


def raw_values(values: Values) -> NDArray[Any]:
    """Values of any sort as an array."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def join_parts(
    name: str,
    train: Part,
    *,
    validation: Part | None = None,
    test: Part | None = None,
    weight: Values | None = None,
    task: Task | None = None,
    target: str = "y",
) -> RawData:
    """Joins parts that belong to one set.

    Args:
        name: Name or path of the set.
        train: The part that the others must match.
        validation: The validation part, where the set brings its own.
        test: The test part, where there is one.
        weight: How much each row of the training part counts, [N].
        task: The task, or ``None`` to infer it.
        target: The target's name.
    """
    given = [part for part in (train, validation, test) if part is not None]
    for part in given:
        _check_part(part, train)
    lengths = [len(part.y) for part in given]
    numbers = np.split(np.arange(sum(lengths), dtype=np.int64), np.cumsum(lengths)[:-1])
    rows = {part.y_name: number for part, number in zip(given, numbers, strict=True)}
    return RawData(
        name,
        _join([part.x for part in given]),
        np.concatenate([part.y for part in given]),
        rows[train.y_name],
        None if test is None else rows[test.y_name],
        validation=None if validation is None else rows[validation.y_name],
        weight=None if weight is None else _weight(weight, len(train.y), sum(lengths)),
        task=task,
        target=target,
        normalise=True,
        y_parts=tuple((part.y_name, len(part.y)) for part in given),
    )


def bools_as_numbers(x: NDArray[Any]) -> NDArray[Any]:
    """Bools in an array are 0 and 1; only in a table of named columns they are categories."""
    return x.astype(np.uint8) if x.dtype.kind == "b" else x


def check_array(name: str, x: NDArray[Any]) -> None:
    """Raises InvalidData for an array that cannot be inputs: its shape, its dtype, a value."""
    if x.ndim < 2 or 0 in x.shape:
        raise InvalidData(
            name,
            f"shape {x.shape}",
            "must be [N, columns] or images, with at least one row",
            "reshape one column to [N, 1]",
        )
    if x.dtype.kind not in "iufbU" or (x.dtype.kind in "Ub" and x.ndim > 2):
        raise InvalidData(name, f"dtype {x.dtype}", "must hold numbers", "convert it")
    if x.dtype.kind != "f":
        return
    # A missing cell of a table is the preparation's business; a pixel has to be there.
    bad = np.isinf(x) if x.ndim == 2 else ~np.isfinite(x)
    if bad.any():
        row, *rest = [int(i) for i in np.argwhere(bad)[0]]
        if x.ndim > 2:
            raise InvalidData(
                f"{name}, row {row}, pixel {rest}", str(x[row][tuple(rest)]), "must be finite"
            )
        as_numbers(f"{name}: x{rest[0]}", x[:, rest[0]])


def check_rows(y_name: str, y: NDArray[Any], x_name: str, num_rows: int) -> None:
    """Raises InvalidData where targets are not as many as the rows of their inputs."""
    if y.ndim == 0 or len(y) != num_rows:
        raise InvalidData(
            y_name, f"shape {y.shape}", f"must have as many rows as {x_name}: {num_rows}"
        )


def _join(parts: list[Columns | NDArray[Any]]) -> Columns | NDArray[Any]:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if arrays:
        return bools_as_numbers(np.concatenate(arrays))
    tables = [part for part in parts if not isinstance(part, np.ndarray)]
    return {name: concatenated(name, [table[name] for table in tables]) for name in tables[0]}


def _check_part(part: Part, first: Part) -> None:
    x, y = part.x, part.y
    if isinstance(x, np.ndarray) and isinstance(first.x, np.ndarray):
        check_array(part.x_name, x)
        check_rows(part.y_name, y, part.x_name, len(x))
        _check_like(part.x_name, x, first.x_name, first.x)
    elif isinstance(x, np.ndarray) or isinstance(first.x, np.ndarray):
        shown = "an array" if isinstance(x, np.ndarray) else "columns by name"
        raise InvalidData(part.x_name, shown, f"must be of the sort of {first.x_name}")
    else:
        check_columns(x)
        if set(x) != set(first.x):
            rule = f"must have the columns of {first.x_name}: {', '.join(first.x)}"
            raise InvalidData(part.x_name, "columns " + ", ".join(x), rule)
        check_rows(part.y_name, y, part.x_name, len(next(iter(x.values()))))
    # Labels beside decimals would join to decimals, and turn a classification into a regression.
    if y.shape[1:] != first.y.shape[1:] or _sort(y) != _sort(first.y):
        raise InvalidData(
            part.y_name,
            f"{y.dtype} {y.shape}",
            f"must match {first.y_name} beyond the rows: {first.y.dtype} {first.y.shape}",
        )


def _check_like(name: str, x: NDArray[Any], first_name: str, first: NDArray[Any]) -> None:
    if x.shape[1:] != first.shape[1:]:
        raise InvalidData(
            name, f"shape {x.shape}", f"must match {first_name} beyond the rows: {first.shape}"
        )
    # Pixels of two dtypes mean two scales; a table of whole numbers may sit beside one of decimals.
    if x.ndim > 2 and x.dtype != first.dtype:
        raise InvalidData(
            name, f"dtype {x.dtype}", f"must match {first_name}: {first.dtype}", "convert it"
        )


def _weight(weight: Values, num_train: int, num_rows: int) -> NDArray[np.float64]:
    """Weights of all rows; those beside the rows of other parts are never read."""
    values = raw_values(weight)
    if values.shape != (num_train,):
        raise InvalidData(
            "weight", f"shape {values.shape}", f"must be [{num_train}], one for each training row"
        )
    numbers = as_numbers("weight", values)
    low = np.flatnonzero(numbers < 0)
    if low.size:
        raise InvalidData(f"weight, row {int(low[0])}", float(numbers[low[0]]), "must be 0 or more")
    if not numbers.any():
        raise InvalidData("weight", "all 0", "some must be above 0", "leave it out")
    return np.concatenate([numbers, np.ones(num_rows - num_train)])


def _sort(y: NDArray[Any]) -> str:
    return "integer" if y.dtype.kind in "iu" else y.dtype.kind
