"""What a table is: rows of runs, columns of metrics, expected figures, checks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Protocol

from gossamer.estimates import Estimate
from gossamer.report.quantities import format_number, format_spread, quantity
from gossamer.train import RunConfig

SCALES = ("small", "paper")


@dataclass(frozen=True)
class Row:
    """One run of a table. Rows of one key differ by seed only and form one line of the table.

    Attributes:
        key: Names the line, in files and in ``expected.toml``.
        label: Names it for a reader.
        config: The run.
    """

    key: str
    label: str
    config: RunConfig

    @property
    def run(self) -> str:
        """Name of the run's folder."""
        return f"{self.key}-s{self.config.seed}"


@dataclass(frozen=True)
class Line:
    """What the runs of one key gave.

    Attributes:
        key: As in :class:`Row`.
        label: As in :class:`Row`.
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


class MakeRows(Protocol):
    """A function that gives all runs of a table, those of one key next to one another."""

    def __call__(
        self, *, scale: str, seed: int, repeats: int, data_dir: str | None
    ) -> Sequence[Row]:
        """The runs at a scale (``"small"`` or ``"paper"``), seeds ``seed`` and following."""
        ...


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        key: ``PAPER/TABLE``; ``expected.toml`` of the folder ``PAPER`` has a section ``TABLE``.
        title: One line.
        rows: Gives its runs.
        columns: Metrics shown, by their JSON keys.
        checks: What must hold.
        scales: The scales it has.
        repeats: Seeds per line unless told.
        jobs: Processes unless told: more than 1 where the runs are too small for several threads.
        reference: What the expected figures are: ``"paper"``, or ``"target"`` where there is none.
    """

    key: str
    title: str
    rows: MakeRows
    columns: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    scales: tuple[str, ...] = SCALES
    repeats: int = 3
    jobs: int = 1
    reference: str = "paper"

    @property
    def expected(self) -> dict[str, dict[str, float]]:
        """Expected figures by row and metric; what the paper does not say is missing."""
        paper, _, name = self.key.partition("/")
        rows: dict[str, dict[str, float]] = read_expected(paper).get(name, {}).get("rows", {})
        return rows


def read_expected(paper: str) -> dict[str, Any]:
    """``expected.toml`` of a paper: ``[TABLE.rows.ROW]`` with lines of metrics; may be missing."""
    file = files("gossamer.experiments") / paper / "expected.toml"
    if not file.is_file():
        return {}
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    read: dict[str, Any] = toml.loads(file.read_text(encoding="utf-8"))
    return read


def repeated(key: str, label: str, config: RunConfig, *, seed: int, repeats: int) -> list[Row]:
    """One line of a table: the same run under ``repeats`` seeds from ``seed`` on."""
    return [Row(key, label, replace(config, seed=seed + i)) for i in range(repeats)]


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
