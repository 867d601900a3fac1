"""The one place where tasks run: several at a time through joblib.

joblib starts processes of its own (loky) unless told otherwise: within
``joblib.parallel_config(backend="dask")`` or ``"ray"`` the tasks go to a cluster whose machines
share the experiment's folder.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from joblib import Parallel, delayed

from gossamer.errors import GossamerError, NonFinite
from gossamer.experiments.display import Display
from gossamer.experiments.news import Interrupted, News, Watch
from gossamer.experiments.task import Task

_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Environment of the processes: glibc keeps freed memory, as the command's own process does.

Else the system clears the pages of every batch anew; another allocator does not read it."""


@dataclass(frozen=True)
class Ended:
    """How a task ended.

    Attributes:
        task: Its name.
        status: ``"diverged"`` is a result like another; ``"failed"`` is an error that other tasks
            are likely to meet too; ``"interrupted"`` may be before it began.
        text: The main figures, or what went wrong.
    """

    task: str
    status: Literal["finished", "interrupted", "diverged", "failed"]
    text: str

    def __str__(self) -> str:
        return self.text if self.status == "finished" else f"{self.status}: {self.text}"


def run_tasks(
    tasks: Sequence[Task], folder: Path, *, jobs: int, threads: int | None, display: Display
) -> dict[str, str]:
    """Do tasks.

    After a failure no further task begins; runs at work save themselves and stop, other tasks
    finish. The first Ctrl-C asks all tasks at work to stop, the second ends them.

    Args:
        tasks: What to do.
        folder: The experiment's.
        jobs: Tasks at a time; one alone is done in this process.
        threads: Threads of torch of each task; as they are where ``None``.
        display: Who watches.

    Returns:
        The tasks that diverged, with the reason.

    Raises:
        KeyboardInterrupt: Interrupted; what is finished is kept.
        GossamerError: A task failed; it is named.
    """
    if not tasks:
        return {}
    found: list[Ended] = []
    with News(folder, display) as news, _interrupts(news, display):
        ends = _begin(tasks, folder, news, jobs, threads)
        try:
            for ended in _received(ends, news):
                news.end(ended.task)
                if ended.status != "interrupted":
                    found.append(ended)
                    display.finish(ended.task, str(ended))
                elif news.asked is None:  # Ctrl-C reached the run itself
                    news.ask("interrupt")
            if news.asked == "interrupt":
                raise KeyboardInterrupt
        except BaseException:  # whoever is at work stops, and is waited for
            news.ask("interrupt")
            with suppress(Exception):
                for _ in ends:
                    pass
            raise
    for ended in found:
        if ended.status == "failed":
            raise GossamerError(f"task {ended.task}", None, ended.text)
    return {ended.task: ended.text for ended in found if ended.status == "diverged"}


def _begin(
    tasks: Sequence[Task], folder: Path, news: News, jobs: int, threads: int | None
) -> Iterator[Ended]:
    calls = [
        delayed(_carry_out)(task, folder.resolve(), Watch(news.path, task.name), threads)
        for task in tasks
    ]
    at_once = Parallel(n_jobs=min(jobs, len(tasks)), batch_size=1, return_as="generator_unordered")
    with _environment(_MALLOC):
        ends: Iterator[Ended] = at_once(calls)
    return ends


def _received(ends: Iterator[Ended], news: News) -> Iterator[Ended]:
    while True:
        try:
            ended = next(ends)
        except StopIteration:
            return
        except Exception as error:  # a process died, or a bug under GOSSAMER_DEBUG=1
            if news.asked == "interrupt":  # it was killed
                return
            if _debugs():
                raise
            text = f"its process ended ({type(error).__name__})"
            raise GossamerError(f"task {', '.join(news.at_work())}", None, text) from error
        yield ended


def _carry_out(task: Task, folder: Path, watch: Watch, threads: int | None) -> Ended:
    """One task, wherever it runs. Errors travel as text: not every exception can be sent."""
    if watch.is_elsewhere and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the experiment decides
    began = time.perf_counter()
    try:
        if watch.is_set():
            raise Interrupted
        with _threads(threads):
            text = task.carry_out(folder, watch)
    except Interrupted:
        return Ended(task.name, "interrupted", "")
    except NonFinite as error:
        return Ended(task.name, "diverged", str(error))
    except Exception as error:
        watch.fail()
        if _debugs():
            raise
        known = isinstance(error, (GossamerError, OSError))
        return Ended(
            task.name, "failed", str(error) if known else f"{type(error).__name__}: {error}"
        )
    seconds = f"{time.perf_counter() - began:.1f} s"
    return Ended(task.name, "finished", f"{text}, {seconds}" if text else seconds)


def _debugs() -> bool:
    return os.environ.get("GOSSAMER_DEBUG") == "1"


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Threads of torch within the block."""
    if number is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _interrupts(news: News, display: Display) -> Iterator[None]:
    """Within the block the first Ctrl-C asks the tasks to stop; the second is an interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def handle(number: int, frame: object) -> None:
        if news.asked == "interrupt":
            raise KeyboardInterrupt
        news.ask("interrupt")
        display.message("stopping where all can be resumed; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for processes started inside; what the user set himself stays."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
