"""How a run shows where it is: a bar on a terminal, a few lines otherwise, or nothing.

Everything goes to stderr; stdout belongs to results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

_SHOWN = {"accuracy": "acc", "rmse": "rmse", "nll": "nll", "kl": "kl", "sparsity": "sparsity"}
"""The figures a bar shows, of those it is given, with their short names."""


class Progress(Protocol):
    """What the training loop tells its watcher."""

    def start(self, total: int, done: int = 0) -> None:
        """Training begins: ``total`` steps, of which ``done`` were taken before a resume."""
        ...

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        """A step was taken; ``info`` holds figures by name, ``None`` where there is none."""
        ...

    def message(self, text: str) -> None:
        """A line for the user."""
        ...

    def close(self) -> None:
        """Training ended, in whatever way; may be called twice."""
        ...


class SilentProgress:
    """Shows nothing."""

    def start(self, total: int, done: int = 0) -> None:
        """Nothing."""

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainProgress(SilentProgress):
    """Messages only, a line each: what a log file should hold.

    Args:
        stream: Where to; stderr unless told.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def message(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream or sys.stderr, flush=True)


class RichProgress:
    """A bar with the latest figures and the time left.

    Args:
        console: Where to; a console on stderr unless told.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Bar(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._figures: dict[str, float] = {}

    def start(self, total: int, done: int = 0) -> None:
        """Show the bar."""
        self._task = self._bar.add_task("train", total=total, completed=done, epoch=0, figures="")
        self._bar.start()

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        """Move the bar; figures that are not given keep their last value."""
        if self._task is None:
            return
        self._figures.update({k: v for k, v in info.items() if k in _SHOWN and v is not None})
        shown = [
            f"{short} {self._figures[name]:.4g}"
            for name, short in _SHOWN.items()
            if name in self._figures
        ]
        self._bar.update(self._task, completed=step, epoch=epoch, figures=" ".join(shown))

    def message(self, text: str) -> None:
        """Print a line above the bar, as it is: a path must not be read as markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()


def default_progress() -> Progress:
    """A bar where stderr is a terminal, else plain lines."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()
