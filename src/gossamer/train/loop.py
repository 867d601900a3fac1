"""``train``: a run from start to metrics, in one sitting or in several."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.files import FolderLock, environment, remove_leftovers
from gossamer.train.assembly import Assembly, assemble
from gossamer.train.checkpoint import Found, best, latest, load_checkpoint, size_in_bytes
from gossamer.train.config import RunConfig
from gossamer.train.evaluate import Metrics, evaluate
from gossamer.train.folder import RunFolder
from gossamer.train.progress import Progress, SilentProgress
from gossamer.train.record import Record
from gossamer.train.session import Session


class Stop(Protocol):
    """Anything that can ask a run to stop, such as ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether the run should stop after the step in hand."""
        ...


@dataclass(frozen=True)
class RunResult:
    """How a sitting ended.

    Attributes:
        path: The run folder.
        status: ``"finished"``, ``"interrupted"``, or ``"already_finished"``.
        epoch: Whole epochs done.
        step: Optimiser steps done.
        metrics: Test metrics; ``None`` unless finished.
        message: The same in a line for people: how to go on, or the main figures.
    """

    path: Path
    status: Literal["finished", "interrupted", "already_finished"]
    epoch: int
    step: int
    metrics: dict[str, Any] | None
    message: str


def train(
    config: RunConfig | None,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> RunResult:
    """Train, evaluate once on the test part, and leave a run folder.

    Ctrl-C (in the main thread) and ``stop`` finish the step in hand, save, and return; a second
    Ctrl-C stops at once, at the cost of the steps since the last checkpoint. torch's generator is
    seeded for the run and given back as it was.

    Args:
        config: The settings; ``None`` with ``resume`` takes those of the run folder.
        out: The run folder. An existing run is never overwritten.
        resume: Go on with the run in ``out``, bit for bit, from its newest intact checkpoint.
        progress: Who watches; nobody by default.
        stop: Asked after every step.

    Raises:
        CheckpointError: The folder holds a run (without ``resume``), holds something else, is in
            use by another process, is damaged, or the disk is full.
        InvalidValue: A setting against its rule, or other settings than the run's with ``resume``.
        InvalidData: Data that cannot be used, or that changed since the run began.
    """
    folder = RunFolder(Path(out))
    progress = progress or SilentProgress()
    if resume:
        folder.check_resumable()
    else:
        folder.check_new()
    config = _settings(config, folder) if folder.is_started else config
    if config is None:
        raise InvalidValue("config", None, "is needed to start a run", "give the settings")
    if folder.is_finished:
        return _already_finished(config, folder, progress)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        stored = folder.read_config()[1] if folder.is_started else None
        assembly = assemble(config, stored)  # whatever is wrong is told before a folder is made
        folder.make()
        with FolderLock(folder.path):
            if not resume:
                folder.check_new()  # another process may have been faster
            remove_leftovers(folder.path)
            try:
                return _sit(config, assembly, folder, progress, stop)
            finally:
                progress.close()


def _settings(config: RunConfig | None, folder: RunFolder) -> RunConfig:
    """The stored settings, if the given ones agree with them."""
    stored, _ = folder.read_config()
    difference = None if config is None else config.first_difference(stored)
    if difference is not None:
        name, mine, theirs = difference
        raise InvalidValue(
            name,
            mine if mine is not None else "None",
            f"differs from the run's own, {theirs!r}",
            "resume with the run's settings or choose another --out",
        )
    return stored


def _already_finished(config: RunConfig, folder: RunFolder, progress: Progress) -> RunResult:
    metrics = folder.read_metrics()
    _, facts = folder.read_config()
    message = f"{folder.path} is finished already: {_figures(metrics)}"
    progress.message(message)
    steps = config.epochs * facts.steps_per_epoch
    return RunResult(folder.path, "already_finished", config.epochs, steps, metrics, message)


def _sit(
    config: RunConfig,
    assembly: Assembly,
    folder: RunFolder,
    progress: Progress,
    stop: Stop | None,
) -> RunResult:
    found = latest(folder.checkpoints)
    if folder.is_started:
        _tell_of_changes(folder, found, progress)
    else:
        folder.write_start(config, assembly.facts, assembly.dataset.preparation)
    total = config.epochs * assembly.facts.steps_per_epoch
    progress.message(
        f"{config.method} on {config.data}: {assembly.facts.num_data} examples, "
        f"{config.epochs} epochs, {total} steps; run folder {folder.path}"
    )
    for note in assembly.dataset.notes:
        progress.message(note)
    with (
        Record(folder.record, resume_step=0 if found is None else found.step) as record,
        _interruptible(stop) as stopped,
    ):
        session = Session(config, assembly, folder, record, progress, stopped.is_set)
        if found is not None:
            session.load(load_checkpoint(found.path))
        progress.start(total, session.step)
        if not session.run():
            return _interrupted(config, folder, session, progress)
        metrics = _finish(config, assembly, folder, session)
    message = f"{config.evaluate_on}: {_figures(metrics)}; run folder {folder.path}"
    progress.close()
    progress.message(message)
    return RunResult(folder.path, "finished", session.epoch, session.step, metrics, message)


def _finish(
    config: RunConfig, assembly: Assembly, folder: RunFolder, session: Session
) -> dict[str, Any]:
    """The one look at the test part (or none, see ``evaluate_on``), then the result files."""
    chosen = best(folder.checkpoints) if config.select == "best" else latest(folder.checkpoints)
    if chosen is None:
        raise CheckpointError("checkpoints", str(folder.checkpoints), "are gone", "train again")
    if config.select == "best":
        assembly.method.load_state_dict(load_checkpoint(chosen.path)["method"])
    metrics, curves = evaluate(
        assembly.method,
        assembly.dataset,
        part="val" if config.evaluate_on == "validation" else "test",
        num_samples=config.num_samples,
        noise=config.noise,
        seed=config.seed,
        ood=assembly.ood,
    )
    run_figures: Metrics = {
        "seconds": session.seconds,
        "checkpoint_bytes": size_in_bytes(chosen.path),
    }
    folder.write_end({**metrics, **run_figures}, curves)
    return folder.read_metrics()  # what a later reader sees


def _interrupted(
    config: RunConfig, folder: RunFolder, session: Session, progress: Progress
) -> RunResult:
    message = (
        f"stopped after step {session.step}, in epoch {session.epoch + 1} of {config.epochs}; "
        f"saved; go on with: gossamer train --resume --out {folder.path}"
    )
    progress.close()
    progress.message(message)
    return RunResult(folder.path, "interrupted", session.epoch, session.step, None, message)


def _tell_of_changes(folder: RunFolder, found: Found | None, progress: Progress) -> None:
    if found is None:
        progress.message("no checkpoint yet: starting from the beginning")
    elif found.notice is not None:
        progress.message(found.notice)
    before, now = folder.read_environment(), environment()
    for key in ("torch", "machine", "cpu_capability", "threads"):
        if before.get(key) != now[key]:
            progress.message(
                f"{key} was {before.get(key)} and is {now[key]}: "
                "going on, but bit-for-bit equality with an unbroken run is not assured"
            )


def _figures(metrics: dict[str, Any]) -> str:
    keys = ("accuracy", "rmse", "nll", "ece", "nnz", "sparsity")
    return ", ".join(f"{k} {metrics[k]:.5g}" for k in keys if metrics.get(k) is not None)


class _Stopped:
    """Set by Ctrl-C or by the caller's ``stop``."""

    def __init__(self, stop: Stop | None) -> None:
        self._stop = stop
        self.interrupted = False

    def is_set(self) -> bool:
        return self.interrupted or (self._stop is not None and self._stop.is_set())


@contextmanager
def _interruptible(stop: Stop | None) -> Iterator[_Stopped]:
    """Within the block the first Ctrl-C only sets a flag; the second is a KeyboardInterrupt."""
    stopped = _Stopped(stop)
    if threading.current_thread() is not threading.main_thread():
        yield stopped  # only the main thread may handle signals
        return

    def handle(number: int, frame: object) -> None:
        if stopped.interrupted:
            raise KeyboardInterrupt
        stopped.interrupted = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
