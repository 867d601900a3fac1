"""Prints the comparison: a table that fits the terminal, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gossamer.report.compare import COLUMNS, ComparisonRow, format_cell
from gossamer.report.quantities import format_number, quantity

_ANY_WIDTH = 10_000


def print_comparison(
    rows: Sequence[ComparisonRow], console: Console, *, json: bool = False
) -> None:
    """Prints rows as a table, or as JSON (a list of :meth:`ComparisonRow.to_json`).

    At a terminal too narrow for one line a row, runs become columns. In a file or pipe, which has
    no width, lines stay whole.
    """
    if json:
        text = dumps([row.to_json() for row in rows], indent=2, allow_nan=False)
        console.print(text, soft_wrap=True, markup=False, highlight=False)
        return
    cells = _cells(rows)
    caption = None
    if any(row.n > 1 for row in rows):
        caption = "mean ± standard error over the seeds; ↑ higher, ↓ lower is better"
    table = _table(cells, left=cells[0].index("sparsity"), caption=caption)
    needed = _width(table, console)
    if not console.is_terminal:
        before, console.width = console.width, max(needed, console.width)
        console.print(table)
        console.width = before
        return
    turned = _table([list(row) for row in zip(*cells, strict=True)], left=1, caption=caption)
    fits = needed <= console.width or _width(turned, console) > console.width
    console.print(table if fits else turned)


def _cells(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """The table as texts, its headings first; data and model only where they differ."""
    named = [key for key in ("data", "model") if len({getattr(row, key) for row in rows}) > 1]
    metrics = [key for key in COLUMNS if any(key in row.values for row in rows)]
    heads = [f"{quantity(key).label} {quantity(key).arrow}".strip() for key in metrics]
    cells = [["run", "method", *named, "sparsity", "seeds", *heads]]
    for row in rows:
        names = [getattr(row, key) or "–" for key in ("method", *named)]
        sparsity = "–" if row.sparsity is None else format_number("sparsity", row.sparsity)
        seeds = ", ".join("–" if seed is None else str(seed) for seed in row.seeds)
        values = [format_cell(row, key) for key in metrics]
        cells.append([row.name, *names, sparsity, seeds, *values])
    return cells


def _table(cells: list[list[str]], *, left: int, caption: str | None) -> Table:
    """A table of texts; its first ``left`` columns are words, the others numbers."""
    table = Table(box=None, pad_edge=False, caption=caption)
    for place, head in enumerate(cells[0]):
        side: JustifyMethod = "left" if place < left else "right"
        table.add_column(Text(head, "bold"), justify=side, overflow="fold")
    for line in cells[1:]:
        table.add_row(*map(Text, line))  # Text: brackets in a name are no markup
    return table


def _width(table: Table, console: Console) -> int:
    options = console.options.update(max_width=_ANY_WIDTH)
    return Measurement.get(console, options, table).maximum
