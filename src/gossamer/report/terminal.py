"""Prints runs: a comparison that fits the terminal, or JSON; foreign sets; corruptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gossamer.report.compare import COLUMNS, ComparisonRow, format_cell
from gossamer.report.keys import (
    DETECTION,
    detection_words,
    numeric,
    ood_label,
    ood_suffixes,
    shift_key,
    shift_values,
)
from gossamer.report.quantities import format_number, quantity

_ANY_WIDTH = 10_000
_SHIFTED = ("shift_accuracy", "shift_rmse", "shift_nll", "shift_ece", "shift_coverage")


def print_comparison(
    rows: Sequence[ComparisonRow], console: Console, *, json: bool = False
) -> None:
    """Prints rows as a table, or as JSON (a list of :meth:`ComparisonRow.to_json`).

    At a terminal too narrow for one line a row, runs become columns. In a file or pipe, which has
    no width, lines stay whole. Foreign sets, and means under corruption, follow in tables of their
    own where a run has them.
    """
    if json:
        text = dumps([row.to_json() for row in rows], indent=2, allow_nan=False)
        console.print(text, soft_wrap=True, markup=False, highlight=False)
        return
    cells = _cells(rows)
    caption = None
    if any(row.n > 1 for row in rows):
        caption = "mean ± standard error over the seeds; ↑ higher, ↓ lower is better"
    _print(cells, console, left=cells[0].index("sparsity"), caption=caption)
    for further, left in ((_foreign_cells(rows), 2), (_shift_cells(rows), 1)):
        if len(further) > 1:
            console.print()
            _print(further, console, left=left)


def print_measured(
    metrics: Mapping[str, object], console: Console, *, task: str | None, ood: Sequence[str]
) -> None:
    """Prints what of a run's metrics has tables of its own: foreign sets, then severities.

    Args:
        metrics: Flat, by their keys.
        console: Where to.
        task: Of the run.
        ood: Names of its foreign sets.
    """
    values = numeric(metrics)
    suffixes = ood_suffixes(values)
    keys = [key for key in DETECTION if any(key + suffix in values for suffix in suffixes)]
    foreign = [["OOD set", *_detection_heads(keys, [task])]]
    for suffix in suffixes:
        cells = [_number(key, values.get(key + suffix)) for key in keys]
        foreign.append([ood_label(suffix, ood), *cells])
    moved = [["under shift", "", "clean", *"12345"]]
    for metric, found in shift_values(values).items():
        for name, line in found.items():
            cells = [_number(metric, line.get(severity)) for severity in range(6)]
            moved.append([quantity(metric).label, name, *cells])
    for table, left in ((foreign, 1), (moved, 2)):
        if len(table) > 1:
            console.print()
            _print(table, console, left=left)


def has_own_table(key: str, metrics: Mapping[str, object]) -> bool:
    """Whether :func:`print_measured` shows a metric."""
    own = {base + suffix for suffix in ood_suffixes(metrics) for base in DETECTION}
    return shift_key(key) is not None or key in own


def _foreign_cells(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """A line for every run and foreign set, a column for every score; the headings first."""
    lines = [(row, suffix) for row in rows for suffix in ood_suffixes(row.values)]
    keys = [key for key in DETECTION if any(key + suffix in row.values for row, suffix in lines)]
    heads = _detection_heads(keys, [row.task for row, _ in lines])
    cells = [["run", "OOD set", *heads]]
    for row, suffix in lines:
        values = [format_cell(row, key + suffix) for key in keys]
        cells.append([row.name, ood_label(suffix, row.ood), *values])
    return cells


def _shift_cells(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """A line for every run, a column for every mean under corruption; the headings first."""
    keys = [key for key in _SHIFTED if any(key in row.values for row in rows)]
    cells = [["run", *(f"{quantity(key).label} {quantity(key).arrow}".strip() for key in keys)]]
    for row in rows:
        if any(key in row.values for key in keys):
            cells.append([row.name, *(format_cell(row, key) for key in keys)])
    return cells


def _detection_heads(keys: Sequence[str], tasks: Sequence[str | None]) -> list[str]:
    return [
        f"{'AUROC ' if key.startswith('auroc') else ''}"
        f"{detection_words(key, tasks=tasks)} {quantity(key).arrow}"
        for key in keys
    ]


def _cells(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """The table as texts, its headings first; data and model only where they differ."""
    named = [key for key in ("data", "model") if len({getattr(row, key) for row in rows}) > 1]
    metrics = [key for key in COLUMNS if any(key in row.values for row in rows)]
    heads = [f"{quantity(key).label} {quantity(key).arrow}".strip() for key in metrics]
    ranked = any(row.rank is not None for row in rows)
    cells = [[*(["#"] if ranked else []), "run", "method", *named, "sparsity", "seeds", *heads]]
    for row in rows:
        names = [getattr(row, key) or "–" for key in ("method", *named)]
        sparsity = "–" if row.sparsity is None else format_number("sparsity", row.sparsity)
        seeds = ", ".join("–" if seed is None else str(seed) for seed in row.seeds)
        values = [format_cell(row, key) for key in metrics]
        place = ["–" if row.rank is None else str(row.rank)] if ranked else []
        cells.append([*place, row.name, *names, sparsity, seeds, *values])
    return cells


def _number(key: str, value: float | None) -> str:
    return "–" if value is None else format_number(key, value)


def _print(
    cells: list[list[str]], console: Console, *, left: int, caption: str | None = None
) -> None:
    """Prints a table, turned where only that fits a terminal."""
    table = _table(cells, left=left, caption=caption)
    needed = _width(table, console)
    if not console.is_terminal:
        before, console.width = console.width, max(needed, console.width)
        console.print(table)
        console.width = before
        return
    turned = _table([list(row) for row in zip(*cells, strict=True)], left=1, caption=caption)
    fits = needed <= console.width or _width(turned, console) > console.width
    console.print(table if fits else turned)


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
