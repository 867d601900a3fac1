"""CSV files block by block: pyarrow's reader where it must agree with Python's ``csv``, else that.

The rules are those of ``csv`` in its strict form with white space around cells taken off. pyarrow
is far faster but more lenient (it reads ``"x"y`` as ``xy``), so a block goes to it only where every
quote stands at the edge of a cell. What pyarrow refuses is read once more by ``csv``, which reads
it after all, or names the line.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gossamer.errors import InvalidData

_DELIMITERS = ",;\t"
_BLOCK = 1 << 23
_SLOW_ROWS = 1 << 14
_EDGES = frozenset(b'\r\n"')
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class CsvFile:
    """A CSV file whose first line was read.

    Attributes:
        path: The file; compressed where its name ends in ``.gz``.
        names: Names of the columns, stripped, unchecked.
        delimiter: Comma, semicolon or tab.
        encoding: ``"utf-8"``, or the one that its bytes were taken for.
    """

    path: Path
    names: tuple[str, ...]
    delimiter: str
    encoding: str

    @classmethod
    def open(cls, path: Path) -> CsvFile:
        """Reads the first line, and looks through all bytes for the encoding.

        Raises:
            InvalidData: The file is no text.
        """
        encoding = _encoding(path)
        with _stream(path) as stream:
            head, _ = _first_record(stream)
        text = head.decode(encoding).removeprefix("\ufeff")
        delimiter = _delimiter(text.partition("\n")[0])
        try:
            cells: list[str] = next(_reader(io.StringIO(text, newline=""), delimiter), [])
        except csv.Error as error:
            raise _unreadable(path, 1, error) from error
        return cls(path, tuple(cell.strip() for cell in cells), delimiter, encoding)

    def blocks(self, size: int) -> Iterator[Any]:
        """The rows as arrow tables of text columns, in order; cells are stripped.

        Columns are called ``0``, ``1``, …: names are checked by who knows what they are for.

        Args:
            size: Bytes of a block, about; memory is a small multiple of it.

        Raises:
            InvalidData: A line with too many or too few cells, or a quote in the wrong place.
        """
        with _stream(self.path) as stream:
            head, rest = _first_record(stream)
            line = head.count(b"\n") + 1
            while True:
                more = stream.read(size)
                buffer = rest + more
                end = len(buffer) if not more else _last_line_end(buffer)
                block, rest = buffer[:end], buffer[end:]
                if not _quotes_at_edges(block, self.delimiter):
                    # From a stray quote on only csv knows where a line ends: the rest is its own.
                    yield from self._slow(io.BufferedReader(_Chained(buffer, stream)), line)
                    return
                yield from self._tables(block, line)
                line += block.count(b"\n")
                if not more:
                    return

    def _tables(self, block: bytes, line: int) -> Iterator[Any]:
        """The rows of a block of whole lines, as one table, or in parts by ``csv``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        text = block if self.encoding == "utf-8" else block.decode(self.encoding).encode()
        table = self._fast(text) if text else None
        if table is None:
            yield from self._slow(io.BytesIO(block), line)
        elif not _may_hold_spaces(text, self.delimiter):
            yield table
        else:
            trimmed = [pc.utf8_trim_whitespace(column) for column in table.columns]
            yield pa.table(trimmed, table.column_names)

    def _fast(self, block: bytes) -> Any:
        """The block as pyarrow reads it; ``None`` where it refuses."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        names = [str(i) for i in range(len(self.names))]
        try:
            return arrow_csv.read_csv(
                pa.py_buffer(block),
                arrow_csv.ReadOptions(
                    column_names=names, use_threads=False, block_size=len(block) + 1
                ),
                arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in block),
                arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowInvalid:
            return None

    def _slow(self, stream: Any, first_line: int) -> Iterator[Any]:
        """The rows of a stream by ``csv``, in tables of at most so many rows."""
        text = io.TextIOWrapper(stream, encoding=self.encoding, newline="")
        rows: list[list[str]] = []
        reader = _reader(text, self.delimiter)
        line, width = first_line - 1, len(self.names)
        try:
            for row in reader:
                line = first_line - 1 + reader.line_num
                if any(row) or len(row) == width:
                    rows.append(_checked_row(self.path, line, row, width))
                if len(rows) == _SLOW_ROWS:
                    yield _as_table(rows)
                    rows = []
        except csv.Error as error:
            raise _unreadable(self.path, line, error) from error
        finally:
            text.detach()  # which would close the file otherwise
        if rows:
            yield _as_table(rows)


class _Chained(io.RawIOBase):
    """Bytes that were read already, then the rest of their stream.

    Args:
        first: The bytes.
        stream: Where they came from.
    """

    def __init__(self, first: bytes, stream: BinaryIO) -> None:
        self._parts: list[BinaryIO] = [io.BytesIO(first), stream]

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer; see ``io.RawIOBase``."""
        while self._parts:
            found = self._parts[0].read(len(buffer))
            if found:
                buffer[: len(found)] = found
                return len(found)
            self._parts.pop(0)
        return 0


def _as_table(rows: list[list[str]]) -> Any:
    import pyarrow as pa

    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.table(columns, [str(i) for i in range(len(columns))])


def _stream(path: Path) -> BinaryIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def _encoding(path: Path) -> str:
    """UTF-8 if all bytes are, else the Windows form of Latin-1, else Latin-1."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_utf8, undefined, first = True, False, True
    try:
        with _stream(path) as stream:
            while block := stream.read(_BLOCK):
                if (first and block.startswith(_WIDE_MARKS)) or b"\0" in block:
                    raise InvalidData(
                        path.name, None, "is not a readable .csv file in UTF-8", "save it as UTF-8"
                    )
                first = False
                if block.isascii():  # then it ends no character that a block before began
                    is_utf8 = is_utf8 and not decoder.getstate()[0]
                    continue
                undefined = undefined or any(bytes([b]) in block for b in _UNDEFINED)
                try:
                    if is_utf8:
                        decoder.decode(block)
                except UnicodeDecodeError:
                    is_utf8 = False
            if is_utf8:
                decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        is_utf8 = False
    except (OSError, EOFError) as error:
        raise InvalidData(
            path.name, str(error), "cannot be read", "write the file again"
        ) from error
    if is_utf8:
        return "utf-8"
    return "latin-1" if undefined else "cp1252"


_UNDEFINED = (0x81, 0x8D, 0x8F, 0x90, 0x9D)
"""Bytes that mean nothing in Windows-1252."""


def _first_record(stream: BinaryIO) -> tuple[bytes, bytes]:
    """The first line, which goes on where a quote is open; and what was read behind it."""
    buffer = b""
    while True:
        more = stream.read(1 << 16)
        buffer += more
        end = buffer.find(b"\n")
        while end >= 0 and buffer.count(b'"', 0, end) % 2:
            end = buffer.find(b"\n", end + 1)
        if end < 0 and not more:  # no line end at all, or those of old Macs
            old = buffer.find(b"\r")
            end = old if old >= 0 else len(buffer)
        if end >= 0:
            return buffer[: end + 1], buffer[end + 1 :]


def _last_line_end(buffer: bytes) -> int:
    """Where the last line whose quotes are closed ends; 0 if nowhere."""
    if b'"' not in buffer:
        return buffer.rfind(b"\n") + 1
    letters = np.frombuffer(buffer, dtype=np.uint8)
    ends = np.flatnonzero(letters == ord("\n"))
    before = np.searchsorted(np.flatnonzero(letters == ord('"')), ends)
    closed = ends[before % 2 == 0]
    return int(closed[-1]) + 1 if closed.size else 0


def _quotes_at_edges(block: bytes, delimiter: str) -> bool:
    """Whether every quote opens or closes a cell, or is one of a pair within one."""
    if b'"' not in block:
        return True
    letters = np.frombuffer(block, dtype=np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    if len(quotes) % 2:
        return False
    is_edge = np.zeros(256, dtype=bool)
    is_edge[[*_EDGES, ord(delimiter)]] = True
    before = np.where(quotes[0::2] == 0, True, is_edge[letters[quotes[0::2] - 1]])
    closing = quotes[1::2]
    after = is_edge[letters[np.minimum(closing + 1, len(letters) - 1)]]
    return bool(before.all() and (after | (closing == len(letters) - 1)).all())


def _may_hold_spaces(block: bytes, delimiter: str) -> bool:
    """Whether a cell may begin or end with white space; a table of numbers has none at all."""
    spaces = (space for space in b" \t\v\f" if space != ord(delimiter))
    return b'"' in block or not block.isascii() or any(bytes([s]) in block for s in spaces)


def _reader(text: io.TextIOBase, delimiter: str) -> Any:
    return csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)


def _delimiter(line: str) -> str:
    """The delimiter that cuts the first line into most cells; comma if none does."""

    def cells(delimiter: str) -> int:
        return len(next(csv.reader([line], delimiter=delimiter), []))

    return max(_DELIMITERS, key=cells)


def _checked_row(path: Path, line: int, row: list[str], width: int) -> list[str]:
    if len(row) != width:
        raise InvalidData(
            f"{path.name}, line {line}",
            f"{len(row)} cells",
            f"must have {width} as the first line",
            "correct the line; quote cells that hold the delimiter",
        )
    return [cell.strip() for cell in row]


def _unreadable(path: Path, line: int, error: Exception) -> InvalidData:
    return InvalidData(
        f"{path.name}, after line {line}", str(error), "is not a readable .csv file in UTF-8"
    )
