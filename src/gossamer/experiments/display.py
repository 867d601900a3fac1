"""How an experiment shows where it is: all tasks in one bar, each one at work in a line below."""

from __future__ import annotations

import sys
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.progress import TimeRemainingColumn as TimeLeftColumn


class Display(Protocol):
    """What an experiment shows of itself. Tasks are told by name."""

    def start(self, total: int, done: int) -> None:
        """``total`` tasks, of which ``done`` were finished before."""
        ...

    def update(self, task: str, share: float, figures: str) -> None:
        """A task has done ``share`` of its work; may come from another thread."""
        ...

    def finish(self, task: str, text: str) -> None:
        """A task has ended."""
        ...

    def message(self, text: str) -> None:
        """A line for the user."""
        ...

    def close(self) -> None:
        """All is over, in whatever way; may be called twice."""
        ...


class PlainDisplay:
    """A line on stderr for every task that ends: what a log file should hold."""

    def __init__(self) -> None:
        self._total = self._done = 0

    def start(self, total: int, done: int) -> None:
        """Say what lies ahead."""
        self._total, self._done = total, done
        self.message(f"{total} tasks" + (f", {done} of them finished before" if done else ""))

    def update(self, task: str, share: float, figures: str) -> None:
        """Nothing: a log has no use for it."""

    def finish(self, task: str, text: str) -> None:
        """Print a line."""
        self._done += 1
        self.message(f"[{self._done}/{self._total}] {task}: {text}")

    def message(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing."""


class RichDisplay:
    """Bars on a terminal.

    Args:
        console: Where to; a console on stderr unless told.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeftColumn(),
            console=self._console,
        )
        self._all: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._shares: dict[str, float] = {}
        self._total = self._done = 0

    def start(self, total: int, done: int) -> None:
        """Show the bar of all tasks."""
        self._total, self._done = total, done
        # Only what is still to be done counts for the time left: finished tasks took no time today.
        self._all = self._bars.add_task("all tasks", total=max(total - done, 1), figures="")
        self._show()
        self._bars.start()

    def update(self, task: str, share: float, figures: str) -> None:
        """Move the task's bar and the one of all."""
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=1.0, figures="")
        self._bars.update(self._tasks[task], completed=share, figures=figures)
        self._shares[task] = share
        self._show()

    def finish(self, task: str, text: str) -> None:
        """Take the task's bar away and leave a line."""
        bar = self._tasks.pop(task, None)
        if bar is not None:
            self._bars.remove_task(bar)
        self._shares[task] = 1.0
        self._done += 1
        self._show()
        self.message(f"{task}: {text}")

    def message(self, text: str) -> None:
        """Print a line above the bars, as it is: a path must not be read as markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()

    def _show(self) -> None:
        if self._all is not None:
            told = f"{self._done}/{self._total} tasks"
            self._bars.update(self._all, completed=sum(self._shares.values()), figures=told)


def default_display() -> Display:
    """Bars where stderr is a terminal, else plain lines."""
    return RichDisplay() if sys.stderr.isatty() else PlainDisplay()
