"""What tasks at work tell, and how they are asked to stop: small files beside their results.

Files, because they serve whatever carries the tasks: this process, other processes, or machines
that share a disk.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from gossamer.experiments.display import Display
from gossamer.files import TEMPORARY

SECONDS_BETWEEN = 0.2
"""Between two news of one task, and two looks at them: more often than this nobody sees."""

Reason = Literal["failure", "interrupt"]
"""Why tasks are asked to stop. After a failure those that could not be resumed go on."""

_STOP = "stop"


class Interrupted(Exception):
    """A task was asked to stop before its end and did."""


class Watch:
    """The side of a task: tells how far it is, and asks whether to go on. It can be pickled.

    Args:
        folder: Where news lie.
        task: The task's name.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self._stop = folder / _STOP
        self._file = folder / f"{task}.task"
        self._experiment = os.getpid()
        self._parent: int | None = None
        self._told = self._looked = -SECONDS_BETWEEN
        self._reason: Reason | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another process than the experiment's."""
        return os.getpid() != self._experiment

    def tell(self, share: float, figures: str = "") -> None:
        """Tell the share of the work that is done, and stop here where the user asks for it.

        Raises:
            Interrupted: The user stopped the experiment.
        """
        if self.asked() == "interrupt":
            raise Interrupted
        self.note(share, figures)

    def note(self, share: float, figures: str = "") -> None:
        """Tell the share of the work that is done and go on; what comes too soon is left out."""
        now = time.monotonic()
        if now - self._told < SECONDS_BETWEEN:
            return
        self._told = now
        part = self._file.with_suffix(".part")
        with suppress(OSError):  # nobody listens any more, or the disk is full: the task goes on
            part.write_text(f"{share} {figures}", encoding="utf-8")
            part.replace(self._file)

    def asked(self) -> Reason | None:
        """Why the task should stop, if it should. Looks no more than a few times a second."""
        now = time.monotonic()
        if self._reason != "interrupt" and now - self._looked >= SECONDS_BETWEEN:
            self._looked = now
            self._reason = "interrupt" if self._is_orphan() else _read_reason(self._stop)
        return self._reason

    def fail(self) -> None:
        """Say that the task failed: no further one begins, runs at work save themselves."""
        with suppress(OSError):
            _ask(self._stop, "failure")

    def is_set(self) -> bool:
        """Whether the task should stop, for whatever reason; a run asks after every step."""
        return self.asked() is not None

    def _is_orphan(self) -> bool:
        """Whether this is a process that the experiment started and left behind."""
        parent = os.getppid()
        if self._parent is None:
            self._parent = parent
        return self._parent == self._experiment and parent != self._parent


class News:
    """The side of the experiment: shows what the tasks tell while it is open.

    Args:
        folder: The experiment's folder, in which news get one of their own.
        display: Who watches.
    """

    def __init__(self, folder: Path, display: Display) -> None:
        self.path = folder.resolve() / f"{TEMPORARY}news-{os.getpid()}"
        self._display = display
        self._shown: dict[str, str] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> News:
        shutil.rmtree(self.path, ignore_errors=True)  # of a process of this number that was killed
        self.path.mkdir(parents=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join()
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def asked(self) -> Reason | None:
        """Why the tasks were asked to stop, if they were."""
        return _read_reason(self.path / _STOP)

    def ask(self, reason: Reason) -> None:
        """Ask all tasks to stop; an interrupt is stronger than a failure."""
        _ask(self.path / _STOP, reason)

    def end(self, task: str) -> None:
        """A task has ended: its last news are shown, later ones are not."""
        self._show()
        with self._lock:
            self._ended.add(task)

    def at_work(self) -> list[str]:
        """Tasks that began and did not end."""
        begun = sorted(path.stem for path in self.path.glob("*.task"))
        return [task for task in begun if task not in self._ended]

    def _look_on(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN):
            self._show()

    def _show(self) -> None:
        with self._lock:
            for task in self.at_work():
                with suppress(OSError):
                    text = (self.path / f"{task}.task").read_text(encoding="utf-8")
                    if self._shown.get(task) != text:
                        self._shown[task] = text
                        share, _, figures = text.partition(" ")
                        self._display.update(task, float(share), figures)


def _ask(path: Path, reason: Reason) -> None:
    if _read_reason(path) != "interrupt":
        path.write_text(reason, encoding="utf-8")


def _read_reason(path: Path) -> Reason | None:
    with suppress(OSError):
        return "failure" if path.read_text(encoding="utf-8") == "failure" else "interrupt"
    return None
