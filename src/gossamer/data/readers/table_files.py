"""Tables from files: ``.csv`` (comma, semicolon or tab) and ``.parquet``."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.data.prepare.target import Task, check_target, infer_task, labels_of
from gossamer.data.split import TEST_FRACTION, hold_out_test
from gossamer.errors import InvalidData, InvalidValue, MissingDependency, UnknownName

_DELIMITERS = ",;\t"


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """Reads a table.

    Args:
        path: A ``.csv`` or ``.parquet`` file.

    Returns:
        Columns by name, [N] each. Cells of a ``.csv`` stay text: what they mean is the
        preparation's business.
    """
    if not path.is_file():
        raise InvalidData("file", str(path), "does not exist", "check the path")
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)


def read_table(path: Path, *, target: str | None, task: Task | None) -> RawData:
    """Reads a table to train on; a fixed fifth of its rows becomes the test part.

    Args:
        path: A ``.csv`` or ``.parquet`` file.
        target: Name of the target column.
        task: The task, or ``None`` to infer it.
    """
    columns = read_columns(path)
    if target is None:
        raise InvalidValue(
            "target", None, f"must name a column of {path.name}", "columns: " + ", ".join(columns)
        )
    if target not in columns:
        raise UnknownName("target column", target, list(columns))
    y = columns.pop(target)
    notes: tuple[str, ...] = ()
    if task is None:
        task, why = infer_task(target, y, images=False)
        notes = (why,)
    check_target(target, y, task)
    strata = labels_of(target, y) if task == "classification" else None
    train, test = hold_out_test(len(y), strata)
    held = f"test part: a fixed {TEST_FRACTION:.0%} of the rows ({len(test)} of {len(y)})"
    return RawData(
        str(path), columns, y, train, test, task=task, target=target, notes=(*notes, held)
    )


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    line = 1
    try:
        # utf-8-sig also takes the byte-order mark that spreadsheets write.
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file.readline())
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
            names = [cell.strip() for cell in next(reader, [])]
            _check_names(path, names)
            rows: list[list[str]] = []
            for row in reader:
                line = reader.line_num
                if any(row) or len(row) == len(names):
                    rows.append(_checked_row(path, line, row, len(names)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidData(
            f"{path.name}, after line {line}", str(error), "is not a readable .csv file in UTF-8"
        ) from error
    if not rows:
        raise InvalidData(str(path), None, "holds no row of data", "add rows below the names")
    if all(map(_is_number, names)):
        raise InvalidData(
            f"{path.name}, line 1",
            ", ".join(names),
            "holds numbers, not names",
            "add a line with column names",
        )
    return {
        name: np.array(cells, dtype=object)
        for name, cells in zip(names, zip(*rows, strict=True), strict=True)
    }


def _checked_row(path: Path, line: int, row: list[str], width: int) -> list[str]:
    if len(row) != width:
        raise InvalidData(
            f"{path.name}, line {line}",
            f"{len(row)} cells",
            f"must have {width} as the first line",
            "correct the line; quote cells that hold the delimiter",
        )
    return [cell.strip() for cell in row]


def _delimiter(line: str) -> str:
    """The delimiter that cuts the first line into most cells; comma if none does."""

    def cells(delimiter: str) -> int:
        return len(next(csv.reader([line], delimiter=delimiter), []))

    return max(_DELIMITERS, key=cells)


def _check_names(path: Path, names: list[str]) -> None:
    where = f"columns of {path.name}"
    if not names:
        raise InvalidData(where, None, "there are none", "the first line must name the columns")
    for index, name in enumerate(names):
        if not name:
            raise InvalidData(where, None, f"number {index + 1} has no name", "name every column")
        if name in names[:index]:
            raise InvalidData(where, name, "names two of them", "give each its own name")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency(
            "pyarrow", None, "is needed to read .parquet files", "pip install 'gossamer[parquet]'"
        ) from error
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidData(str(path), str(error), "is not a readable .parquet file") from error
    if table.num_rows == 0 or table.num_columns == 0:
        raise InvalidData(str(path), None, "holds no row of data", "add rows")
    names = table.column_names
    _check_names(path, names)
    return {name: _from_arrow(name, table.column(name)) for name in names}


def _from_arrow(name: str, column: Any) -> NDArray[Any]:
    """One arrow column as numbers (null becomes NaN) or as text (null becomes an empty cell)."""
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return _from_arrow(name, column.cast(kind.value_type))
    if types.is_integer(kind) and column.null_count == 0:
        return np.asarray(column.to_numpy())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast("float64").to_numpy())
    if types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind):
        cells = ["" if cell is None else str(cell).strip() for cell in column.to_pylist()]
        return np.array(cells, dtype=object)
    raise InvalidData(
        f"column {name!r}",
        f"type {kind}",
        "must hold numbers, bools or text",
        "convert or remove the column",
    )
