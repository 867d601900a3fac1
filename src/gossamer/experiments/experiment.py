"""What an experiment is, and how it is run: tasks in, tables and verdicts out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from joblib import cpu_count

from gossamer.errors import CheckpointError, InvalidValue, UnknownName
from gossamer.experiments.display import Display, default_display
from gossamer.experiments.outcome import Outcome, Verdict
from gossamer.experiments.pool import run_tasks
from gossamer.experiments.task import ROWS, Task, Values
from gossamer.files import (
    TEMPORARY,
    gossamer_version,
    not_written,
    read_json,
    refuse_links,
    write_json,
    write_whole,
)
from gossamer.train.device import AUTO, CPU, resolve_device

_JSON, _MARKDOWN = "outcome.json", "outcome.md"
_EARLIER = {"table.json": "table", "survey.json": "survey"}
"""Files by which folders of earlier versions are known; their runs and rows are found as they are.
"""


@dataclass(frozen=True)
class Scope:
    """How much of an experiment is asked for.

    Attributes:
        scale: ``"small"``, ``"paper"``, or empty for an experiment that has but one.
        seed: The first seed.
        repeats: Of every line, with seeds that follow.
        data_dir: Where data sets lie that are not embedded.
        device: Where tasks compute: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; ``auto``
            is decided where the task runs.
    """

    scale: str = ""
    seed: int = 0
    repeats: int = 1
    data_dir: str | None = None
    device: str = AUTO


@dataclass(frozen=True)
class Finished:
    """What the tasks of an experiment gave.

    Attributes:
        key: The experiment's.
        scope: What was asked for.
        folder: Where it lies.
        tasks: All of them.
        rows: Their rows by name, in the same order; those of tasks that diverged are missing.
    """

    key: str
    scope: Scope
    folder: Path
    tasks: Sequence[Task]
    rows: Mapping[str, Values]


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        key: ``PAPER/NAME``; ``expected.toml`` of the folder ``PAPER`` may have a section ``NAME``.
        title: One line.
        tasks: Gives all its tasks.
        conclude: Makes its outcome of their rows, some of which may be missing.
        scales: The scales it has; empty where there is no choice.
        repeats: Repeats unless told, by scale; empty where there is no choice.
        jobs: Tasks at a time unless told; ``None``: as many as there are cores.
        threads: Threads of torch of each task; ``None``: its share of the cores.
        cpu_only: Whether its tasks are about the CPU, or have no network to send elsewhere.
    """

    key: str
    title: str
    tasks: Callable[[Scope], Sequence[Task]]
    conclude: Callable[[Finished], Outcome]
    scales: tuple[str, ...] = ()
    repeats: Mapping[str, int] = field(default_factory=dict)
    jobs: int | None = 1
    threads: int | None = None
    cpu_only: bool = False

    def scope(
        self,
        *,
        scale: str | None = None,
        seed: int = 0,
        repeats: int | None = None,
        data_dir: str | None = None,
        device: str = AUTO,
    ) -> Scope:
        """What is asked for, with the experiment's own choices where nothing is told.

        Raises:
            UnknownName: It has no such scale.
            InvalidValue: It has no scales or repeats to choose, less than one repeat, or a device
                that is not here or not for this experiment.
        """
        for name, value, has in (("scale", scale, self.scales), ("repeats", repeats, self.repeats)):
            if value is not None and not has:
                raise InvalidValue(name, value, f"{self.key} has no such choice", "leave it out")
        scale = scale or next(iter(self.scales), "")
        if self.scales and scale not in self.scales:
            raise UnknownName(f"scale of {self.key}", scale, self.scales)
        repeats = self.repeats.get(scale, 1) if repeats is None else repeats
        if resolve_device(device) != CPU and self.cpu_only:
            if device != AUTO:
                raise InvalidValue("device", device, f"{self.key} computes on the CPU", "use cpu")
            device = CPU.type
        return Scope(scale, seed, _at_least_one("repeats", repeats), data_dir, device)


def run_experiment(
    experiment: Experiment,
    scope: Scope,
    *,
    out: str | os.PathLike[str],
    jobs: int | None = None,
    only: Sequence[str] = (),
    display: Display | None = None,
) -> Outcome:
    """Do what is left of an experiment's tasks, then conclude.

    Args:
        experiment: The experiment.
        scope: What is asked for, see :meth:`Experiment.scope`.
        out: A folder; runs lie in it as ``LINE-sSEED``, rows of functions as ``rows/TASK.json``,
            the outcome as ``outcome.json``, ``outcome.md`` and figures.
        jobs: Tasks at a time, each with its share of the cores; the experiment's own number unless
            told. One alone is done in this process.
        only: Patterns such as ``"mnist-*"``: do the tasks whose names match one, leave the others
            as they are, and conclude from all that are finished. Empty: all.
        display: Who watches; a bar or plain lines unless told.

    Raises:
        KeyboardInterrupt: Interrupted; the same call goes on.
        CheckpointError: ``out`` holds something else, or tasks with other settings.
        InvalidValue: A pattern matches no task.
        GossamerError: A task failed; it is named.
    """
    jobs = _at_least_one("jobs", _jobs(experiment) if jobs is None else jobs)
    folder = Path(out)
    tasks = experiment.tasks(scope)
    chosen = _chosen(tasks, only)
    _check_folder(folder, experiment, scope)
    left = [task for task in chosen if task.found(folder) is None]
    about = {"experiment": experiment.key, "title": experiment.title, "scale": scope.scale or None}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _JSON, {**about, "complete": False})
    diverged = _carry_out(experiment, chosen, left, folder, jobs, display or default_display())
    found = {task.name: task.found(folder) for task in tasks if task.name not in diverged}
    rows = {name: row for name, row in found.items() if row is not None}
    outcome = experiment.conclude(Finished(experiment.key, scope, folder, tasks, rows))
    lost = tuple(Verdict(f"{name} ends", False, text) for name, text in diverged.items())
    missing = len(tasks) - len(rows) - len(diverged)
    if missing:
        done = f"{missing} of {len(tasks)} tasks are not done; the figures are of the others"
        lost += (Verdict("all tasks are done", False, done),)
    about["gossamer"] = gossamer_version()
    outcome = replace(outcome, about=about, verdicts=outcome.verdicts + lost)
    for name, svg in outcome.figures.items():
        _write(folder / name, svg)
    _write(folder / _MARKDOWN, outcome.to_markdown())
    write_json(folder / _JSON, {**outcome.to_json(), "complete": not missing})
    return outcome


def _chosen(tasks: Sequence[Task], only: Sequence[str]) -> Sequence[Task]:
    for pattern in only:
        if not any(fnmatchcase(task.name, pattern) for task in tasks):
            names = ", ".join(task.name for task in tasks[:3])
            raise InvalidValue("only", pattern, "matches no task", f"tasks have names like {names}")
    if not only:
        return tasks
    return [task for task in tasks if any(fnmatchcase(task.name, pattern) for pattern in only)]


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise not_written(path, error) from error


def _carry_out(
    experiment: Experiment,
    tasks: Sequence[Task],
    left: Sequence[Task],
    folder: Path,
    jobs: int,
    display: Display,
) -> dict[str, str]:
    """Do the tasks that are left; returns those that diverged, with the reason."""
    diverged: dict[str, str] = {}
    together = [task for task in left if not task.alone]
    by_themselves = [task for task in left if task.alone]
    try:
        display.start(len(tasks), len(tasks) - len(left))
        for group, at_once in ((together, min(jobs, len(together))), (by_themselves, 1)):
            threads = experiment.threads
            if threads is None and at_once > 1:
                threads = max(1, cpu_count() // at_once)
            diverged |= run_tasks(group, folder, jobs=at_once, threads=threads, display=display)
    finally:
        display.close()
    return diverged


def _jobs(experiment: Experiment) -> int:
    cores: int = cpu_count()
    return cores if experiment.jobs is None else min(experiment.jobs, cores)


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InvalidValue(name, value, "must be at least 1")
    return value


def _check_folder(folder: Path, experiment: Experiment, scope: Scope) -> None:
    """Raise where writing this experiment would overwrite something else, here or elsewhere."""
    refuse_links(folder, folder / ROWS)
    for file, noun in {_JSON: "experiment", **_EARLIER}.items():
        if not (folder / file).exists():
            continue
        about = read_json(folder / file)
        about = about if isinstance(about, dict) else {}
        if (about.get(noun), about.get("scale") or "") != (experiment.key, scope.scale):
            scale = f" at scale {about.get('scale')}" if about.get("scale") else ""
            raise CheckpointError(
                "experiment folder",
                str(folder),
                f"holds the {noun} {about.get(noun)}{scale}",
                "choose another --out",
            )
        return
    if folder.is_file() or (folder.is_dir() and any(map(_is_foreign, folder.iterdir()))):
        raise CheckpointError(
            "experiment folder", str(folder), "holds something else", "choose another --out"
        )


def _is_foreign(path: Path) -> bool:
    return path.name != ROWS and not path.name.startswith(TEMPORARY)
