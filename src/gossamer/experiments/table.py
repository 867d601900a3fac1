"""A table of runs: lines over seeds, columns of metrics, expected figures, checks."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from gossamer.estimates import Estimate
from gossamer.experiments.experiment import Finished, Scope
from gossamer.experiments.outcome import Outcome, TextTable, Verdict
from gossamer.experiments.task import RunTask, Values
from gossamer.report import write_report
from gossamer.report.line_figures import draw_lines
from gossamer.report.quantities import format_number, format_spread, quantity
from gossamer.report.style import draw_file
from gossamer.train import RunConfig


@dataclass(frozen=True)
class Line:
    """What the runs of one line gave.

    Attributes:
        key: The ``line`` of its :class:`RunTask`.
        label: Names it for a reader.
        seeds: Seeds of the runs that finished.
        values: Every metric over these runs.
    """

    key: str
    label: str
    seeds: tuple[int, ...]
    values: Mapping[str, Estimate]

    def mean(self, metric: str) -> float:
        """A metric's mean; NaN where no run has it, so that no check passes on it."""
        found = self.values.get(metric)
        return float("nan") if found is None else found.mean

    def shown(self, metric: str) -> str:
        """A metric as ``mean ± standard error``; of a size, the error only if it can be seen."""
        found = self.values.get(metric)
        if found is None:
            return "–"
        error = found.standard_error
        if quantity(metric).form in ("bytes", "count") and (error or 0.0) < 0.001 * found.mean:
            error = None
        return format_spread(metric, found.mean, error)

    def to_json(self, reference: str, expected: Mapping[str, float]) -> Values:
        """Means under the metrics' own keys, errors and expected figures beside them."""
        return {
            "key": self.key,
            "label": self.label,
            "n": len(self.seeds),
            "seeds": list(self.seeds),
            **{metric: found.mean for metric, found in self.values.items()},
            "standard_error": {m: found.standard_error for m, found in self.values.items()},
            reference: dict(expected),
        }


Figures = Mapping[str, Mapping[str, float]]
"""By line and metric."""

Results = Mapping[str, Line]


@dataclass(frozen=True)
class Check:
    """Something that must hold of a table.

    Attributes:
        name: What must hold, in words.
        function: From the lines by key to (whether it holds, the figures that decide it).
    """

    name: str
    function: Callable[[Results], tuple[bool, str]]

    def decide(self, results: Results) -> Verdict:
        """How it comes out."""
        try:
            ok, text = self.function(results)
        except KeyError as missing:  # all runs of a line diverged, or lack the metric
            return Verdict(self.name, False, f"there is no {missing.args[0]}")
        return Verdict(self.name, bool(ok), text)


@dataclass(frozen=True)
class RunTable:
    """Makes a table of runs: a line for every key, mean ± standard error over the seeds.

    Attributes:
        columns: Metrics shown, by their JSON keys.
        checks: What must hold.
        reference: What the expected figures are: ``"paper"``, or ``"target"`` where there is none.
        drawn: Metrics of the figure ``lines.svg``; there is none without them.
    """

    columns: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    reference: str = "paper"
    drawn: tuple[str, ...] = ()

    def __call__(self, found: Finished) -> Outcome:
        """Read the results of all runs that finished, and write their report."""
        runs = [found.folder / name for name in found.rows]
        lines = gather(found)
        results = {line.key: line for line in lines}
        expected = expected_figures(found.key)
        reference = self.reference_table(lines, expected)
        return Outcome(
            values={
                "columns": list(self.columns),
                "rows": [
                    line.to_json(self.reference, expected.get(line.key, {})) for line in lines
                ],
            },
            parts=(
                self.table(lines),
                *([reference] if reference.rows else []),
                "Mean ± standard error over n seeds.",
            ),
            verdicts=tuple(check.decide(results) for check in self.checks),
            figures=self.figures(lines),
            report=write_report(runs, found.folder / "report.html") if runs else None,
        )

    def figures(self, lines: Sequence[Line]) -> dict[str, str]:
        """The figure of the lines by its file's name, as SVG."""
        if not (self.drawn and lines):
            return {}
        points = {
            line.label: {m: (v.mean, v.standard_error) for m, v in line.values.items()}
            for line in lines
        }
        title = ", ".join(quantity(metric).label for metric in self.drawn)
        return {"lines.svg": draw_file(draw_lines, points, self.drawn, title=title)}

    def table(self, lines: Sequence[Line]) -> TextTable:
        """The table itself."""
        headings = [f"{quantity(c).label} {quantity(c).arrow}".strip() for c in self.columns]
        rows = [
            [line.label, str(len(line.seeds)), *map(line.shown, self.columns)] for line in lines
        ]
        return TextTable(["", "n", *headings], rows)

    def reference_table(self, lines: Sequence[Line], expected: Figures) -> TextTable:
        """Expected figure, ours, spread and difference side by side, where one is expected."""
        rows = []
        for line in lines:
            for metric, figure in expected.get(line.key, {}).items():
                found = line.values.get(metric)
                ours = [format_number(metric, figure), "–", "–", "–", "0"]
                if found is not None:
                    error = found.standard_error
                    ours[1] = format_number(metric, found.mean)
                    ours[2] = "–" if error is None else format_number(metric, error)
                    ours[3] = f"{found.mean - figure:+.4g}"
                    ours[4] = str(found.n)
                rows.append([line.label, quantity(metric).label, *ours])
        headings = ["", "metric", self.reference, "ours", "±", "difference", "n"]
        return TextTable(headings, rows, words=2)


def gather(found: Finished) -> list[Line]:
    """Lines in the order of the runs; one of which all runs diverged has no values."""
    runs = [task for task in found.tasks if isinstance(task, RunTask)]
    lines = []
    for key in dict.fromkeys(run.line for run in runs):
        members = [run for run in runs if run.line == key]
        done = [run for run in members if run.name in found.rows]
        numbers = _numbers([found.rows[run.name] for run in done])
        values = {metric: Estimate.of(several) for metric, several in numbers.items()}
        lines.append(Line(key, members[0].label, tuple(run.config.seed for run in done), values))
    return lines


def expected_figures(key: str) -> Figures:
    """What ``expected.toml`` of a paper's folder says of an experiment; missing where it does not.

    The file has lines of metrics under ``[NAME.rows.LINE]``.
    """
    paper, _, name = key.partition("/")
    file = files("gossamer.experiments") / paper / "expected.toml"
    if not file.is_file():
        return {}
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    read: dict[str, Any] = toml.loads(file.read_text(encoding="utf-8"))
    rows: Figures = read.get(name, {}).get("rows", {})
    return rows


def repeated(line: str, label: str, config: RunConfig, scope: Scope) -> list[RunTask]:
    """One line of a table: one run on the scope's device, under as many seeds as it asks for."""
    seeds = range(scope.seed, scope.seed + scope.repeats)
    config = replace(config, device=scope.device)
    return [RunTask(line, label, replace(config, seed=seed)) for seed in seeds]


def at_least(row: str, metric: str, bound: float) -> Check:
    """A row's mean must not be below a bound."""
    return _bounded(row, metric, bound, "≥", lambda mean: mean >= bound)


def at_most(row: str, metric: str, bound: float) -> Check:
    """A row's mean must not be above a bound."""
    return _bounded(row, metric, bound, "≤", lambda mean: mean <= bound)


def _bounded(
    row: str, metric: str, bound: float, sign: str, holds: Callable[[float], bool]
) -> Check:
    def decide(results: Results) -> tuple[bool, str]:
        return holds(results[row].mean(metric)), results[row].shown(metric)

    return Check(f"{row}: {quantity(metric).label} {sign} {format_number(metric, bound)}", decide)


def _numbers(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in metrics:
        for key, value in one.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(key, []).append(float(value))
    return found
