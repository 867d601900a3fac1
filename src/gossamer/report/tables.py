"""The tables of the page: results, every metric, settings and environment."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from gossamer.report.compare import COLUMNS, ComparisonRow, Group, format_cell
from gossamer.report.keys import (
    DETECTION,
    detection_words,
    ood_label,
    ood_suffixes,
    shift_key,
    shift_values,
)
from gossamer.report.quantities import QUANTITIES, format_number, quantity
from gossamer.report.reader import RunResult, flatten

_TILES = (
    "accuracy",
    "rmse",
    "nll",
    "ece",
    "crps",
    "nnz",
    "sparsity",
    "checkpoint_bytes",
    "seconds",
)

_MOST_COLUMNS = 100

_FACTS = (
    ("data", "config", "data"),
    ("model", "config", "model"),
    ("epochs", "config", "epochs"),
    ("batch", "config", "batch_size"),
    ("seed", "config", "seed"),
    ("preset", "config", "preset"),
    ("Python", "environment", "python"),
    ("torch", "environment", "torch"),
    ("threads", "environment", "threads"),
)


def facts(runs: Sequence[RunResult]) -> str:
    """The few settings and versions a reader asks for first; all values where runs differ."""
    items = []
    for words, source, key in _FACTS:
        tables = [getattr(run, source) for run in runs]
        values = dict.fromkeys(_value(table[key]) for table in tables if table.get(key) is not None)
        if values:
            items.append(f"<div><dt>{words}</dt><dd>{', '.join(values)}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>' if items else ""


def tiles(row: ComparisonRow) -> str:
    """The headline numbers of a single group."""
    cells = []
    for key in _TILES:
        value = row.values.get(key)
        if value is not None:
            number = escape(format_number(key, value.mean))
            error = value.standard_error
            spread = f" <small>± {escape(format_number(key, error))}</small>" if error else ""
            cells.append(
                f'<div class="tile"><b>{number}{spread}</b><span>{quantity(key).label}</span></div>'
            )
    if not cells:
        return '<p class="missing">No metrics were recorded: did the run finish?</p>'
    return f'<div class="tiles">{"".join(cells)}</div>'


def results(rows: Sequence[ComparisonRow], keys: Sequence[str]) -> str:
    """One line a group with the main metrics; the best value of each column is set bold.

    Args:
        rows: One a group.
        keys: Label and colour of each group, as HTML.
    """
    columns = [key for key in ("sparsity", *COLUMNS) if any(key in row.values for row in rows)]
    # Values of different data or tasks have no best one.
    comparable = len(rows) > 1 and len({row.data for row in rows}) == 1
    best = {key: _best(rows, key) if comparable else None for key in columns}
    lines = []
    for row, key in zip(rows, keys, strict=True):
        several = f"{row.n} runs, seeds {_seeds(row)}" if row.n > 1 else row.name
        name = f'{key}<span class="sub">{escape(several)}</span>'
        cells = [_cell(row, column, best[column]) for column in columns]
        lines.append(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>')
    heads = "".join(f'<th scope="col">{_heading(column)}</th>' for column in columns)
    return _scroll(f"<tr><th></th>{heads}</tr>", "".join(lines))


def all_metrics(rows: Sequence[ComparisonRow], groups: Sequence[Group]) -> str:
    """Every metric but those of single severities with its meaning, one column a group."""
    found = {key: None for row in rows for key in row.values}
    known = [key for key in QUANTITIES if key in found]
    # Single severities have tables of their own.
    keys = known + [key for key in found if key not in QUANTITIES and shift_key(key) is None]
    if not keys:
        return '<p class="missing">No metrics were recorded.</p>'
    heads = "".join(f'<th scope="col">{escape(group.label)}</th>' for group in groups)
    lines = [
        f'<tr><th scope="row">{_heading(key)}</th>'
        + "".join(f"<td>{escape(format_cell(row, key))}</td>" for row in rows)
        + f'<td class="words">{escape(quantity(key).meaning)}</td></tr>'
        for key in keys
    ]
    return _scroll(f"<tr><th>metric</th>{heads}<th></th></tr>", "".join(lines))


def detection(rows: Sequence[ComparisonRow], groups: Sequence[Group]) -> str:
    """A line for every foreign set and group: how well each score tells it; empty if none does."""
    lines = [
        (row, group, suffix)
        for row, group in zip(rows, groups, strict=True)
        for suffix in ood_suffixes(row.values)
    ]
    shown = [k for k in DETECTION if any(k + suffix in row.values for row, _, suffix in lines)]
    if not lines:
        return ""
    tasks = dict.fromkeys(row.task for row, _, _ in lines)
    heads = "".join(
        f'<th scope="col">{escape(detection_words(k, tasks=tasks))} {quantity(k).arrow}</th>'
        for k in shown
    )
    cells = [
        f'<tr><th scope="row">{escape(ood_label(suffix, row.ood))}{_of(group, groups)}</th>'
        + "".join(f"<td>{escape(format_cell(row, k + suffix))}</td>" for k in shown)
        + "</tr>"
        for row, group, suffix in lines
    ]
    words = (
        "AUROC of telling foreign inputs from the test part by each score: 0.5 is chance. AUPR and "
        "FPR95 are by the first score."
    )
    return (
        "<h3>Out-of-distribution inputs</h3>"
        + _scroll(f"<tr><th>set</th>{heads}</tr>", "".join(cells))
        + f'<p class="lacking">{words}</p>'
    )


def shift(rows: Sequence[ComparisonRow], groups: Sequence[Group]) -> str:
    """A table for every metric under corruption, a column for every severity; empty if none."""
    found = [shift_values({key: key for key in row.values}) for row in rows]
    metrics = dict.fromkeys(metric for one in found for metric in one)
    html = ""
    for metric in metrics:
        names = dict.fromkeys(name for one in found for name in one.get(metric, {}))
        severities = sorted({s for one in found for v in one.get(metric, {}).values() for s in v})
        heads = "".join(f'<th scope="col">{s or "clean"}</th>' for s in severities)
        lines = ""
        for name in names:
            for one, row, group in zip(found, rows, groups, strict=True):
                keys = one.get(metric, {}).get(name)
                if keys is not None:
                    cells = [format_cell(row, keys[s]) if s in keys else "–" for s in severities]
                    values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                    head = escape(name) + _of(group, groups)
                    lines += f'<tr><th scope="row">{head}</th>{values}</tr>'
        html += f"<h3>{_heading(metric)}</h3>" + _scroll(f"<tr><th></th>{heads}</tr>", lines)
    return html


def coverage(runs: Sequence[RunResult]) -> str:
    """Of a saved model: by level, the share of left-out rows that were covered; else empty."""
    if "left_out" not in runs[0].curves:
        return ""
    found = runs[0].curves["left_out"]
    what = "interval" if "intervals" in runs[0].curves else "set of labels"
    lines = "".join(
        f'<tr><th scope="row">{100 * level:g} %</th><td>{100 * share:.1f} %</td></tr>'
        for level, share in zip(found["nominal"], found["observed"], strict=True)
    )
    words = (
        f"Share of the training rows whose target lay in its {what}, each judged by networks that "
        "never saw it, by what other rows decided."
    )
    return (
        "<h3>Coverage of rows left out</h3>"
        + _scroll(f"<tr><th>{what}</th><th>rows inside</th></tr>", lines)
        + f'<p class="lacking">{words}</p>'
    )


def treated(columns: Sequence[tuple[str, str]]) -> str:
    """What is done to the cells of each column; of very many, of the first."""
    shown = columns[:_MOST_COLUMNS]
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="words">{escape(words)}</td></tr>'
        for name, words in shown
    )
    more = len(columns) - len(shown)
    rest = f'<p class="lacking">{more:,} further columns are not shown.</p>' if more else ""
    return _scroll("<tr><th>column</th><th></th></tr>", lines) + rest


def data_notes(runs: Sequence[RunResult]) -> str:
    """What was inferred of the data and done to their columns, each sentence once."""
    notes = dict.fromkeys(note for run in runs for note in run.data_notes)
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def every_run(runs: Sequence[RunResult]) -> str:
    """The main metrics of each run alone, and what was missing in its folder."""
    numeric = [
        {k: float(v) for k, v in run.metrics.items() if isinstance(v, (int, float))} for run in runs
    ]
    columns = [key for key in COLUMNS if any(key in values for values in numeric)]
    lines = []
    for run, values in zip(runs, numeric, strict=True):
        note = f'<span class="sub">{escape("; ".join(run.notes))}</span>' if run.notes else ""
        cells = [format_number(key, values[key]) if key in values else "–" for key in columns]
        lines.append(
            f'<tr><th scope="row">{escape(run.name)}{note}</th>'
            f"<td>{'–' if run.seed is None else run.seed}</td>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    heads = "".join(f'<th scope="col">{_heading(key)}</th>' for key in columns)
    return _scroll(f"<tr><th>run</th><th>seed</th>{heads}</tr>", "".join(lines))


def shared_and_different(runs: Sequence[RunResult], tables: Sequence[dict[str, Any]]) -> str:
    """Settings of all runs: those in which they differ as a table, the others once."""
    # An empty table sets nothing.
    flats = [{k: v for k, v in flatten(table).items() if v != {}} for table in tables]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    if not keys:
        return '<p class="missing">Not recorded.</p>'
    missing = object()
    differing = [
        k for k in keys if any(f.get(k, missing) != flats[0].get(k, missing) for f in flats)
    ]
    shared = [key for key in keys if key not in differing]
    html = ""
    if differing:
        cells = [["differs", *map(escape, differing)]]
        for run, flat in zip(runs, flats, strict=True):
            values = [_value(flat[key]) if key in flat else "–" for key in differing]
            cells.append([escape(run.name), *values])
        if len(differing) > len(runs):  # the longer side goes down the page
            cells = [list(column) for column in zip(*cells, strict=True)]
        head, *lines = [_line(line) for line in cells]
        html += _scroll(head, "".join(lines))
    if shared:
        items = "".join(
            f"<div><dt>{escape(key)}</dt><dd>{_value(flats[0][key])}</dd></div>" for key in shared
        )
        html += f'<dl class="list">{items}</dl>'
    return html


def _of(group: Group, groups: Sequence[Group]) -> str:
    """Whose line it is, where there are several groups."""
    return f'<span class="sub">{escape(group.label)}</span>' if len(groups) > 1 else ""


def _line(cells: Sequence[str]) -> str:
    values = "".join(f"<td>{cell}</td>" for cell in cells[1:])
    return f'<tr><th scope="row">{cells[0]}</th>{values}</tr>'


def _scroll(head: str, body: str) -> str:
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _heading(key: str) -> str:
    known = quantity(key)
    title = f' title="{escape(known.meaning)}"' if known.meaning else ""
    return f"<span{title}>{escape(known.label)}</span> {known.arrow}".strip()


def _cell(row: ComparisonRow, key: str, best: float | None) -> str:
    value = row.values.get(key)
    marked = (
        ' class="best"' if value is not None and best is not None and value.mean == best else ""
    )
    number, sign, error = format_cell(row, key).partition(" ± ")
    spread = f" <small>± {escape(error)}</small>" if sign else ""
    return f"<td{marked}>{escape(number)}{spread}</td>"


def _best(rows: Sequence[ComparisonRow], key: str) -> float | None:
    means = [row.values[key].mean for row in rows if key in row.values]
    better = quantity(key).better
    if better is None or len(means) < 2 or len(set(means)) == 1:
        return None
    return max(means) if better == "higher" else min(means)


def _seeds(row: ComparisonRow) -> str:
    return ", ".join("–" if seed is None else str(seed) for seed in row.seeds)


def _value(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return escape(", ".join(map(str, value)) or "–")
    return escape(str(value).lower() if isinstance(value, bool) else str(value))
