"""What a task is: one piece of an experiment that leaves a row, and is found again by it.

A run of a ``RunConfig`` leaves a run folder; a function leaves a file with what it returned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from gossamer.errors import CheckpointError
from gossamer.experiments.news import Interrupted, Watch
from gossamer.files import read_json, write_json
from gossamer.report.quantities import format_number, quantity
from gossamer.train import RunConfig, RunFolder, SilentProgress, train

Values = dict[str, Any]
"""JSON values."""

ROWS = "rows"
"""Folder of what functions returned."""

_FIGURES = {"accuracy": "acc", "rmse": "rmse", "nll": "nll"}

S = TypeVar("S")


class Task(Protocol):
    """One piece of an experiment. It is sent to other processes."""

    @property
    def name(self) -> str:
        """Names its files; unique in the experiment."""
        ...

    @property
    def alone(self) -> bool:
        """Whether nothing may run beside it, as when it measures time; such tasks come last."""
        ...

    def found(self, folder: Path) -> Values | None:
        """Its row, if it is finished.

        Raises:
            CheckpointError: What lies there is of a task with other settings.
        """
        ...

    def carry_out(self, folder: Path, watch: Watch) -> str:
        """Do it, or go on with it, and leave its row; returns a line for the user.

        Raises:
            Interrupted: It was asked to stop.
            NonFinite: Its numbers ceased to be finite: a result like another.
        """
        ...


@dataclass(frozen=True)
class RunTask:
    """A run. Those of one ``line`` differ by seed only and form one line of a table.

    Attributes:
        line: Names the line, in files and in ``expected.toml``.
        label: Names it for a reader.
        config: The run.
    """

    line: str
    label: str
    config: RunConfig
    alone: bool = False

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.line}-s{self.config.seed}"

    def found(self, folder: Path) -> Values | None:
        """The metrics of the finished run."""
        run = RunFolder(folder / self.name)
        if run.is_started:
            stored, _ = run.read_config()
            # Where the data lie is no matter: the run itself checks that they are the same. Nor is
            # the device, on which a run goes on to rounding.
            mine = replace(self.config, data_dir=stored.data_dir, device=stored.device)
            difference = mine.first_difference(stored)
            if difference is not None:
                name, mine, theirs = difference
                raise CheckpointError(
                    f"{name} of the run in {run.path}",
                    theirs,
                    f"differs from the experiment's, {mine!r}",
                    "choose another --out",
                )
        return run.read_metrics() if run.is_finished else None

    def carry_out(self, folder: Path, watch: Watch) -> str:
        """Train from the beginning, or from where the run was interrupted."""
        run = RunFolder(folder / self.name)
        # A folder that was only just begun holds no settings yet; train knows what to do with it.
        begun = run.path.is_dir() and any(run.path.iterdir())
        config = self.config
        if run.is_started:
            config = replace(run.read_config()[0], device=config.device)
        result = train(config, run.path, resume=begun, progress=_Steps(watch), stop=watch)
        if result.metrics is None:
            raise Interrupted
        return result.message.partition(";")[0]


@dataclass(frozen=True)
class FunctionTask(Generic[S]):
    """A function of settings, whose row is a file.

    Attributes:
        name: Names its file.
        function: From settings to the row, JSON values. A function of a module, since other
            processes must find it; it fixes its own seeds and tells how far it is.
        settings: A dataclass of JSON values, kept beside the row.
        told: Keys of the row that the user is told.
        alone: As in :class:`Task`.
    """

    name: str
    function: Callable[[S, Watch], Values]
    settings: S
    told: tuple[str, ...] = ()
    alone: bool = False

    def found(self, folder: Path) -> Values | None:
        """The row in the file."""
        path = self._path(folder)
        if not path.exists():
            return None
        stored = read_json(path)
        row = stored.get("row") if isinstance(stored, dict) else None
        if not isinstance(row, dict):
            raise CheckpointError(path.name, str(path), "is no row of a task", "delete it")
        mine, theirs = self._settings(), stored.get("settings")
        if _without_place(mine) != _without_place(theirs):
            raise CheckpointError(
                f"settings of the row in {path}",
                theirs,
                f"differ from the experiment's, {mine!r}",
                "choose another --out",
            )
        return row

    def carry_out(self, folder: Path, watch: Watch) -> str:
        """Call the function and write its row; the CPU's generator is given back as it was."""
        watch.tell(0.0)
        with torch.random.fork_rng(devices=[]):
            row = self.function(self.settings, watch)
        path = self._path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"task": self.name, "settings": self._settings(), "row": row})
        return ", ".join(_figure(key, row[key]) for key in self.told if row.get(key) is not None)

    def _path(self, folder: Path) -> Path:
        return folder / ROWS / f"{self.name}.json"

    def _settings(self) -> Values:
        settings: Any = self.settings
        copied: Values = json.loads(json.dumps(asdict(settings), allow_nan=False))
        return copied


class _Steps(SilentProgress):
    """Tells the steps of a run as a share, its figures as a text."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._total = 1

    def start(self, total: int, done: int = 0) -> None:
        """Training begins."""
        self._total = max(total, 1)
        self._watch.note(done / self._total)

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        """A step was taken."""
        figures = [f"{short} {info[k]:.4g}" for k, short in _FIGURES.items() if info.get(k)]
        self._watch.note(step / self._total, " ".join(figures))


def _figure(key: str, value: object) -> str:
    text = format_number(key, value) if isinstance(value, float) else str(value)
    return f"{quantity(key).label} {text}"


_PLACES = ("data_dir", "device")


def _without_place(values: object) -> object:
    """Settings without the places of data and computing, which are none; old rows lack a device."""
    if isinstance(values, dict):
        return {k: _without_place(v) for k, v in values.items() if k not in _PLACES}
    return [_without_place(v) for v in values] if isinstance(values, list) else values
