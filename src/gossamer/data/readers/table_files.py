"""Tables from files: ``.csv``, ``.tsv`` (also ``.gz``) and ``.parquet``, whole or in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.data.prepare.raw_target import raw_target
from gossamer.data.prepare.rules import DEFAULT_RULES, TableRules
from gossamer.data.prepare.target import Task, check_target, infer_task, labels_of
from gossamer.data.prepare.texts import Texts, concatenated, joined
from gossamer.data.prepare.values import Values
from gossamer.data.readers.csv_blocks import CsvFile
from gossamer.data.split import TEST_FRACTION, hold_out_test
from gossamer.errors import InvalidData, InvalidValue, UnknownName

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
"""What the names of table files end in."""

# How pandas calls an index that it writes into a .parquet file.
_INDEX_NAME = "__index_level_0__"


# Of a text file, how much is parsed at once: much where all is kept, little where nothing is.
_WHOLE_BYTES, _BATCH_BYTES = 1 << 23, 1 << 20


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name."""
    return path.name.lower().endswith(TABLES)


class TableFile:
    """A table in a file.

    Args:
        path: A file whose name ends in one of ``TABLES``.

    Attributes:
        path: The file.
        notes: What was inferred of it, one sentence each; complete when it was read.

    Raises:
        InvalidData: The file does not exist, or its columns have no names, or names twice.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InvalidData("file", str(path), "does not exist", "check the path")
        self.path = path
        self.notes: list[str] = []
        self._csv: CsvFile | None = None
        if path.suffix.lower() == ".parquet":
            self._names = _parquet_names(path)
        else:
            self._csv = CsvFile.open(path)
            self._names = list(self._csv.names)
            if self._csv.encoding != "utf-8":
                shown = {"cp1252": "Windows-1252 (Latin-1)"}.get(self._csv.encoding, "Latin-1")
                self.notes.append(f"{path.name} is not in UTF-8 and is read as {shown}")
        self._has_index = len(self._names) > 1 and self._names[0] in ("", _INDEX_NAME)
        _check_names(path, self._names[1:] if self._has_index else self._names, self._has_index)

    def read(self) -> dict[str, Values]:
        """All rows: columns by name, [N] each.

        Cells of a text file stay text: what they mean is the preparation's business.

        Raises:
            InvalidData: There is no row, or a line or cell is no part of a table.
        """
        import pyarrow as pa

        tables = list(self._tables())
        self._check_rows(tables)
        return self._columns(pa.concat_tables(tables), 0)

    def batches(self, rows: int) -> Iterator[dict[str, Values]]:
        """The same in batches of so many rows, the last of fewer; memory does not grow with rows.

        Args:
            rows: Rows of a batch.
        """
        import pyarrow as pa

        done, waiting, kept = 0, [], 0
        for table in self._tables(_BATCH_BYTES):
            waiting.append(table)
            kept += table.num_rows
            if kept < rows:
                continue
            joint = pa.concat_tables(waiting)
            for start in range(0, kept - kept % rows, rows):
                yield self._columns(joint.slice(start, rows), done)
                done += rows
            waiting = [joint.slice(kept - kept % rows)] if kept % rows else []
            kept %= rows
        if done == 0:
            self._check_rows(waiting)
        if kept:
            yield self._columns(pa.concat_tables(waiting), done)

    def _tables(self, size: int = _WHOLE_BYTES) -> Iterator[Any]:
        if self._csv is not None:
            return self._csv.blocks(size)
        return _parquet_batches(self.path)

    def _check_rows(self, tables: list[Any]) -> None:
        if not tables:
            hint = "add rows below the names"
            raise InvalidData(str(self.path), None, "holds no row of data", hint)
        if self._csv is not None and all(map(_is_number, self._names)):
            raise InvalidData(
                f"{self.path.name}, line 1",
                ", ".join(self._names),
                "holds numbers, not names",
                "add a line with column names",
            )

    def _columns(self, table: Any, first_row: int) -> dict[str, Values]:
        names, columns = self._names, list(table.columns)
        if self._has_index:
            self._drop_index(columns[0], first_row)
            names, columns = names[1:], columns[1:]
        if self._csv is not None:
            return {n: Texts(c) for n, c in zip(names, columns, strict=True)}
        return {n: from_arrow(n, c) for n, c in zip(names, columns, strict=True)}

    def _drop_index(self, column: Any, first_row: int) -> None:
        cells = [str(cell) for cell in column.to_pylist()]
        if cells != [str(row) for row in range(first_row, first_row + len(cells))]:
            _check_names(self.path, self._names, False)
        told = "the first column has no name and counts the rows; it is left out"
        if told not in self.notes:
            self.notes.append(told)


def read_columns(path: Path) -> dict[str, Values]:
    """Reads a table: columns by name, [N] each, see :class:`TableFile`."""
    return TableFile(path).read()


def read_table(
    path: Path,
    *,
    target: str | None,
    task: Task | None,
    rules: TableRules = DEFAULT_RULES,
    test: Path | None = None,
    test_fraction: float = TEST_FRACTION,
) -> RawData:
    """Reads a table to train on; a fixed share of its rows becomes the test part.

    Args:
        path: A file whose name ends in one of ``TABLES``.
        target: Name of the target column.
        task: The task, or ``None`` to infer it.
        rules: What was told of ambiguous cells.
        test: A table whose rows are the test part; then all rows of the first are trained on.
        test_fraction: Otherwise the share of rows that test, each class by its share; 0: none.
    """
    file = TableFile(path)
    columns = file.read()
    count = len(next(iter(columns.values())))
    if target is None:
        raise InvalidValue(
            "target", None, f"must name a column of {path.name}", "columns: " + ", ".join(columns)
        )
    if target not in columns:
        raise UnknownName("target column", target, list(columns))
    further: tuple[str, ...] = ()
    if test is not None:
        columns, further = _with_test(path, columns, test, target)
    y, rows, lost = raw_target(target, columns.pop(target), rules)
    notes: tuple[str, ...] = ()
    if task is None:
        task, why = infer_task(target, y, images=False)
        notes = (why,)
    check_target(target, y, task)
    strata = labels_of(target, y)[rows] if task == "classification" else None
    tested: NDArray[np.int64] | None
    if test is not None:
        train, tested = rows[rows < count], rows[rows >= count]
        held = f"test part: {test.name} ({len(tested)} rows)"
    elif test_fraction == 0.0:
        train, tested, held = rows, None, "no test part: there will be no test metrics"
    else:
        train, tested = (rows[part] for part in hold_out_test(len(rows), strata, test_fraction))
        held = f"test part: a fixed {test_fraction:.0%} of the rows ({len(tested)} of {len(rows)})"
    if strata is not None and test is None and tested is not None:
        held += ", each class by its share"
    notes = (*notes, held, *file.notes, *further, *lost)
    return RawData(str(path), columns, y, train, tested, task=task, target=target, notes=notes)


def _with_test(
    path: Path, columns: dict[str, Values], test: Path, target: str
) -> tuple[dict[str, Values], tuple[str, ...]]:
    """Both tables as one, those of the test part last, and what there is to say of it."""
    file = TableFile(test)
    found = file.read()
    for name in columns:
        if name not in found:
            what = "the target is missing" if name == target else "is a column of training"
            hint = f"the columns of {path.name} are needed: {', '.join(columns)}"
            raise InvalidData(f"columns of {test.name}", name, f"{what} and not there", hint)
    extra = [name for name in found if name not in columns]
    told = f"{test.name}: columns that training has not are ignored: {', '.join(extra)}"
    joint = {name: concatenated(name, [columns[name], found[name]]) for name in columns}
    return joint, (*file.notes, *([told] if extra else []))


def from_arrow(name: str, column: Any) -> Values:
    """One arrow column as an array: numbers (null becomes NaN), dates (NaT) or text.

    Args:
        name: Its name, for messages.
        column: An arrow array or chunked array.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return _category(name, column)
    if types.is_null(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        is_whole = types.is_integer(kind) and column.null_count == 0
        return _to_numpy(column if is_whole else column.cast(pa.float64()))
    if types.is_boolean(kind):
        return Texts(pc.if_else(column, "True", "False"))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Texts(pc.utf8_trim_whitespace(column.cast(pa.string())))
    if types.is_date(kind) or types.is_timestamp(kind):
        # A time zone is told in UTC, as in text.
        return _stamps(column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None))))
    raise InvalidData(
        f"column {name!r}",
        f"type {kind}",
        "must hold numbers, bools, dates or text",
        "convert or remove the column",
    )


def _category(name: str, column: Any) -> Texts:
    """What the file or frame itself calls a category is one, also if its levels are numbers."""
    values = from_arrow(name, column.cast(column.type.value_type))
    if isinstance(values, Texts):
        return Texts(values.cells, is_category=True)
    texts = Texts.of(values.tolist())
    return Texts(texts.cells, is_category=True)


def _stamps(column: Any) -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    # The smallest number is what numpy takes for no date.
    numbers = pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min)
    return _to_numpy(numbers).view("datetime64[us]")


def _to_numpy(column: Any) -> NDArray[Any]:
    return np.asarray(joined(column).to_numpy(zero_copy_only=False))


def _check_names(path: Path, names: list[str], has_index: bool = False) -> None:
    where = f"columns of {path.name}"
    if not names:
        raise InvalidData(where, None, "there are none", "the first line must name the columns")
    for index, name in enumerate(names):
        if not name:
            place = index + 1 + has_index
            raise InvalidData(where, None, f"number {place} has no name", "name every column")
        if name in names[:index]:
            raise InvalidData(where, name, "names two of them", "give each its own name")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _parquet_names(path: Path) -> list[str]:
    return list(_parquet(path).schema_arrow.names)


def _parquet_batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        for batch in _parquet(path).iter_batches():
            if batch.num_rows:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise InvalidData(str(path), str(error), "is not a readable .parquet file") from error


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidData(str(path), str(error), "is not a readable .parquet file") from error
