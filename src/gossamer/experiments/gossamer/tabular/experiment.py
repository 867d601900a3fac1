"""The experiment: every contender on every split of every table, and what the figures decide."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
from threadpoolctl import threadpool_limits

from gossamer.estimates import Estimate
from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.gossamer.tabular.rivals import RIVALS, Rival
from gossamer.experiments.gossamer.tabular.sets import SPLITS, table
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable, Verdict
from gossamer.experiments.task import FunctionTask, Task, Values
from gossamer.report.quantities import format_spread, quantity

METRICS = ("rmse", "nll", "crps", "coverage_50", "coverage_90", "coverage_95", "width", "seconds")
_HEADINGS = {
    "coverage_50": "in 50 %",
    "coverage_90": "in 90 %",
    "coverage_95": "in 95 %",
    "width": "width of 90 %",
    "seconds": "fit, CPU s",
}
_COVERAGE = (0.86, 0.94)
_RANK, _RMSE, _TIME = 2.0, 1.1, 5.0


@dataclass(frozen=True)
class Fit:
    """What a task fits; JSON values.

    Attributes:
        rival: Key of ``RIVALS``.
        name: The set.
        split: Its split, or the round where it chooses.
        data_dir: Where the sets lie.
        chooses: Whether rows of the training part judge.
    """

    rival: str
    name: str
    split: int
    data_dir: str | None
    chooses: bool = False


def fit(settings: Fit, watch: Watch) -> Values:
    """The row of a task: figures of the rows that judge, and processor seconds, on one thread."""
    data = table(settings.name, settings.split, settings.data_dir, chooses=settings.chooses)
    rival = next(rival for rival in RIVALS if rival.key == settings.rival)
    with threadpool_limits(1):
        told = rival.run(data, settings.split)
    watch.tell(0.9)
    return {
        **told.forecast.figures(data.y_test),
        "seconds": told.fit_seconds,
        "predict_seconds": told.predict_seconds,
    }


def tasks(scope: Scope) -> list[Task]:
    """Split by split, so that contenders take turns; packages that are not here are left out."""
    chooses = scope.scale == "choice"
    found: list[Task] = []
    for number in range(scope.seed, scope.seed + scope.repeats):
        for name, splits in SPLITS.items():
            if number >= splits and not chooses:
                continue
            for rival in _present():
                settings = Fit(rival.key, name, number, scope.data_dir, chooses)
                found.append(
                    FunctionTask(
                        f"{name}-{rival.key}-s{number}", fit, settings, ("rmse", "nll", "crps")
                    )
                )
    return found


def _present() -> list[Rival]:
    return [r for r in RIVALS if r.needs is None or importlib.util.find_spec(r.needs) is not None]


Board = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""By set, by rival, by metric: values over the splits."""


def board_of(found: Finished) -> Board:
    """All figures that there are."""
    board: dict[str, dict[str, dict[str, list[float]]]] = {}
    for task in found.tasks:
        row = found.rows.get(task.name)
        if row is None or not isinstance(task, FunctionTask):
            continue
        held = board.setdefault(task.settings.name, {}).setdefault(task.settings.rival, {})
        for metric in METRICS:
            held.setdefault(metric, []).append(float(row[metric]))
    return board


def conclude(found: Finished) -> Outcome:
    """A table per set, ranks over the sets, and the checks."""
    board = board_of(found)
    parts: list[TextTable | str] = []
    for name, lines in board.items():
        parts += [f"**{name}**", _table(lines)]
    parts += ["**mean rank over the sets**", _ranks_table(board)]
    parts.append(
        "Mean ± standard error over splits. NLL and CRPS are of the normal distribution with each "
        "contender's mean and std. Times are of one thread."
    )
    values: Values = {
        "sets": {
            name: {key: _estimates(line) for key, line in lines.items()}
            for name, lines in board.items()
        },
        "ranks": {metric: ranks(board, metric) for metric in ("rmse", "nll", "crps")},
    }
    return Outcome(values, tuple(parts), verdicts(board) if board else ())


def _took_part() -> Verdict:
    """A rank among fewer contenders is a better one."""
    missing = [rival.label for rival in RIVALS if rival not in _present()]
    text = f"{', '.join(missing)}: not installed; pip install 'gossamer[tabular]'"
    return Verdict("all contenders took part", not missing, text if missing else f"{len(RIVALS)}")


def ranks(board: Board, metric: str) -> dict[str, float]:
    """Mean over the sets of the rank of each contender's mean; 1 is the lowest."""
    places: dict[str, list[int]] = {}
    for lines in board.values():
        order = sorted(lines, key=lambda key: _mean(lines[key], metric))
        for place, key in enumerate(order, 1):
            places.setdefault(key, []).append(place)
    return {key: float(np.mean(held)) for key, held in places.items()}


def verdicts(board: Board) -> tuple[Verdict, ...]:
    """What the defaults must hold, on every set that there is."""
    ours = {name: lines["ours"] for name, lines in board.items() if "ours" in lines}
    coverage = {name: _mean(line, "coverage_90") for name, line in ours.items()}
    low, high = _COVERAGE
    found = [
        Verdict(
            f"intervals of 90 % hold {100 * low:.0f} to {100 * high:.0f} % on every set",
            all(low <= value <= high for value in coverage.values()),
            _told(coverage, "{:.3f}"),
        )
    ]
    for metric in ("crps", "nll"):
        by_rank = ranks(board, metric)
        rank = by_rank.get("ours", nan)
        place = 1 + sum(other < rank for other in by_rank.values())
        label = quantity(metric).label
        found.append(
            Verdict(
                f"mean rank in {label} is at most {_RANK:g}",
                rank <= _RANK,
                f"{rank:.2f}, place {place} of {len(by_rank)}",
            )
        )
    errors = {name: _over(board[name], "rmse", _neural()) for name in ours}
    found.append(
        Verdict(
            "RMSE is at most 1.1 of the best of networks and Gaussian processes on every set",
            all(ratio <= _RMSE for ratio in errors.values()),
            _told(errors, "{:.2f}"),
        )
    )
    times = {name: _over(board[name], "seconds", ("ensemble",)) for name in ours}
    found.append(
        Verdict(
            "a fit takes at most 5 times the processor time of the ensemble on every set",
            all(ratio <= _TIME for ratio in times.values()),
            _told(times, "{:.1f}"),
        )
    )
    return (*found, _took_part())


def _neural() -> tuple[str, ...]:
    return tuple(rival.key for rival in RIVALS if rival.kind == "neural")


def _over(
    lines: Mapping[str, Mapping[str, list[float]]], metric: str, keys: tuple[str, ...]
) -> float:
    """Ours over the best of these; NaN, on which no check passes, where they are missing."""
    best = min((_mean(lines[key], metric) for key in keys if key in lines), default=nan)
    return _mean(lines["ours"], metric) / best


def _mean(line: Mapping[str, list[float]], metric: str) -> float:
    return float(np.mean(line[metric]))


def _told(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())


def _estimates(line: Mapping[str, list[float]]) -> Values:
    found: Values = {}
    for metric, values in line.items():
        about = Estimate.of(values)
        found[metric] = {"mean": about.mean, "standard_error": about.standard_error, "n": about.n}
    return found


def _table(lines: Mapping[str, Mapping[str, list[float]]]) -> TextTable:
    headings = ["", "n", *(_heading(metric) for metric in METRICS)]
    rows = []
    for rival in RIVALS:
        if rival.key in lines:
            line = lines[rival.key]
            shown = []
            for metric in METRICS:
                about = Estimate.of(line[metric])
                form = "coverage" if metric.startswith("coverage") else metric
                shown.append(format_spread(form, about.mean, about.standard_error))
            rows.append([rival.label, str(len(line["rmse"])), *shown])
    return TextTable(headings, rows)


def _heading(metric: str) -> str:
    return _HEADINGS.get(metric) or f"{quantity(metric).label} {quantity(metric).arrow}"


def _ranks_table(board: Board) -> TextTable:
    metrics = ("rmse", "nll", "crps")
    found = {metric: ranks(board, metric) for metric in metrics}
    rows = [
        [rival.label, *(f"{found[metric][rival.key]:.2f}" for metric in metrics)]
        for rival in RIVALS
        if all(rival.key in found[metric] for metric in metrics)
    ]
    return TextTable(["", *(quantity(metric).label for metric in metrics)], rows)


EXPERIMENT = Experiment(
    key="gossamer/tabular",
    title="Numbers in tables: our estimator with its defaults, and what a user would pick instead",
    tasks=tasks,
    conclude=conclude,
    scales=("small", "choice"),
    repeats={"small": 20, "choice": 5},
    threads=1,
    cpu_only=True,
)
