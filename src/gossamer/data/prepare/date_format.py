"""How the dates of a column are written, and reading them: text to days since 1970-01-01.

A column has one format, found from all of its cells. Whether ``03/04/2024`` is in March or in April
is decided by the cells that can be only one of the two; where there is none, it is asked.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.number_style import MOSTLY
from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.texts import Texts
from gossamer.errors import InvalidData

Days = NDArray[np.float64]
"""Days since 1970-01-01, the time of day as a fraction; NaN where there is no date."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_TIME = (
    r"(?:(?:T|\s+)(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2}(?:\.\d+)?))?"
    r"\s?(?P<P>[AaPp][Mm])?\s?(?P<Z>Z|UTC|[+-]\d{2}:?\d{2})?)?"
)
_YEAR, _MONTH, _DAY, _NAME = (
    r"(?P<y>\d{4})",
    r"(?P<m>\d{1,2})",
    r"(?P<d>\d{1,2})",
    "(?P<m>[A-Za-z]+)",
)

FORMATS = {
    "YYYY-MM-DD": rf"{_YEAR}-{_MONTH}-{_DAY}",
    "YYYY/MM/DD": rf"{_YEAR}/{_MONTH}/{_DAY}",
    "DD.MM.YYYY": rf"{_DAY}\.{_MONTH}\.{_YEAR}",
    "DD/MM/YYYY": rf"{_DAY}/{_MONTH}/{_YEAR}",
    "MM/DD/YYYY": rf"{_MONTH}/{_DAY}/{_YEAR}",
    "DD-MM-YYYY": rf"{_DAY}-{_MONTH}-{_YEAR}",
    "MM-DD-YYYY": rf"{_MONTH}-{_DAY}-{_YEAR}",
    "DD Mon YYYY": rf"{_DAY}[ -]{_NAME}\.?[ -]{_YEAR}",
    "Mon DD, YYYY": rf"{_NAME}\.? {_DAY},? {_YEAR}",
}
"""Formats by their names, as patterns of the date; a time of day may follow."""

_LOOKS = re.compile(r"\d{4}[-/]\d|\d[./-]\d{1,2}[./-]\d{4}|[A-Za-z]{3}.*\d{4}")
_ORDERS = {"DD/MM/YYYY": "MM/DD/YYYY", "DD-MM-YYYY": "MM-DD-YYYY"}


def read_dates(texts: Texts, form: str) -> tuple[Days, NDArray[np.bool_]]:
    """Reads cells as dates.

    Args:
        texts: A column, [N].
        form: A name of ``FORMATS``. Dates with a time zone are read in UTC, others as they stand.

    Returns:
        Days since 1970-01-01, [N], NaN for cells that are missing or no date; and which cells are
        no date of this format, [N].

    Example:
        >>> days, bad = read_dates(Texts.of(["01/02/1970 12:00", "30/02/1970"]), "DD/MM/YYYY")
        >>> days.tolist(), bad.tolist()
        ([31.5, nan], [False, True])
    """
    levels, codes = texts.levels
    if not levels:
        return np.full(len(codes), np.nan), np.zeros(len(codes), dtype=bool)
    days = np.append(_days(levels, form), np.nan)[codes]  # -1, a missing cell, takes the last
    return days, np.isnan(days) & (codes >= 0)


def find_format(name: str, texts: Texts, rules: TableRules) -> str | None:
    """The format in which a column writes dates; ``None`` where it holds something else.

    Args:
        name: The column's name, for messages.
        texts: All of its cells, [N].
        rules: What was told of it.

    Raises:
        InvalidData: Nearly all cells are dates and some are not; or day and month cannot be told
            apart.
    """
    levels, codes = texts.levels
    if not levels or not _may_be_dates(levels):
        return None
    counts = np.bincount(codes[codes >= 0], minlength=len(levels))
    fits = {form: ~np.isnan(_days(levels, form)) for form in FORMATS}
    whole = [form for form, mask in fits.items() if mask.all()]
    if len(whole) == 1:
        return whole[0]
    if len(whole) == 2:  # day and month are both 12 or less everywhere
        if rules.day_first is not None:
            return whole[0] if rules.day_first else whole[1]
        row = int(np.flatnonzero(codes >= 0)[0])
        raise InvalidData(
            f"column {name!r}, row {row}",
            texts.cell(row),
            "may begin with the day or with the month, and no other cell tells which",
            "say day_first=true or day_first=false, or write dates as YYYY-MM-DD",
        )
    best = max(fits, key=lambda form: int(counts[fits[form]].sum()))
    if counts[fits[best]].sum() >= MOSTLY * counts.sum():
        row = int(np.flatnonzero((codes >= 0) & ~fits[best][codes])[0])
        raise InvalidData(
            f"column {name!r}, row {row}",
            texts.cell(row),
            f"is not a date, though {MOSTLY:.0%} of the column are dates as {best}",
            "correct the cell",
        )
    for form, other in _ORDERS.items():
        if (fits[form] | fits[other]).all():
            row = int(np.flatnonzero((codes >= 0) & ~fits[best][codes])[0])
            raise InvalidData(
                f"column {name!r}, row {row}",
                texts.cell(row),
                f"is no date as {best}, though other cells are",
                "write dates in one way, best as YYYY-MM-DD",
            )
    return None


def _may_be_dates(levels: list[str]) -> bool:
    """A look at the first few: most columns of text hold no date, and cost no pattern."""
    some = levels[:20]
    return sum(_LOOKS.search(level) is not None for level in some) * 2 > len(some)


def _days(levels: list[str], form: str) -> Days:
    """Days of distinct texts, NaN where one is no date of this format."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(pa.array(levels, pa.string()), f"^{FORMATS[form]}{_TIME}$")
    fits = ~np.asarray(pc.is_null(found).to_numpy(zero_copy_only=False), dtype=bool)
    if not fits.any():
        return np.full(len(levels), np.nan)
    part = {field.name: pc.struct_field(found, field.name) for field in found.type}

    def number(key: str) -> NDArray[np.float64]:
        texts = pc.if_else(pc.equal(part[key], ""), None, part[key])
        values = pc.fill_null(pc.cast(texts, pa.float64()), 0.0)
        return np.asarray(values.to_numpy(zero_copy_only=False))

    year, day = number("y"), number("d")
    month = _month_numbers(part["m"]) if "Mon" in form else number("m")
    fits &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (year >= 1)
    months = np.where(fits, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    date = months.astype("datetime64[D]") + np.where(fits, day - 1, 0).astype(np.int64)
    fits &= date.astype("datetime64[M]") == months  # 30 February is in March
    clock, clock_fits = _clock(number, part)
    found_days = date.astype(np.int64) + clock
    return np.where(fits & clock_fits, found_days, np.nan)


def _clock(number: Any, part: dict[str, Any]) -> tuple[Days, NDArray[np.bool_]]:
    """Time of day as a share of a day, in UTC where a zone is given; and whether it is one."""
    hour, minute, second = number("H"), number("M"), number("S")
    half = np.array([(p or "").lower() for p in part["P"].to_pylist()])
    fits = (hour < 24) & (minute < 60) & (second < 61)
    fits &= (half == "") | ((hour >= 1) & (hour <= 12))
    hour = np.where(half != "", hour % 12 + 12 * (half == "pm"), hour)
    zone = np.array([_zone_minutes(z or "") for z in part["Z"].to_pylist()])
    return (hour * 3600 + (minute - zone) * 60 + second) / 86_400, fits


def _zone_minutes(zone: str) -> int:
    if zone in ("", "Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return -minutes if zone[0] == "-" else minutes


def _month_numbers(names: Any) -> NDArray[np.float64]:
    known = {name: i + 1 for i, name in enumerate(_MONTHS)}
    known |= {name: i + 1 for i, name in enumerate(_LONG_MONTHS)} | {"sept": 9}
    return np.array([float(known.get((n or "").lower(), 0)) for n in names.to_pylist()])
