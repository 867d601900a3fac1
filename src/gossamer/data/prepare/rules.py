"""``TableRules``: what a table's user decides about cells that are missing, new or ambiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gossamer.errors import InvalidValue

Missing = Literal["mean", "error", "drop"]
Unknown = Literal["other", "error"]
Decimal = Literal["point", "comma"]


@dataclass(frozen=True, kw_only=True)
class TableRules:
    """How a table is read; the default is what most people expect.

    Attributes:
        missing: Of a cell that holds nothing: ``"mean"`` puts the mean of the training part in the
            place of a number or date, beside a feature that says so where training had missing
            cells, and makes it a level of its own in a category; ``"error"`` refuses it; ``"drop"``
            leaves its row out of all parts, and refuses it in prediction.
        unknown: Of a level that training never saw: ``"other"`` or ``"error"``.
        day_first: How ``03/04/2024`` reads where the column does not tell; ``None`` refuses it.
        decimal: How ``1,234`` reads where the column does not tell: ``"comma"`` is 1.234,
            ``"point"`` is 1234; ``None`` refuses it.

    Example:
        >>> TableRules(missing="drop").unknown
        'other'
    """

    missing: Missing = "mean"
    unknown: Unknown = "other"
    day_first: bool | None = None
    decimal: Decimal | None = None

    def __post_init__(self) -> None:
        for name, kind in (("missing", Missing), ("unknown", Unknown)):
            known = get_args(kind)
            if getattr(self, name) not in known:
                rule = f"must be one of: {', '.join(known)}"
                raise InvalidValue(name, getattr(self, name), rule)
        if self.decimal not in (None, *get_args(Decimal)):
            raise InvalidValue("decimal", self.decimal, "must be point, comma or None")
        if self.day_first not in (None, True, False):
            raise InvalidValue("day_first", self.day_first, "must be true, false or None")


DEFAULT_RULES = TableRules()
