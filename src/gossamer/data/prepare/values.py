"""What a raw column holds: whole numbers, numbers, dates or text; and reading it as one of these.

A column is a one-dimensional array, or ``Texts`` from a file, so that a number can still be read
back as the text it was: whether ``"03"`` is a number or a category is decided once, when a
preparation is fitted.

Rows are counted from 0, the first row of data.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.date_format import Days, find_format, read_dates
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_style import PLAIN, NumberStyle, find_style, whole_numbers
from gossamer.data.prepare.rules import DEFAULT_RULES, TableRules
from gossamer.data.prepare.texts import Texts, texts_of
from gossamer.errors import InvalidData

Kind = Literal["int", "float", "str", "date"]
Values = NDArray[Any] | Texts
"""A raw column, [N]."""

FILL = "fill it or remove the row, or let missing=mean fill it"
_ISO = "YYYY-MM-DD"
# Of a column that is no text its dtype says all; bools are two categories.
_KINDS: dict[str, Kind] = {"i": "int", "u": "int", "f": "float", "b": "str", "M": "date"}


class Recognised(NamedTuple):
    """What a column holds.

    Attributes:
        kind: ``"int"``, ``"float"``, ``"date"`` or ``"str"``, which is a category.
        style: How its numbers are written.
        form: How its dates are written.
    """

    kind: Kind
    style: NumberStyle = PLAIN
    form: str = _ISO


def recognise(name: str, values: Values, rules: TableRules = DEFAULT_RULES) -> Recognised:
    """Finds what a column holds; missing cells do not take part.

    Args:
        name: The column's name, for messages.
        values: The column, [N].
        rules: What was told of ambiguous cells.

    Raises:
        InvalidData: For a dtype that is neither number, bool, date nor text; for text of which
            nearly all is numbers or dates, because a typing error must not turn a number into a
            category; for numbers or dates that may be either of two.
    """
    code = values.dtype.kind
    if code in _KINDS:
        return Recognised(_KINDS[code])
    texts = texts_of(name, values)
    if texts.is_category:
        return Recognised("str")
    style = PLAIN if PLAIN.is_all_of(texts) else find_style(name, texts, rules)
    if style is not None:
        numbers, _ = style.read(texts)
        return Recognised("int" if whole_numbers(texts, style, numbers) else "float", style)
    form = find_format(name, texts, rules)
    return Recognised("str") if form is None else Recognised("date", form=form)


def kind_of(name: str, values: Values) -> Kind:
    """What a column holds, see :func:`recognise`."""
    return recognise(name, values).kind


def read_numbers(
    name: str, values: Values, findings: Findings, style: NumberStyle = PLAIN
) -> NDArray[np.float64]:
    """Reads a column as numbers.

    Args:
        name: The column's name, for messages.
        values: The column, [N]: numbers, bools or text.
        findings: Is told of cells that are infinite or no number.
        style: How numbers are written, in text.

    Returns:
        float64 [N], NaN for cells that are missing or bad.
    """
    if values.dtype.kind in "iufb":
        numbers = np.asarray(values).astype(np.float64)
    else:
        texts = texts_of(name, values)
        numbers, bad = style.read(texts)
        rule = "is not a number" + ("" if style == PLAIN else f" as {style.sample} of training")
        findings.fault(name, np.flatnonzero(bad), texts.cell, rule, "correct the cell")
    infinite = np.isinf(numbers)
    if infinite.any():
        rows, found = np.flatnonzero(infinite), numbers
        findings.fault(
            name, rows, lambda row: str(found[row]), "must be finite", "correct the cell"
        )
        numbers = np.where(infinite, np.nan, numbers)
    return numbers


def read_days(name: str, values: Values, findings: Findings, form: str) -> Days:
    """Reads a column as dates: days since 1970-01-01, [N], NaN for cells missing or bad."""
    if values.dtype.kind == "M":
        stamps = np.asarray(values).astype("datetime64[us]")
        days: Days = stamps.astype(np.int64) / 86_400e6
        return np.where(np.isnat(stamps), np.nan, days)
    texts = texts_of(name, values)
    days, bad = read_dates(texts, form)
    if bad.any() and form != _ISO:  # dates that a file of another format holds as ISO text
        again, still = read_dates(texts, _ISO)
        days, bad = np.where(np.isnan(days), again, days), bad & still
    findings.fault(
        name,
        np.flatnonzero(bad),
        texts.cell,
        f"is not a date as {form} of training",
        "correct the cell, or write it as YYYY-MM-DD",
    )
    return days


def as_numbers(name: str, values: Values) -> NDArray[np.float64]:
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
    findings = Findings()
    numbers = read_numbers(name, values, findings)
    findings.fault(name, np.flatnonzero(np.isnan(numbers)), _nothing, "is missing", FILL)
    return numbers


def as_texts(name: str, values: Values) -> list[str]:
    """Reads a column as text, one string per row.

    Raises:
        InvalidData: Naming column and row of the first missing cell.
    """
    if values.dtype.kind == "f":
        as_numbers(name, values)
    texts = texts_of(name, values)
    Findings().fault(name, np.flatnonzero(texts.missing), _nothing, "is missing", FILL)
    return texts.tolist()


def as_integers(name: str, values: Values) -> NDArray[np.int64]:
    """Reads a column as whole numbers; ``3.0`` counts as one.

    Raises:
        InvalidData: Naming column and row of the first cell that is not a whole number.
    """
    if values.dtype.kind in "iub":
        return np.asarray(values).astype(np.int64)
    numbers = as_numbers(name, values)
    bad = np.flatnonzero((numbers != np.floor(numbers)) | (np.abs(numbers) >= 2**53))
    if bad.size:
        row = int(bad[0])
        raise InvalidData(
            f"column {name!r}, row {row}",
            str(numbers[row]),
            "a class label must be text or a whole number",
            "use task regression for a measured quantity",
        )
    return numbers.astype(np.int64)


def missing_in(name: str, values: Values) -> NDArray[np.bool_]:
    """Which cells of a column hold nothing, [N]."""
    code = values.dtype.kind
    if code in "iub":
        return np.zeros(len(values), dtype=bool)
    if code == "f":
        return np.asarray(np.isnan(values))
    if code == "M":
        return np.asarray(np.isnat(values))
    return texts_of(name, values).missing


def _nothing(_: int) -> None:
    return None
