"""Tables in memory: frames of pandas, polars or arrow, mappings and arrays, as columns by name.

narwhals gives pandas, polars and arrow one face and arrow the values, so that a frame is read as
the file that it would be written to. It is imported where a frame is met.
"""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.table_input import by_name, check_columns
from gossamer.data.prepare.texts import Texts
from gossamer.data.prepare.values import Values
from gossamer.data.readers.table_files import from_arrow
from gossamer.errors import InvalidData

# What pandas and polars call a cell that holds nothing, beside None and NaN.
_NOTHING = ("NAType", "NaTType")


def columns_of(frame: Any, name: str = "x") -> dict[str, Values]:
    """The columns of a table in memory, as ``Preparation`` and ``from_arrays`` take them.

    Numbers stay numbers (a null is NaN), dates become ``datetime64`` in UTC, strings and bools
    become text. What the frame itself calls a category or an enum is one, also if its levels are
    numbers.

    Args:
        frame: A data frame of pandas, polars or arrow (anything that narwhals knows), a mapping of
            names to columns, or an array [N, D] of numbers, texts or objects.
        name: What messages call it.

    Returns:
        Columns by name, [N] each; those of an array are called x0, x1, ….

    Raises:
        InvalidData: No table, a name that is no text or is there twice, a column that holds
            something else than numbers, bools, dates and text.

    Example:
        >>> table = columns_of(np.array([[1.0, "red"], [2.5, "blue"]], dtype=object))
        >>> table["x0"].tolist(), table["x1"].tolist()
        ([1.0, 2.5], ['red', 'blue'])
    """
    if isinstance(frame, np.ndarray):
        columns = _of_array(frame, name)
    elif isinstance(frame, Mapping):
        columns = {_named(key, name): column_of(values, key) for key, values in frame.items()}
    else:
        columns = _of_frame(frame, name)
    check_columns(columns)
    return columns


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame that :func:`columns_of` knows: by its looks, cheaply."""
    return hasattr(value, "columns") and (
        hasattr(value, "__dataframe__") or hasattr(value, "__arrow_c_stream__")
    )


def column_of(values: Any, name: str) -> Values:
    """One column of any sort: arrays, lists, and series of pandas, polars or arrow."""
    if isinstance(values, Texts):
        return values
    if not isinstance(values, (np.ndarray, list, tuple)):
        import narwhals as nw

        series = nw.from_native(values, series_only=True, pass_through=True)
        if isinstance(series, nw.Series):
            return _of_series(name, series)
    array = np.asarray(values)
    return _of_objects(array.tolist()) if array.dtype == object and array.ndim == 1 else array


def _of_array(array: NDArray[Any], name: str) -> dict[str, Values]:
    if array.ndim != 2:
        raise InvalidData(
            name, f"shape {array.shape}", "must be [N, columns]", "reshape one column to [N, 1]"
        )
    if array.dtype == object:
        return {f"x{i}": _of_objects(array[:, i].tolist()) for i in range(array.shape[1])}
    return dict(by_name(array))


def _of_frame(frame: Any, name: str) -> dict[str, Values]:
    import narwhals as nw

    is_lazy = hasattr(frame, "collect")  # whose names alone would cost a query
    names = [] if is_lazy else list(getattr(frame, "column_names", getattr(frame, "columns", ())))
    for index, column in enumerate(names):
        if _named(column, name) in names[:index]:
            raise InvalidData(f"columns of {name}", column, "names two of them", "rename one")
    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError as error:
        raise InvalidData(
            name,
            type(frame).__name__,
            "must be a data frame in memory, a mapping or an array [N, columns]",
            "collect() a lazy frame",
        ) from error
    return {column: _of_series(column, table[column]) for column in table.columns}


def _of_series(name: str, series: Any) -> Values:
    import pyarrow as pa

    if str(series.dtype) == "Object":  # Python values of any sort, as pandas may hold
        return _of_objects(series.to_list())
    try:
        return from_arrow(name, series.to_arrow())
    except (pa.ArrowException, TypeError, NotImplementedError) as error:
        raise InvalidData(
            f"column {name!r}",
            f"dtype {series.dtype}",
            "must hold numbers, bools, dates or text",
            "convert or remove the column",
        ) from error


def _of_objects(values: list[Any]) -> Values:
    """Python values: numbers if all are, dates if all are, else text."""
    cells = [None if is_nothing(value) else value for value in values]
    nested = next((cell for cell in cells if isinstance(cell, (list, tuple, dict, set))), None)
    if nested is not None:
        raise InvalidData(
            "a cell",
            repr(nested),
            "must be a number, a bool, a date or text",
            "make columns of what it holds, or remove it",
        )
    present = [cell for cell in cells if cell is not None]
    if present and _all_are(present, numbers.Real) and not _all_are(present, (bool, np.bool_)):
        return np.array([np.nan if cell is None else float(cell) for cell in cells])
    if present and _all_are(present, (datetime.date, np.datetime64)):
        return np.array([_naive(cell) for cell in cells], dtype="datetime64[us]")
    return Texts.of(cells)


def is_nothing(value: Any) -> bool:
    """Whether a Python value stands for a cell without content: None, NaN, and their like."""
    is_nan = isinstance(value, float) and np.isnan(value)
    return value is None or is_nan or type(value).__name__ in _NOTHING


def _naive(cell: Any) -> Any:
    """A date without a zone, in UTC; nothing for nothing."""
    if isinstance(cell, datetime.datetime) and cell.tzinfo is not None:
        return cell.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return "NaT" if cell is None else cell


def _all_are(values: Iterable[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _named(column: Any, name: str) -> str:
    if not isinstance(column, str):
        raise InvalidData(f"column name of {name}", column, "must be text", "rename it")
    return column
