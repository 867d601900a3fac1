"""A table with its figures in: lines, verdicts, and both as JSON, Markdown and cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.estimates import Estimate
from gossamer.experiments.table import Check, Line, Results, Row, Table
from gossamer.report.quantities import format_number, quantity
from gossamer.train import RunFolder
from gossamer.train.folder import gossamer_version

Cells = tuple[list[str], list[list[str]]]
"""Headings, and rows of as many texts."""


@dataclass(frozen=True)
class Verdict:
    """How a check came out.

    Attributes:
        name: What must hold.
        ok: Whether it does.
        text: The figures that decided it.
    """

    name: str
    ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'✓' if self.ok else '✗'} {self.name}: {self.text}"


@dataclass(frozen=True)
class TableResult:
    """A table with its figures in.

    Attributes:
        table: The table.
        scale: The scale it was run at.
        lines: One for every key, in the table's order.
        verdicts: One for every check, and one that tells of runs that diverged.
        runs: The finished runs' folders.
        report: The HTML report; ``None`` where no run finished.
    """

    table: Table
    scale: str
    lines: tuple[Line, ...]
    verdicts: tuple[Verdict, ...]
    runs: tuple[Path, ...]
    report: Path | None

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(verdict.ok for verdict in self.verdicts)

    def cells(self) -> Cells:
        """The table itself: a line per key, ``mean ± standard error`` in the columns."""
        headings = [f"{quantity(c).label} {quantity(c).arrow}".strip() for c in self.table.columns]
        rows = [
            [line.label, str(len(line.seeds)), *map(line.shown, self.table.columns)]
            for line in self.lines
        ]
        return ["", "n", *headings], rows

    def reference_cells(self) -> Cells:
        """Expected figure, ours, spread and difference side by side, where one is expected."""
        rows = []
        for line in self.lines:
            for metric, expected in self.table.expected.get(line.key, {}).items():
                found = line.values.get(metric)
                ours = [format_number(metric, expected), "–", "–", "–", "0"]
                if found is not None:
                    error = found.standard_error
                    ours[1] = format_number(metric, found.mean)
                    ours[2] = "–" if error is None else format_number(metric, error)
                    ours[3] = f"{found.mean - expected:+.4g}"
                    ours[4] = str(found.n)
                rows.append([line.label, quantity(metric).label, *ours])
        return ["", "metric", self.table.reference, "ours", "±", "difference", "n"], rows

    def to_json(self) -> dict[str, Any]:
        """As JSON values: means under the metrics' own keys, errors and references beside them."""
        return {
            "table": self.table.key,
            "title": self.table.title,
            "scale": self.scale,
            "gossamer": gossamer_version(),
            "columns": list(self.table.columns),
            "rows": [self._line_json(line) for line in self.lines],
            "checks": [{"name": v.name, "ok": v.ok, "text": v.text} for v in self.verdicts],
            "ok": self.ok,
            "report": None if self.report is None else str(self.report),
        }

    def to_markdown(self) -> str:
        """For a document."""
        parts = [f"# {self.table.key}: {self.table.title}", _markdown(*self.cells())]
        reference = self.reference_cells()
        if reference[1]:
            parts.append(_markdown(*reference))
        parts += ["\n".join(f"- {verdict}" for verdict in self.verdicts)] * bool(self.verdicts)
        made = f"Gossamer {gossamer_version()}"
        parts.append(f"Scale {self.scale}; mean ± standard error over n seeds; {made}.")
        return "\n\n".join(parts) + "\n"

    def _line_json(self, line: Line) -> dict[str, Any]:
        return {
            "key": line.key,
            "label": line.label,
            "n": len(line.seeds),
            "seeds": list(line.seeds),
            **{metric: found.mean for metric, found in line.values.items()},
            "standard_error": {m: found.standard_error for m, found in line.values.items()},
            self.table.reference: self.table.expected.get(line.key, {}),
        }


def gather(
    table: Table,
    scale: str,
    rows: Sequence[Row],
    out: Path,
    diverged: Mapping[str, str],
    report: Path | None,
) -> TableResult:
    """Read the results of all runs that finished.

    Args:
        table: The table.
        scale: Its scale.
        rows: Its runs.
        out: The folder that holds their folders.
        diverged: Runs that have no result, with the reason.
        report: The HTML report.
    """
    finished = [row for row in rows if row.run not in diverged]
    lines = []
    for key in dict.fromkeys(row.key for row in rows):
        members = [row for row in rows if row.key == key]
        done = [row for row in members if row in finished]
        metrics = [RunFolder(out / row.run).read_metrics() for row in done]
        lines.append(
            Line(
                key,
                members[0].label,
                tuple(row.config.seed for row in done),
                {name: Estimate.of(values) for name, values in _numbers(metrics).items()},
            )
        )
    results = {line.key: line for line in lines}
    verdicts = [_decide(check, results) for check in table.checks]
    verdicts += [Verdict(f"{run} ends", False, reason) for run, reason in diverged.items()]
    runs = tuple(out / row.run for row in finished)
    return TableResult(table, scale, tuple(lines), tuple(verdicts), runs, report)


def _decide(check: Check, results: Results) -> Verdict:
    try:
        ok, text = check.function(results)
    except KeyError as missing:  # all runs of a row diverged, or lack the metric
        return Verdict(check.name, False, f"there is no {missing.args[0]}")
    return Verdict(check.name, bool(ok), text)


def _numbers(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in metrics:
        for key, value in one.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(key, []).append(float(value))
    return found


def _markdown(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
