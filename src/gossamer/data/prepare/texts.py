"""Columns of text as arrow arrays: cells stay what they were in the file, without Python objects.

Whether ``"03"`` is a number or a category is decided once, when a preparation is fitted, and never
again from the few rows somebody wants a prediction for; so a file's cells stay text until then.
pyarrow is imported where it is used: whoever only asks for ``--help`` does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InvalidData

MISSING = ("", "?", "na", "n/a", "nan", "null")
"""Cells that hold nothing, in lower case."""
_IN_MISSING = (b"?", b"n", b"N")
"""Each of those that is no empty text has one of these."""


class Texts:
    """A column of text, [N], in the form that an array of ``str`` would have.

    Args:
        cells: An arrow array or chunked array of strings without white space at either end; null
            is a missing cell.
        is_category: Whether whoever made the column calls it a category, whatever its texts are.

    Example:
        >>> column = Texts.of(["red", " blue ", "NA"])
        >>> column.tolist(), column.missing.tolist(), len(column[np.array([0, 2])])
        (['red', 'blue', 'NA'], [False, False, True], 2)
    """

    ndim = 1
    dtype = np.dtype(object)

    def __init__(self, cells: Any, *, is_category: bool = False) -> None:
        self.is_category = is_category
        self._cells = cells
        self._rows: NDArray[np.int64] | None = None
        self._levels: list[str] | None = None
        self._known: dict[object, tuple[NDArray[Any], ...]] = {}

    @classmethod
    def of(cls, values: Iterable[object]) -> Texts:
        """A column of any values, each as the text that ``str`` gives; ``None`` is missing."""
        import pyarrow as pa

        return cls(
            pa.array(
                [None if value is None else str(value).strip() for value in values], pa.string()
            )
        )

    def __len__(self) -> int:
        return len(self._cells) if self._rows is None else len(self._rows)

    @property
    def shape(self) -> tuple[int]:
        """As of an array: (N,)."""
        return (len(self),)

    def __getitem__(self, rows: NDArray[Any]) -> Texts:
        """The column at these rows (numbers or a mask); what was read of them is kept."""
        if rows.dtype.kind == "b":
            rows = np.flatnonzero(rows)
        found = Texts(self._cells, is_category=self.is_category)
        found._rows = rows if self._rows is None else self._rows[rows]
        found._levels = self._levels
        found._known = {key: tuple(a[rows] for a in arrays) for key, arrays in self._known.items()}
        return found

    @property
    def cells(self) -> Any:
        """The arrow array; of chosen rows it is made when it is first asked for."""
        if self._rows is not None:
            import pyarrow as pa

            self._cells, self._rows = self._cells.take(pa.array(self._rows)), None
        return self._cells

    def read_once(
        self, key: object, read: Callable[[], tuple[NDArray[Any], ...]]
    ) -> tuple[NDArray[Any], ...]:
        """Arrays [N] that were read from the cells, kept under a key: parsing costs most."""
        if key not in self._known:
            self._known[key] = read()
        return self._known[key]

    def cell(self, row: int) -> str:
        """The text of one cell; empty for a null."""
        return self.cells[row].as_py() or ""

    def tolist(self) -> list[str]:
        """All cells, a null as an empty text."""
        return ["" if cell is None else cell for cell in self.cells.to_pylist()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.tolist(), dtype=object).astype(dtype or object)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells hold nothing: null, empty, ``?``, ``NA``, ``n/a``, ``nan``, ``null``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # Every word has one of three letters: of a column of numbers no cell is lowered.
        if not any(letter in part for part in bytes_of(self.cells) for letter in _IN_MISSING):
            empty = pc.fill_null(pc.equal(pc.binary_length(self.cells), 0), True)
            return as_mask(empty)
        found = pc.is_in(pc.utf8_lower(self.cells), value_set=pa.array(MISSING))
        return as_mask(pc.or_(found, pc.is_null(self.cells)))

    @property
    def levels(self) -> tuple[list[str], NDArray[np.int64]]:
        """Distinct texts, and each row's number among them, [N].

        A missing cell has the number -1, and is no level. Chosen rows keep the levels of the whole
        column: some may have no row.
        """
        (codes,) = self.read_once("levels", self._coded)
        assert self._levels is not None
        return self._levels, codes

    def _coded(self) -> tuple[NDArray[np.int64]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = joined(self.cells)
        if self.missing.any():
            cells = joined(pc.if_else(pa.array(self.missing), pa.scalar(None, pa.string()), cells))
        coded = cells.dictionary_encode()
        self._levels = coded.dictionary.to_pylist()
        codes = pc.fill_null(pc.cast(coded.indices, pa.int64()), -1)
        return (codes.to_numpy(zero_copy_only=False),)


def texts_of(name: str, values: Any) -> Texts:
    """A column as text.

    Args:
        name: The column's name, for messages.
        values: Texts, or an array of numbers, bools, text or objects, [N].

    Raises:
        InvalidData: For a dtype that is neither number, bool nor text.
    """
    if isinstance(values, Texts):
        return values
    if values.dtype.kind not in "OUiufb":
        raise InvalidData(
            f"column {name!r}",
            f"dtype {values.dtype}",
            "must hold numbers, bools, dates or text",
            "convert or remove the column",
        )
    return Texts.of(values.tolist())


def concatenated(name: str, parts: list[NDArray[Any] | Texts]) -> NDArray[Any] | Texts:
    """One column of several parts.

    Args:
        name: The column's name, for messages.
        parts: The column of each part, in order.
    """
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    import pyarrow as pa

    texts = [texts_of(name, part) for part in parts]
    chunks = [joined(text.cells) for text in texts]
    return Texts(pa.chunked_array(chunks), is_category=any(t.is_category for t in texts))


def joined(cells: Any) -> Any:
    """One arrow array of a chunked one."""
    import pyarrow as pa

    if not isinstance(cells, pa.ChunkedArray):
        return cells
    return cells.combine_chunks() if cells.num_chunks != 1 else cells.chunk(0)


def bytes_of(cells: Any) -> Iterator[bytes]:
    """The letters of all cells, one cell after the other, in parts; of a null any or none.

    Python looks through them far faster than arrow does through cells.

    Args:
        cells: An arrow array or chunked array of strings.
    """
    import pyarrow as pa

    for part in cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]:
        _, offsets, letters = part.buffers()
        if not len(part) or letters is None:
            continue
        width = np.int64 if pa.types.is_large_string(part.type) else np.int32
        places = np.frombuffer(offsets, width)[part.offset : part.offset + len(part) + 1]
        first, last = int(places[0]), int(places[-1])
        yield letters.slice(first, last - first).to_pybytes()


def as_mask(found: Any) -> NDArray[np.bool_]:
    """An arrow array of truths as a mask; null is false."""
    import pyarrow.compute as pc

    mask: NDArray[np.bool_] = np.asarray(
        joined(pc.fill_null(found, False)).to_numpy(zero_copy_only=False), dtype=bool
    )
    return mask
