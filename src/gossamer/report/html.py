"""Writes the report: one HTML file that needs nothing else, no script, no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from gossamer.errors import InvalidValue
from gossamer.files import write_whole
from gossamer.report import tables
from gossamer.report.compare import ComparisonRow, Group, comparison, group_runs
from gossamer.report.figures import PLOTS
from gossamer.report.plots import Plot
from gossamer.report.reader import RunResult, read_runs
from gossamer.report.saved import read_saved
from gossamer.report.style import Series, draw, series_of
from gossamer.report.theme import CSS, MARK

_LINES = {"solid": "", "dashed": ' stroke-dasharray="5 3"'}
_GROUP_DASHES = ("", "8 3", "2 2.500", "9 3 2 3")
_OURS = b"Gossamer report"
"""What every page of ours says."""


def write_report(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Writes one self-contained HTML page about one or several runs, or about a saved model.

    Args:
        runs: Run folders; several are drawn over one another, and those that differ only by seed
            share a colour and a line of the table. Or one file that an estimator or a posterior
            saved.
        out: The file to write, ending in ``.html``; of a folder, ``report.html`` inside it. An
            older report is replaced, and only once the new one is whole.

    Returns:
        The file written.

    Raises:
        InvalidValue: No runs, a file beside others, or an ``out`` that is no HTML file or cannot
            be written; or, of a saved model, a page there that is none of ours.
        CheckpointError: A folder that is no run, a file that is no model, either of them damaged,
            or an ``out`` that is a link.
    """
    results = read_results(runs)
    path = Path(out)
    if path.is_dir() or not path.suffix:
        path = path / "report.html"
    if path.suffix.lower() not in (".html", ".htm"):
        raise InvalidValue("out", str(path), "must end in .html", "e.g. report.html")
    if results[0].is_saved and path.exists() and _OURS not in path.read_bytes():
        rule = "exists and is no page of gossamer report"
        raise InvalidValue("out", str(path), rule, "choose another name with --out")
    page = render(results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
    except OSError as error:
        rule = f"could not be written ({error.strerror})"
        raise InvalidValue("out", str(path), rule, "choose another place") from error
    return path


def read_results(paths: Sequence[str | os.PathLike[str]]) -> list[RunResult]:
    """Reads what a page is to be about: run folders, or one saved model.

    Raises:
        InvalidValue: No path, or a file beside others.
        CheckpointError: A folder that is no run, or a file that is no model.
    """
    files = [path for path in paths if Path(path).is_file()]
    if len(files) == len(paths) == 1:
        return [read_saved(files[0])]
    if files and len(paths) > 1:
        raise InvalidValue(
            "runs",
            str(files[0]),
            "is a file beside others: a page is about run folders or about one saved model",
            "report on it alone",
        )
    return read_runs(paths)


def render(runs: Sequence[RunResult]) -> str:
    """The page about runs already read."""
    groups = group_runs(runs)
    rows = comparison(runs)
    ordered = [run for group in groups for run in group.runs]
    keys = [_group_key(place, group.label) for place, group in enumerate(groups)]
    results = tables.results(rows, keys)
    sections = [
        ("Results", tables.tiles(rows[0]) if len(groups) == 1 else _card_of(results)),
        *_middle_sections(rows, groups),
        ("All metrics", _card_of(tables.all_metrics(rows, groups))),
        ("Setup", _setup(ordered)),
    ]
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name, _ in sections)
    body = "".join(
        f'<section id="{_anchor(name)}"><h2>{name}</h2>{html}</section>' for name, html in sections
    )
    title = _title(ordered)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Gossamer</title><style>{CSS}</style></head>\n<body>"
        f'<header><div class="brand">{MARK}{_OURS.decode()}</div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(_lead(groups))}</p>'
        f"{tables.facts(ordered)}<nav>{links}</nav></header>\n"
        f"<main>{body}</main>\n<footer>{escape(_origin(ordered))}</footer></body></html>\n"
    )


def _middle_sections(
    rows: Sequence[ComparisonRow], groups: Sequence[Group]
) -> list[tuple[str, str]]:
    """What a page shows between its headline and all metrics: figures, some with a table."""
    figures = _figure_sections(groups)
    found = {
        "Calibration": tables.coverage([run for group in groups for run in group.runs]),
        "Uncertainty": tables.detection(rows, groups),
        "Shift": tables.shift(rows, groups),
    }
    sections = []
    for name in dict.fromkeys([*(plot.section for plot in PLOTS), *found]):
        parts = [figures[name]] if name in figures else []
        parts += [_card_of(found[name])] if found.get(name) else []
        if parts:
            sections.append((name, f'<div class="stack">{"".join(parts)}</div>'))
    return sections


def _figure_sections(groups: Sequence[Group]) -> dict[str, str]:
    series = series_of(groups)
    # A run that does not say its task is taken for a classifier, and its gaps are noted.
    cards: dict[str, list[tuple[Plot, str]]] = {}
    for plot in PLOTS:
        concerned = [one for one in series if plot.task in (None, one.run.task or "classification")]
        # A saved model has no part that was measured: that is no gap.
        optional = plot.optional or all(one.run.is_saved for one in concerned)
        if optional and all(plot.read(one.run) is None for one in concerned):
            continue
        if concerned:
            cards.setdefault(plot.section, []).append((plot, _card(plot, concerned)))
    return {name: _grid(found) for name, found in cards.items()}


def _grid(cards: Sequence[tuple[Plot, str]]) -> str:
    """Cards two in a row; one that would stand alone gets the row, its caption at its side."""
    html, open_row = [], False
    for index, (plot, card) in enumerate(cards):
        followed = index + 1 < len(cards) and not cards[index + 1][0].wide
        place = "wide" if plot.wide else "" if open_row or followed else "lone"
        open_row = not (plot.wide or open_row or place)
        html.append(f'<article class="card {place}" id="{plot.key}">{card}</article>')
    return f'<div class="grid">{"".join(html)}</div>'


def _card(plot: Plot, series: Sequence[Series]) -> str:
    values = [(one, plot.read(one.run)) for one in series]
    drawn = [(one, value) for one, value in values if value is not None]
    lacking = [one.run.name for one, value in values if value is None]
    head = f"<h3>{plot.title}</h3>"
    why = f" {plot.absent}" if plot.absent else ""
    if not drawn:
        who = "this run" if len(series) == 1 else "any of these runs"
        return f'{head}<p class="missing">Not recorded by {who}.{why}</p>'
    notes = [f"Not recorded by {escape(', '.join(lacking))}.{why}"] if lacking else []
    if plot.most is not None and len(drawn) > plot.most:
        notes.append(f"Only the first {plot.most} of {len(drawn)} runs are shown.")
        drawn = drawn[: plot.most]
    shown = [_key("var(--ink)", _LINES[pattern], words) for pattern, words in plot.keys]
    if len({one.place for one in series}) > 1 and not plot.own_colours:
        groups = dict.fromkeys((one.place, one.label) for one, _ in drawn)
        shown = [_group_key(*group) for group in groups] + shown
    keys = f'<div class="keys">{"".join(shown)}</div>' if shown else ""
    svg = draw(plot.draw, drawn, prefix=plot.key, label=plot.title)
    caption = plot.caption.replace(" %", "&nbsp;%")
    caption += "".join(f'<p class="lacking">{note}</p>' for note in notes)
    return f"{head}{keys}<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _group_key(place: int, label: str) -> str:
    dash = _GROUP_DASHES[place // 6 % len(_GROUP_DASHES)]
    pattern = f' stroke-dasharray="{dash}"' if dash else ""
    return _key(f"var(--s{place % 6})", pattern, label)


def _key(colour: str, pattern: str, words: str) -> str:
    return (
        '<span class="key"><svg viewBox="0 0 26 10" aria-hidden="true">'
        f'<line x1="0" y1="5" x2="26" y2="5" style="stroke: {colour}" stroke-width="3"'
        f"{pattern}/></svg>{escape(words)}</span>"
    )


def _card_of(content: str) -> str:
    return f'<div class="card">{content}</div>'


def _setup(runs: Sequence[RunResult]) -> str:
    config = tables.shared_and_different(runs, [run.config for run in runs])
    environment = tables.shared_and_different(runs, [run.environment for run in runs])
    cards = [f"<h3>Settings</h3>{config}"]
    if not runs[0].is_saved:
        cards.append(f"<h3>Environment</h3>{environment}")
    if runs[0].columns:
        cards.append(f"<h3>Columns</h3>{tables.treated(runs[0].columns)}")
    if len(runs) > 1 or runs[0].notes:
        cards.insert(0, f"<h3>Runs</h3>{tables.every_run(runs)}")
    if any(run.data_notes for run in runs):
        cards.insert(0, f"<h3>Data</h3>{tables.data_notes(runs)}")
    return f'<div class="stack">{"".join(map(_card_of, cards))}</div>'


def _title(runs: Sequence[RunResult]) -> str:
    if len(runs) == 1:
        return runs[0].name
    data = {run.data for run in runs}
    place = f" on {next(iter(data))}" if len(data) == 1 and None not in data else ""
    return f"{len(runs)} runs{place}"


def _lead(groups: Sequence[Group]) -> str:
    return (
        ", ".join(group.label for group in groups)
        if len(groups) <= 8
        else f"{len(groups)} settings"
    )


def _origin(runs: Sequence[RunResult]) -> str:
    versions = dict.fromkeys(str(v) for run in runs if (v := run.config.get("gossamer")))
    what = "Saved by" if runs[0].is_saved else "Runs made with"
    made = f"{what} Gossamer {', '.join(versions)}. " if versions else ""
    return f"{made}This page is complete in itself: no script, no network."


def _anchor(name: str) -> str:
    return "section-" + name.lower().replace(" ", "-")
