"""What a raw column holds: whole numbers, numbers or text; and reading it as one of these.

A column is a one-dimensional array. Text columns (from ``.csv``) are object arrays of ``str``, so
that a number can still be read back as the text it was: whether ``"03"`` is a number or a category
is decided once, when a preparation is fitted, and never again from the few rows somebody wants a
prediction for.

Rows are counted from 0, the first row of data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InvalidData

Kind = Literal["int", "float", "str"]

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(
    r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII
)
# From this share of numbers on, the few other cells are typing errors and not categories.
_MOSTLY_NUMBERS = 0.9


def kind_of(name: str, values: NDArray[Any]) -> Kind:
    """Infers what a column holds; missing cells do not take part.

    Args:
        name: The column's name, for messages.
        values: The column, [N].

    Raises:
        InvalidData: For a dtype that is neither number, bool nor text; and for text of which nearly
            all is numbers, because a typing error (or a decimal comma) must not turn a number into
            a category.
    """
    code = values.dtype.kind
    if code in "iu":
        return "int"
    if code == "f":
        return "float"
    if code == "b":
        return "str"
    _refuse_foreign_dtype(name, values)
    texts = [text for text in _texts(values) if text.lower() not in _MISSING]
    if texts and all(map(_INTEGER.fullmatch, texts)):
        return "int"
    if texts and all(map(_NUMBER.fullmatch, texts)):
        return "float"
    _refuse_mostly_numbers(name, _texts(values))
    return "str"


def as_numbers(name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Reads a column as finite numbers.

    Args:
        name: The column's name, for messages.
        values: The column, [N]: numbers, bools or text.

    Returns:
        float64 [N].

    Raises:
        InvalidData: Naming column and row of the first cell that is missing, infinite or not a
            number.
    """
    if values.dtype.kind in "iufb":
        numbers = values.astype(np.float64)
    else:
        _refuse_foreign_dtype(name, values)
        texts = _texts(values)
        for row, text in enumerate(texts):
            if text.lower() in _MISSING:
                raise _missing(name, row)
            if not _NUMBER.fullmatch(text):
                raise InvalidData(_cell(name, row), text, "is not a number", "correct the cell")
        numbers = np.array(texts, dtype=object).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        row = int(bad[0])
        if np.isnan(numbers[row]):
            raise _missing(name, row)
        raise InvalidData(_cell(name, row), str(numbers[row]), "must be finite", "correct the cell")
    return numbers


def as_texts(name: str, values: NDArray[Any]) -> list[str]:
    """Reads a column as text, one string per row.

    Raises:
        InvalidData: Naming column and row of the first missing cell.
    """
    if values.dtype.kind == "f":
        as_numbers(name, values)
    elif values.dtype.kind not in "iub":
        _refuse_foreign_dtype(name, values)
    texts = _texts(values)
    for row, text in enumerate(texts):
        if text.lower() in _MISSING:
            raise _missing(name, row)
    return texts


def as_integers(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Reads a column as whole numbers; ``3.0`` counts as one.

    Raises:
        InvalidData: Naming column and row of the first cell that is not a whole number.
    """
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    numbers = as_numbers(name, values)
    bad = np.flatnonzero((numbers != np.floor(numbers)) | (np.abs(numbers) >= 2**53))
    if bad.size:
        row = int(bad[0])
        raise InvalidData(
            _cell(name, row),
            str(numbers[row]),
            "a class label must be text or a whole number",
            "use task regression for a measured quantity",
        )
    return numbers.astype(np.int64)


def _texts(values: NDArray[Any]) -> list[str]:
    return ["" if value is None else str(value).strip() for value in values.tolist()]


def _cell(name: str, row: int) -> str:
    return f"column {name!r}, row {row}"


def _missing(name: str, row: int) -> InvalidData:
    return InvalidData(
        _cell(name, row),
        None,
        "is missing",
        "fill it or remove the row; nothing is filled in silently",
    )


def _refuse_foreign_dtype(name: str, values: NDArray[Any]) -> None:
    if values.dtype.kind not in "OU":
        raise InvalidData(
            f"column {name!r}",
            f"dtype {values.dtype}",
            "must hold numbers, bools or text",
            "convert or remove the column",
        )


def _refuse_mostly_numbers(name: str, texts: Sequence[str]) -> None:
    strange = [
        row
        for row, text in enumerate(texts)
        if text.lower() not in _MISSING and not _NUMBER.fullmatch(text)
    ]
    # A comma inside a number (1,5 or 1,234) is the usual reason for a whole column of them.
    true_text = [row for row in strange if not _NUMBER.fullmatch(texts[row].replace(",", ""))]
    if strange and len(true_text) <= (1 - _MOSTLY_NUMBERS) * len(texts):
        row = strange[0]
        raise InvalidData(
            _cell(name, row),
            texts[row],
            f"is not a number, though {_MOSTLY_NUMBERS:.0%} of the column looks like numbers",
            "correct the cell; write decimals with a point and no thousands mark",
        )
