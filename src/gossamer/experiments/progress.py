"""How a table shows where it is: all runs in one bar, each running one in a line below."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn

from gossamer.train import SilentProgress

_SECONDS_BETWEEN = 0.2
"""Between two news of one run: more often than this nobody sees."""

_FIGURES = {"accuracy": "acc", "rmse": "rmse", "nll": "nll"}


class TableProgress(Protocol):
    """What a table tells its watcher. Runs are told by the name of their folder."""

    def start(self, total: int, done: int) -> None:
        """``total`` runs, of which ``done`` were finished before."""
        ...

    def update(self, run: str, share: float, figures: str) -> None:
        """A run has done ``share`` of its steps."""
        ...

    def finish(self, run: str, text: str) -> None:
        """A run has ended."""
        ...

    def message(self, text: str) -> None:
        """A line for the user."""
        ...

    def close(self) -> None:
        """All is over, in whatever way; may be called twice."""
        ...


class PlainTableProgress:
    """A line on stderr for every run that ends: what a log file should hold."""

    def __init__(self) -> None:
        self._total = self._done = 0

    def start(self, total: int, done: int) -> None:
        """Say what lies ahead."""
        self._total, self._done = total, done
        self.message(f"{total} runs" + (f", {done} of them finished before" if done else ""))

    def update(self, run: str, share: float, figures: str) -> None:
        """Nothing: a log has no use for it."""

    def finish(self, run: str, text: str) -> None:
        """Print a line."""
        self._done += 1
        self.message(f"[{self._done}/{self._total}] {run}: {text}")

    def message(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing."""


class RichTableProgress:
    """Bars on a terminal.

    Args:
        console: Where to; a console on stderr unless told.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
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
        """Show the bar of all runs."""
        self._total, self._done = total, done
        # Only what is still to be done counts for the time left: finished runs took no time today.
        self._all = self._bars.add_task("all runs", total=max(total - done, 1), figures="")
        self._show()
        self._bars.start()

    def update(self, run: str, share: float, figures: str) -> None:
        """Move the run's bar and the one of all."""
        if run not in self._tasks:
            self._tasks[run] = self._bars.add_task(run, total=1.0, figures="")
        self._bars.update(self._tasks[run], completed=share, figures=figures)
        self._shares[run] = share
        self._show()

    def finish(self, run: str, text: str) -> None:
        """Take the run's bar away and leave a line."""
        task = self._tasks.pop(run, None)
        if task is not None:
            self._bars.remove_task(task)
        self._shares[run] = 1.0
        self._done += 1
        self._show()
        self.message(f"{run}: {text}")

    def message(self, text: str) -> None:
        """Print a line above the bars, as it is: a path must not be read as markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()

    def _show(self) -> None:
        if self._all is not None:
            told = f"{self._done}/{self._total} runs"
            self._bars.update(self._all, completed=sum(self._shares.values()), figures=told)


def default_table_progress() -> TableProgress:
    """Bars where stderr is a terminal, else plain lines."""
    return RichTableProgress() if sys.stderr.isatty() else PlainTableProgress()


class RunWatch(SilentProgress):
    """Watches one run for a table: its steps as a share, its figures as a text, not too often.

    Args:
        tell: Called with share and figures.
    """

    def __init__(self, tell: Callable[[float, str], None]) -> None:
        self._tell = tell
        self._total = 1
        self._last = 0.0

    def start(self, total: int, done: int = 0) -> None:
        """Training begins."""
        self._total = max(total, 1)
        self._tell(done / self._total, "")

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        """A step was taken."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN:
            return
        self._last = now
        figures = [f"{short} {info[k]:.4g}" for k, short in _FIGURES.items() if info.get(k)]
        self._tell(step / self._total, " ".join(figures))
