"""How the numbers of a column are written: decimals, thousands, a currency or a per cent sign.

A column has one style, found from all of its cells and stored with the preparation. ``1234.5`` is
the plain one; ``1,234.5`` and ``1.234,5`` have thousands marks (or spaces or apostrophes in their
place); ``$1,234.5`` and ``12 %`` carry a mark on every cell, which is taken off: 12 % reads as 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.texts import Texts, as_mask, bytes_of, joined
from gossamer.errors import InvalidData

Numbers = NDArray[np.float64]

CURRENCIES = ("$", "€", "£", "¥", "USD", "EUR", "GBP", "CHF")
_MARKS = (*CURRENCIES, "%")
_BODIES = {
    (".", False): "1234.5",
    (".", True): "1,234.5",
    (",", False): "1234,5",
    (",", True): "1.234,5",
}
_INTEGER = r"^[+-]?\d+$"
_DIGITS = b"+-0123456789"
_SPACES = " \u00a0\u202f'’"
# From this share of numbers (or dates) on, the few other cells are typing errors, no categories.
MOSTLY = 0.9


@dataclass(frozen=True)
class NumberStyle:
    """One way to write numbers.

    Attributes:
        decimal: ``"."`` or ``","``.
        grouped: Whether thousands may be marked: by the other of the two, a space, an apostrophe.
        mark: What every cell carries: a currency, ``"%"`` or nothing.

    Example:
        >>> NumberStyle(",", True, "€").sample, NumberStyle.from_sample("1234.5 %").mark
        ('€1.234,5', '%')
    """

    decimal: str = "."
    grouped: bool = False
    mark: str = ""

    @property
    def sample(self) -> str:
        """A number in this style: its name in messages and in ``preparation.json``."""
        body = _BODIES[self.decimal, self.grouped]
        return f"{body} %" if self.mark == "%" else self.mark + body

    @classmethod
    def from_sample(cls, sample: str) -> NumberStyle:
        """The style of a sample."""
        for mark in ("", *_MARKS):
            for decimal, grouped in _BODIES:
                style = cls(decimal, grouped, mark)
                if style.sample == sample:
                    return style
        raise InvalidData("style of numbers", sample, "is not known", "the file is damaged")

    def read(self, texts: Texts) -> tuple[Numbers, NDArray[np.bool_]]:
        """Reads cells.

        Args:
            texts: A column, [N].

        Returns:
            The numbers, float64 [N], NaN for cells that are missing or no number; and which cells
            are no number of this style, [N].
        """
        numbers, bad = texts.read_once(self, lambda: self._read(texts))
        return numbers, bad

    def _read(self, texts: Texts) -> tuple[Numbers, NDArray[np.bool_]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self == PLAIN:
            try:
                return self._cast(texts)
            except pa.ArrowInvalid:
                pass  # a missing cell, or one that is no number
        fits = as_mask(self.matches(texts.cells)) & ~texts.missing
        body = pc.if_else(pa.array(fits), joined(self._bare(texts.cells)), None)
        numbers = _to_numpy(pc.cast(self._plain(body), pa.float64()))
        return numbers, ~fits & ~texts.missing

    def is_all_of(self, texts: Texts) -> bool:
        """Whether every cell is a number as pyarrow reads it, in the plain style: a quick look."""
        import pyarrow as pa

        try:
            return not np.isnan(texts.read_once(self, lambda: self._cast(texts))[0]).any()
        except pa.ArrowInvalid:
            return False

    def _cast(self, texts: Texts) -> tuple[Numbers, NDArray[np.bool_]]:
        """Plain numbers as pyarrow reads them, which raises for a cell that is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = _to_numpy(pc.cast(texts.cells, pa.float64()))
        holes = np.isnan(numbers)
        return numbers, holes & ~texts.missing if holes.any() else holes

    def matches(self, cells: Any) -> Any:
        """Which cells of an arrow array are numbers of this style, as an arrow array."""
        import pyarrow.compute as pc

        fits = pc.match_substring_regex(self._bare(cells), self._pattern())
        if not self.mark:
            return fits
        return pc.and_(fits, pc.match_substring(cells, self.mark))

    def _pattern(self) -> str:
        point = rf"\{self.decimal}"
        plain = rf"(\d+{point}?\d*|{point}\d+)([eE][+-]?\d+)?"
        options = [plain, "(?i:inf|infinity)"] if self == PLAIN else [plain]
        if self.grouped:
            # No group begins with 0: 0,234 is a fraction. One mark serves a whole number.
            groups = ["," if self.decimal == "." else r"\.", *_SPACES]
            options += [rf"[1-9]\d{{0,2}}({mark}\d{{3}})+({point}\d*)?" for mark in groups]
        return rf"^[+-]?({'|'.join(options)})$"

    def _bare(self, cells: Any) -> Any:
        """Cells without the mark, which stands before the number or behind it."""
        import pyarrow.compute as pc

        if not self.mark:
            return cells
        mark = "".join(rf"\{c}" if c in "$" else c for c in self.mark)
        front = pc.replace_substring_regex(cells, rf"^([+-]?)\s*{mark}\s*([+-]?)", r"\1\2")
        return pc.replace_substring_regex(front, rf"[\s\x{{00a0}}\x{{202f}}]*{mark}$", "")

    def _plain(self, cells: Any) -> Any:
        import pyarrow.compute as pc

        if self.grouped:
            other = "," if self.decimal == "." else "."
            cells = pc.replace_substring_regex(cells, rf"[{other}{_SPACES}]", "")
        return pc.replace_substring(cells, ",", ".") if self.decimal == "," else cells


PLAIN = NumberStyle()


def find_style(name: str, texts: Texts, rules: TableRules) -> NumberStyle | None:
    """The style in which a column writes numbers; ``None`` where it holds something else.

    Args:
        name: The column's name, for messages.
        texts: All of its cells, [N].
        rules: What was told of it.

    Raises:
        InvalidData: Nearly all cells are numbers, because a typing error must not turn a number
            into a category; or ``1,234`` may be either of two numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    levels, codes = texts.levels
    if not levels:
        return None
    cells = pa.array(levels, pa.string())
    counts = np.bincount(codes[codes >= 0], minlength=len(levels))
    present = [mark for mark in _MARKS if as_mask(pc.match_substring(cells, mark)).any()]
    fits: dict[NumberStyle, NDArray[np.bool_]] = {}
    for style in (
        PLAIN,
        *(NumberStyle(d, True, mark) for mark in ("", *present) for d in (".", ",")),
    ):
        fits[style] = as_mask(style.matches(cells))
        if style == PLAIN and fits[style].all():
            return PLAIN
    whole = [style for style, mask in fits.items() if mask.all()]
    if whole:
        return _narrowed(_chosen(name, texts, levels, whole, rules), cells)
    best = max(fits, key=lambda style: int(counts[fits[style]].sum()))
    if counts[fits[best]].sum() >= MOSTLY * counts.sum():
        row = int(np.flatnonzero((codes >= 0) & ~fits[best][codes])[0])
        raise InvalidData(
            f"column {name!r}, row {row}",
            texts.cell(row),
            f"is not a number, though {MOSTLY:.0%} of the column looks like numbers",
            f"correct the cell; the others read like {_narrowed(best, cells).sample}",
        )
    return None


def whole_numbers(texts: Texts, style: NumberStyle, numbers: Numbers) -> bool:
    """Whether all cells that hold something are written as whole numbers."""
    import pyarrow.compute as pc

    present = numbers[~np.isnan(numbers)]
    if present.size == 0 or not np.array_equal(present, np.floor(present)):
        return False
    # Of numbers in nothing but digits and signs no cell is looked at by itself.
    if style != PLAIN or not any(part.translate(None, _DIGITS) for part in bytes_of(texts.cells)):
        return True
    return bool((as_mask(pc.match_substring_regex(texts.cells, _INTEGER)) | texts.missing).all())


def _chosen(
    name: str, texts: Texts, levels: list[str], whole: list[NumberStyle], rules: TableRules
) -> NumberStyle:
    """Of styles that fit every cell, the one that is meant."""
    if len({style.decimal for style in whole}) == 1:
        return whole[0]
    point, comma = whole[0], whole[1]
    separators = {c for level in levels for c in level if c in ",."}
    if not separators:
        return point
    if rules.decimal is not None:
        return point if rules.decimal == "point" else comma
    if point.mark in CURRENCIES:  # no currency has three decimals in use: it is a thousands mark
        return point if separators == {","} else comma
    row = next(r for r in range(len(texts)) if set(texts.cell(r)) & separators)
    raise InvalidData(
        f"column {name!r}, row {row}",
        texts.cell(row),
        "may have a decimal comma or a thousands mark, and no other cell tells which",
        "say decimal=comma or decimal=point, or write decimals with a point and no thousands mark",
    )


def _narrowed(style: NumberStyle, cells: Any) -> NumberStyle:
    """The style without thousands marks, where no cell has one."""
    bare = NumberStyle(style.decimal, False, style.mark)
    fits, fits_bare = as_mask(style.matches(cells)), as_mask(bare.matches(cells))
    return bare if np.array_equal(fits, fits_bare) else style


def _to_numpy(cells: Any) -> Numbers:
    numbers: Numbers = joined(cells).to_numpy(zero_copy_only=False)
    return numbers
