"""Runs in processes of their own, several at a time.

A process serves one run and ends with it. Its pipe is its only tie: it sends news, and anything to
read at its end, a word or the end of file of a parent that died, means stop: the run saves itself
and can be resumed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from gossamer.experiments.progress import RunWatch, TableProgress
from gossamer.experiments.single import Ended, Job, execute


@dataclass(frozen=True)
class _Running:
    job: Job
    process: SpawnProcess
    pipe: Connection


def run_jobs(
    jobs: Sequence[Job], *, at_once: int, threads: int, progress: TableProgress
) -> Generator[Ended, None, None]:
    """Run jobs, ``at_once`` at a time; yields each as it ends.

    Closing the iterator, or an exception at the caller, asks what is running to save and stop, and
    waits for it.

    Args:
        jobs: What to run.
        at_once: Processes.
        threads: Threads of torch in each.
        progress: Who watches.
    """
    waiting = list(jobs)
    running: dict[Connection, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                begun = _start(waiting.pop(0), threads)
                running[begun.pipe] = begun
            for pipe in wait(list(running)):
                one = running[pipe]  # type: ignore[index]
                ended = _listen(one, progress)
                if ended is not None:
                    del running[one.pipe]
                    yield ended
    finally:
        _stop(list(running.values()), progress)


def _start(job: Job, threads: int) -> _Running:
    context = get_context("spawn")  # torch's threads do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, job, threads), daemon=True)
    with _without_interrupts():
        process.start()
    theirs.close()
    return _Running(job, process, ours)


def _listen(one: _Running, progress: TableProgress) -> Ended | None:
    """One piece of news; the end if it is that."""
    try:
        kind, *content = one.pipe.recv()
    except (EOFError, OSError):
        one.process.join()
        code = one.process.exitcode
        return Ended(one.job, "failed", f"its process ended with exit code {code}")
    if kind == "update":
        progress.update(one.job.run, *content)
        return None
    one.process.join()
    one.pipe.close()
    return Ended(one.job, kind, *content)


def _stop(running: Sequence[_Running], progress: TableProgress) -> None:
    for one in running:
        try:
            one.pipe.send("stop")
        except OSError:  # it has ended
            continue
    for one in running:
        while _listen(one, progress) is None:
            pass


def _serve(pipe: Connection, job: Job, threads: int) -> None:
    """The process: one run, from here to its end."""
    import torch

    torch.set_num_threads(threads)

    def tell(*news: Any) -> None:
        try:
            pipe.send(news)
        except OSError:  # the parent died; the run will notice at its next step
            return

    watch = RunWatch(lambda share, figures: tell("update", share, figures))
    try:
        ended = execute(job, watch, _Asked(pipe))
    except Exception as error:  # a bug: told in one line like all that goes wrong
        if os.environ.get("GOSSAMER_DEBUG") == "1":
            raise
        tell("failed", f"{type(error).__name__}: {error}")
        return
    tell(ended.status, ended.text)


class _Asked:
    """Whether the parent asked to stop, or died."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def is_set(self) -> bool:
        """Anything to read, the end of file included, is a yes."""
        return self._pipe.poll()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which a terminal sends to all: the parent decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
