"""Runs in processes of their own, several at a time.

A process does one run after another, as many as it is sent. Its pipe is its only tie: it sends
news, and while a run goes on anything to read at its end, a word or the end of file of a parent
that died, means stop: the run saves itself and can be resumed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from gossamer.experiments.progress import RunWatch, TableProgress
from gossamer.experiments.single import Ended, Job, execute


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    job: Job

    def take(self, job: Job) -> None:
        """Begin a run."""
        self.job = job
        with suppress(OSError):  # a process that died is noticed when it is listened to
            self.pipe.send(job)

    def dismiss(self) -> None:
        """End the process, which has no run in hand."""
        self.pipe.close()
        self.process.join()


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    workers: dict[Connection, _Worker] = {}
    try:
        while waiting and len(workers) < at_once:
            worker = _start(waiting.pop(0), threads)
            workers[worker.pipe] = worker
        while workers:
            for pipe in wait(list(workers)):
                worker = workers[pipe]  # type: ignore[index]
                ended = _listen(worker, progress)
                if ended is None:
                    continue
                if waiting and ended.status != "failed":
                    worker.take(waiting.pop(0))
                else:
                    del workers[worker.pipe]
                    worker.dismiss()
                yield ended
    finally:
        _stop(list(workers.values()), progress)


def _start(job: Job, threads: int) -> _Worker:
    context = get_context("spawn")  # torch's threads do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
    with _without_interrupts():
        process.start()
    theirs.close()
    worker = _Worker(process, ours, job)
    worker.take(job)
    return worker


def _listen(worker: _Worker, progress: TableProgress) -> Ended | None:
    """One piece of news; the end of the run in hand if it is that."""
    try:
        kind, *content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        return Ended(worker.job, "failed", f"its process ended with exit code {code}")
    if kind == "update":
        progress.update(worker.job.run, *content)
        return None
    return Ended(worker.job, kind, *content)


def _stop(workers: Sequence[_Worker], progress: TableProgress) -> None:
    for worker in workers:
        with suppress(OSError):
            worker.pipe.send(None)
    for worker in workers:
        while _listen(worker, progress) is None:
            pass
        worker.dismiss()


def _serve(pipe: Connection, threads: int) -> None:
    """The process: runs, until it is told or left."""
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        if job is None:
            return
        _do(pipe, job)


def _do(pipe: Connection, job: Job) -> None:
    def tell(*news: Any) -> None:
        with suppress(OSError):  # the parent died; the run will notice at its next step
            pipe.send(news)

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
