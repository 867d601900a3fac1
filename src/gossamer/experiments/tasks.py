"""Independent tasks in processes of their own, one thread each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Literal

from gossamer.errors import GossamerError, NonFinite

Values = dict[str, Any]
"""JSON values."""

_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Environment of the processes: glibc keeps freed memory, as the command's own process does.

Else the system clears the pages of every batch anew; another allocator does not read it."""


@dataclass(frozen=True)
class SurveyTask:
    """One task.

    Attributes:
        name: Names its file; unique in the survey.
        settings: What the survey's function is called with: JSON values, kept beside the row.
        alone: Whether nothing else may run beside it, as when it measures time. Such tasks come
            last.
    """

    name: str
    settings: Values
    alone: bool = False


@dataclass(frozen=True)
class EndedTask:
    """How a task came out.

    Attributes:
        task: The task.
        status: ``diverged`` where its numbers ceased to be finite.
        row: What it gave; empty if it diverged.
        text: Why it diverged.
        seconds: It took.
    """

    task: SurveyTask
    status: Literal["finished", "diverged"]
    row: Values
    text: str
    seconds: float


def run_tasks(
    carry_out: Callable[[Values], Values], tasks: Sequence[SurveyTask], at_once: int
) -> Generator[EndedTask, None, None]:
    """Yields tasks as they end. After a failure no further one begins; it is raised at the end.

    Args:
        carry_out: From a task's settings to its row; a function of a module.
        tasks: What to do.
        at_once: Processes at most.

    Raises:
        GossamerError: A task failed; it is named. What ran beside it was waited for.
    """
    if not tasks:
        return
    failure: GossamerError | None = None
    others = set(active_children())
    context = get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(min(at_once, len(tasks)), mp_context=context, initializer=_prepare)
    try:
        with _environment(_MALLOC):
            futures = {pool.submit(_do, carry_out, t.settings): t for t in tasks}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            task = futures[future]
            status, row, text, seconds = _outcome(future)
            if status == "failed":
                failure = failure or GossamerError(f"task {task.name}", None, text)
                for other in futures:
                    other.cancel()
            else:
                yield EndedTask(task, status, row, text, seconds)
    except BaseException:  # an interrupt, or the caller left: nobody waits for the tasks at work
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


_Outcome = tuple[Literal["finished", "diverged", "failed"], Values, str, float]


def _outcome(future: Future[_Outcome]) -> _Outcome:
    try:
        return future.result()
    except Exception as error:  # the process died, or the row cannot be sent
        return "failed", {}, f"{type(error).__name__}: {error}", 0.0


def _do(carry_out: Callable[[Values], Values], settings: Values) -> _Outcome:
    """One task, in its process. Errors travel as text: not every exception can be sent."""
    began = time.perf_counter()
    try:
        row = carry_out(settings)
    except NonFinite as error:
        return "diverged", {}, str(error), time.perf_counter() - began
    except Exception as error:
        if os.environ.get("GOSSAMER_DEBUG") == "1":
            raise
        text = (
            str(error) if isinstance(error, GossamerError) else f"{type(error).__name__}: {error}"
        )
        return "failed", {}, text, time.perf_counter() - began
    return "finished", row, "", time.perf_counter() - began


def _prepare() -> None:
    """A process begins: one thread, deaf to Ctrl-C (the parent decides), gone with the parent."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
