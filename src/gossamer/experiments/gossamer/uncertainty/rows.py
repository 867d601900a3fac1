"""Rows of the tasks as lines of a table: a contender in a form, its figures over the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from gossamer.estimates import Estimate
from gossamer.experiments.experiment import Finished
from gossamer.experiments.gossamer.uncertainty.contenders import CONTENDERS
from gossamer.experiments.gossamer.uncertainty.measuring import FORMS, Measured
from gossamer.experiments.task import FunctionTask, Values

COST = "cost"
"""Ends the names of tasks that time steps."""


@dataclass(frozen=True)
class Line:
    """A contender in one form on one problem.

    Attributes:
        contender: Its key.
        label: For a reader.
        form: One of ``FORMS``.
        figures: By metric: one value per seed, by seed.
    """

    contender: str
    label: str
    form: str
    figures: Mapping[str, Mapping[int, float]]

    def mean(self, metric: str) -> float:
        """Over the seeds; NaN where no seed has it, so that no check passes on it."""
        found = self.figures.get(metric)
        return Estimate.of(list(found.values())).mean if found else nan

    def estimate(self, metric: str) -> Estimate | None:
        """Mean and standard error; ``None`` where no seed has it."""
        found = self.figures.get(metric)
        return Estimate.of(list(found.values())) if found else None

    def below(self, other: Line, metric: str) -> Estimate | None:
        """How far this line lies below another, over the seeds that both have, in pairs."""
        mine, theirs = self.figures.get(metric, {}), other.figures.get(metric, {})
        shared = sorted(mine.keys() & theirs.keys())
        return Estimate.of([theirs[s] - mine[s] for s in shared]) if shared else None


@dataclass(frozen=True)
class Board:
    """All lines of a problem.

    Attributes:
        lines: By contender and form.
        costs: By contender: what ``costs.cost`` returned.
    """

    lines: Mapping[tuple[str, str], Line]
    costs: Mapping[str, Values]

    def cost(self, contender: str) -> float:
        """Time of a step over RigL's."""
        return float(self.costs.get(contender, {}).get("ratio", nan))

    def bytes(self, contender: str) -> float:
        """All that training holds at its end."""
        return float(self.costs.get(contender, {}).get("bytes", nan))


def task_name(problem: str, contender: str, seed: int) -> str:
    """Names a task's file."""
    return f"{problem}-{contender}-s{seed}"


def board_of(problem: str, found: Finished) -> Board:
    """What the tasks of a problem gave; what diverged or is missing is left out."""
    figures: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    labels = {contender.key: contender.label for contender in CONTENDERS}
    for task in found.tasks:
        row = found.rows.get(task.name)
        if (
            row is None
            or not isinstance(task, FunctionTask)
            or not task.name.startswith(f"{problem}-")
        ):
            continue
        if not isinstance(task.settings, Measured):
            continue
        seed = int(task.settings.config.get("seed", 0))
        contender = task.name[len(problem) + 1 : -len(f"-s{seed}")]
        for key, forms in {contender: row["forms"], **row.get("parts", {})}.items():
            for form in FORMS:
                for metric, value in forms.get(form, {}).items():
                    if metric != "refused":
                        by_metric = figures.setdefault((key, form), {})
                        by_metric.setdefault(metric, {})[seed] = float(value)
    lines = {
        (key, form): Line(key, labels[key], form, held) for (key, form), held in figures.items()
    }
    return Board(lines, found.rows.get(f"{problem}-{COST}", {}))
