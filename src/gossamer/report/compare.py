"""Runs side by side: one row for all runs that differ only by seed, mean ± standard error."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from json import dumps
from typing import Any

from gossamer.errors import InvalidValue
from gossamer.estimates import Estimate
from gossamer.report.keys import numeric
from gossamer.report.quantities import format_spread, quantity
from gossamer.report.reader import RunResult, flatten, read_runs

COLUMNS = (
    *("accuracy", "rmse", "nll", "crps", "coverage", "ece", "aurc"),
    *("nnz", "checkpoint_bytes", "seconds", "predict_seconds"),
)
"""The metrics of the short tables; one that no run has gets no column."""

# The seed is what a group varies; the facts follow from the settings and the seed (it draws the
# validation part, so even the data's digest changes); where the data lie, and where a run computes,
# is no setting.
_NOT_SETTINGS = ("seed", "facts", "data_dir", "device")

# What is measured beside the rest and is nothing by default; older runs do not have it.
_NOTHING: dict[str, Any] = {"shift": []}


@dataclass(frozen=True)
class Group:
    """Runs that differ only by seed.

    Attributes:
        label: Method, sparsity and whatever else tells this group from the others.
        runs: Its runs, in the order given.
    """

    label: str
    runs: tuple[RunResult, ...]


@dataclass(frozen=True)
class ComparisonRow:
    """One line of the comparison.

    Attributes:
        name: The run's name, or what the names of the group's runs begin with.
        method: The method.
        sparsity: Mean sparsity reached, exact.
        seeds: The runs' seeds.
        n: Number of runs.
        data: The data set.
        model: The model.
        runs: The runs' names.
        values: Every numeric metric of the runs.
        task: ``"classification"``, ``"regression"``, or ``None`` where the runs do not say.
        ood: Names of the out-of-distribution sets.
        rank: Place among the rows of the same data, from 1, where rows were ranked.
    """

    name: str
    method: str | None
    sparsity: float | None
    seeds: tuple[int | None, ...]
    n: int
    data: str | None
    model: str | None
    runs: tuple[str, ...]
    values: dict[str, Estimate]
    task: str | None = None
    ood: tuple[str, ...] = ()
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values: means under the metrics' own keys, errors in one table."""
        errors = {key: value.standard_error for key, value in self.values.items()}
        return {
            "name": self.name,
            **({} if self.rank is None else {"rank": self.rank}),
            "method": self.method,
            "seeds": list(self.seeds),
            "n": self.n,
            "data": self.data,
            "model": self.model,
            "runs": list(self.runs),
            **{key: _finite(value.mean) for key, value in self.values.items()},
            "sparsity": self.sparsity,
            "standard_error": {key: _finite(error) for key, error in errors.items()},
        }


def comparison(runs: Sequence[RunResult | str | os.PathLike[str]]) -> list[ComparisonRow]:
    """Puts runs side by side, one row for all runs that differ only by seed.

    Args:
        runs: Run folders, or runs already read.

    Raises:
        InvalidValue: No run.
        CheckpointError: A folder that is no run or is damaged.
    """
    return [_row(group) for group in group_runs(as_results(runs))]


def leaderboard(rows: Sequence[ComparisonRow], by: str = "nll") -> list[ComparisonRow]:
    """Rows from best to worst, those of one data set together, each with its rank there.

    Data sets keep the order in which they come; rows without the metric go last, without a rank.

    Args:
        rows: Of :func:`comparison`.
        by: The metric: one that has a better side.

    Raises:
        InvalidValue: A metric that no row has, or that has no better side.
    """
    side = quantity(by).better
    if side is None or not any(by in row.values for row in rows):
        known = [k for row in rows for k in row.values if quantity(k).better is not None]
        rule = "must be a metric of these runs that has a better side"
        raise InvalidValue("sort", by, rule, f"there are {', '.join(dict.fromkeys(known))}")
    sign = -1.0 if side == "higher" else 1.0
    ranked: list[ComparisonRow] = []
    for data in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == data]
        # One that is not a number would be sorted anywhere.
        there = [row for row in own if by in row.values and math.isfinite(row.values[by].mean)]
        there.sort(key=lambda row: sign * row.values[by].mean)
        ranked += [replace(row, rank=place) for place, row in enumerate(there, start=1)]
        ranked += [row for row in own if row not in there]
    return ranked


def as_results(runs: Sequence[RunResult | str | os.PathLike[str]]) -> list[RunResult]:
    """Reads what is not read yet."""
    read = [run for run in runs if isinstance(run, RunResult)]
    paths = [run for run in runs if not isinstance(run, RunResult)]
    return read if read and not paths else read + read_runs(paths)


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """Groups runs that differ only by seed, in order of appearance, under telling labels."""
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        # A run without a config can be compared with nothing: it stays alone.
        # A setting that is none equals one that the Gossamer of an older run did not have.
        told = {name: value for name, value in _settings(run).items() if value is not None}
        key = dumps(told, sort_keys=True) if run.config else f"path {run.path}"
        groups.setdefault(key, []).append(run)
    members = list(groups.values())
    labels = [_label(group[0]) for group in members]
    return [
        Group(label + _difference(group, members, labels, label), tuple(group))
        for label, group in zip(labels, members, strict=True)
    ]


def numeric_metrics(runs: Sequence[RunResult]) -> dict[str, list[float]]:
    """Every metric that is a number, with its values over the runs that have it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for key, value in numeric(run.metrics).items():
            found.setdefault(key, []).append(value)
    return found


def format_cell(row: ComparisonRow, key: str) -> str:
    """One metric of a row; the number of runs is told where some of them lack it."""
    value = row.values.get(key)
    if value is None:
        return "–"
    text = format_spread(key, value.mean, value.standard_error)
    return text if value.n == row.n else f"{text} (n={value.n})"


def _row(group: Group) -> ComparisonRow:
    first = group.runs[0]
    sparsities = [run.sparsity for run in group.runs if run.sparsity is not None]
    return ComparisonRow(
        name=_shared_name(group),
        method=first.method,
        sparsity=Estimate.of(sparsities).mean if sparsities else None,
        seeds=tuple(run.seed for run in group.runs),
        n=len(group.runs),
        data=first.data,
        model=first.model,
        runs=tuple(run.name for run in group.runs),
        values={key: Estimate.of(values) for key, values in numeric_metrics(group.runs).items()},
        task=first.task,
        ood=first.ood,
    )


def _shared_name(group: Group) -> str:
    names = [run.name for run in group.runs]
    if len(names) == 1:
        return names[0]
    letters = takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=False))
    prefix = "".join(column[0] for column in letters)
    # digits-seed0, digits-seed1 → digits
    return re.sub(r"([-_ ./=]+(seed|run|s))?[-_ ./=]*\d*$", "", prefix) or group.label


def _settings(run: RunResult) -> dict[str, Any]:
    told = {
        key: value
        for key, value in run.config.items()
        if key not in _NOT_SETTINGS and (key not in _NOTHING or value != _NOTHING[key])
    }
    return flatten(told)


def _label(run: RunResult) -> str:
    if run.method is None:
        return run.name
    return run.method if not run.sparsity else f"{run.method} {100 * run.sparsity:.4g} %"


def _difference(
    group: list[RunResult], members: list[list[RunResult]], labels: list[str], label: str
) -> str:
    """The settings that tell a group from the others of the same label, or nothing."""
    rivals = [other[0] for other, name in zip(members, labels, strict=True) if name == label]
    if len(rivals) == 1:
        return ""
    tables = [_settings(run) for run in rivals]
    mine = _settings(group[0])
    keys = [key for key in mine if any(table.get(key) != mine[key] for table in tables)]
    told = ", ".join(f"{key.rpartition('.')[2]}={_word(mine[key])}" for key in keys)
    return f" · {told or group[0].name}"


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
