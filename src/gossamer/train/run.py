"""``train``: a fit that lives in a run folder, from start to metrics, in one sitting or several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from gossamer.data import DataSet
from gossamer.errors import CheckpointError, InvalidValue
from gossamer.files import FolderLock, remove_leftovers
from gossamer.inference import StepInfo
from gossamer.train import evaluation
from gossamer.train.assembly import Assembly, assemble
from gossamer.train.budget import epochs_between_looks
from gossamer.train.checkpoint import (
    Found,
    best,
    latest,
    load_checkpoint,
    newest,
    newest_step,
    run_of,
    size_in_bytes,
)
from gossamer.train.config import RunConfig
from gossamer.train.device import device_of, own_noise, portable, resolve_device
from gossamer.train.environment import environment
from gossamer.train.evaluation import VALIDATION_SAMPLES, Metrics
from gossamer.train.examples import Batches
from gossamer.train.finishing import check_finish, finished
from gossamer.train.folder import RunFolder
from gossamer.train.keeper import Keeper
from gossamer.train.load import about_run
from gossamer.train.loop import Fit, Observer
from gossamer.train.progress import Progress, SilentProgress
from gossamer.train.record import Record
from gossamer.train.refit import refitted_run
from gossamer.train.scalars import ScalarLog, curves_in, require_tensorboard
from gossamer.train.seal import require_own_files, require_own_record, sums_of
from gossamer.train.stopping import Stop, interruptible


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
    log: object | None = None,
) -> RunResult:
    """Train, evaluate once on the test part, and leave a run folder.

    Ctrl-C (in the main thread) and ``stop`` finish the step in hand, save, and return; a second
    Ctrl-C stops at once, at the cost of the steps since the last checkpoint. torch's generator is
    seeded for the run and given back as it was.

    Args:
        config: The settings; ``None`` with ``resume`` takes those of the run folder.
        out: The run folder. An existing run is never overwritten.
        resume: Go on with the run in ``out``, bit for bit, from its newest intact checkpoint. All
            settings must be the run's own but ``log`` and ``device``: on another device it goes
            on to rounding.
        progress: Who watches; nobody by default.
        stop: Asked after every step.
        log: A tracker that gets the scalars, see :class:`gossamer.train.ScalarLog`. After a kill it
            gets the steps since the last checkpoint a second time, with the same values.

    Raises:
        CheckpointError: The folder holds a run (without ``resume``), holds something else or a
            link, is in use by another process, is damaged, or the disk is full; or settings,
            preparation or record are of another run than the checkpoints.
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
    logs = [] if log is None else [ScalarLog(log)]
    if config.log == "tensorboard":
        require_tensorboard()
    device = resolve_device(config.device)
    with own_noise(device, config.seed):
        stored = folder.read_config()[1] if folder.is_started else None
        # Whatever is wrong is told before a folder is made.
        assembly = assemble(config, stored, device)
        check_finish(config, assembly)
        folder.make()
        with FolderLock(folder.path):
            if not resume:
                folder.check_new()  # another process may have been faster
            remove_leftovers(folder.path)
            try:
                return _sit(config, assembly, folder, progress, stop, logs)
            finally:
                progress.close()


def _settings(config: RunConfig | None, folder: RunFolder) -> RunConfig:
    """The stored settings, if the given ones agree; device and log may be others."""
    stored, _ = folder.read_config()
    if config is not None:
        stored = replace(stored, device=config.device, log=config.log)
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


def _require_own(folder: RunFolder, checkpoint: Path) -> None:
    """Raise where settings, preparation or record are of another run than a checkpoint."""
    stated, by = run_of(checkpoint), f"checkpoint {checkpoint.name}"
    require_own_files(folder, stated, by)
    require_own_record(folder, stated, by)


def _already_finished(config: RunConfig, folder: RunFolder, progress: Progress) -> RunResult:
    checkpoint = newest(folder.checkpoints)
    if checkpoint is not None:
        _require_own(folder, checkpoint)
    metrics = folder.read_metrics()
    _, facts = folder.read_config()
    message = f"{folder.path} is finished already: {_figures(metrics)}"
    progress.message(message)
    steps = facts.epochs_in(config) * facts.steps_per_epoch
    if config.patience is not None or config.time_limit is not None:  # it may have ended early
        steps = newest_step(folder.checkpoints) or steps
    epochs = steps // facts.steps_per_epoch
    return RunResult(folder.path, "already_finished", epochs, steps, metrics, message)


def _sit(
    config: RunConfig,
    assembly: Assembly,
    folder: RunFolder,
    progress: Progress,
    stop: Stop | None,
    logs: list[ScalarLog],
) -> RunResult:
    found = latest(folder.checkpoints)
    if found is not None:
        _require_own(folder, found.path)
    device = str(device_of(assembly.method.model))
    if folder.is_started:
        _tell_of_changes(folder, found, progress, device)
    else:
        preparation, selection = assembly.dataset.preparation, assembly.selection
        folder.write_start(config, assembly.facts, preparation, device, selection)
    epochs = assembly.facts.epochs_in(config)
    total = epochs * assembly.facts.steps_per_epoch
    progress.message(
        f"{config.method}{_of_members(config)} on {config.data}: "
        f"{assembly.facts.num_data} examples, {epochs} epochs, {total} steps; "
        f"run folder {folder.path}"
    )
    for note in assembly.dataset.notes:
        progress.message(note)
    if "columns" in assembly.facts.model_options:
        read, whole = assembly.facts.model_options["columns"], assembly.facts.input_shape[0]
        progress.message(f"a wide table: the network reads {len(read)} of {whole:,} features")
    step = 0 if found is None else found.step
    with (
        Record(folder.record, resume_step=step) as record,
        interruptible(stop) as stopped,
        curves_in(folder.tensorboard if config.log == "tensorboard" else None, step) as curves,
    ):
        keeper = Keeper(
            folder,
            record,
            progress,
            stopped.is_set,
            every=config.checkpoint_every or _between_looks(config, epochs),
            keep=config.keep_checkpoints,
        )
        # Points come before the checkpoint: what it holds is never missing in the curves.
        logs = [*logs, *curves]
        limits = [] if config.time_limit is None else [_TimeSpent(config.time_limit)]
        fit = _fit(config, assembly, [*logs, *limits, keeper])
        keeper.begin(fit, None if found is None else load_checkpoint(found))
        if not fit.run():
            if stopped.is_set() or not any(limit.should_stop() for limit in limits):
                return _interrupted(folder, fit, progress)
            progress.message(
                f"time limit of {config.time_limit:g} s reached after step {fit.step} of {total}"
            )
        metrics = _finish(config, assembly, folder, fit)
        for each in logs:
            each.send_results(_part(config), metrics, fit.step)
    measured = _is_measured(config, assembly.dataset)
    part = config.evaluate_on if measured else "no test part, no test metrics"
    message = f"{part}: {_figures(metrics)}; run folder {folder.path}"
    progress.close()
    progress.message(message)
    return RunResult(folder.path, "finished", fit.epoch, fit.step, metrics, message)


class _TimeSpent(Observer):
    """Stops a fit that has trained for some seconds, over all sittings."""

    def __init__(self, seconds: float) -> None:
        self._most, self._spent = seconds, 0.0

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        """Take the time."""
        self._spent = fit.seconds

    def should_stop(self) -> bool:
        """Whether it is over."""
        return self._spent >= self._most


def _is_measured(config: RunConfig, dataset: DataSet) -> bool:
    """Whether there is the part that the final metrics are of."""
    return config.evaluate_on == "validation" or dataset.test is not None


def _part(config: RunConfig) -> Literal["val", "test"]:
    """The part that the final metrics are of."""
    return "val" if config.evaluate_on == "validation" else "test"


def _fit(config: RunConfig, assembly: Assembly, observers: Sequence[Observer]) -> Fit:
    examples, epochs = assembly.examples, assembly.facts.epochs_in(config)
    num_samples = min(config.num_samples, VALIDATION_SAMPLES)
    return Fit(
        assembly.method,
        Batches(examples, config.batch_size, device_of(assembly.method.model)),
        epochs=epochs,
        order=torch.Generator().manual_seed(config.seed),
        validate=evaluation.validation_of(examples, num_samples=num_samples, seed=config.seed),
        validate_every=1 if config.patience is not None else _between_looks(config, epochs),
        patience=config.patience,
        observers=observers,
    )


def _between_looks(config: RunConfig, epochs: int) -> int:
    if config.epochs is not None:
        return 1
    return epochs_between_looks(epochs, by_left_out=config.leave_out > 0)


def _finish(config: RunConfig, assembly: Assembly, folder: RunFolder, fit: Fit) -> dict[str, Any]:
    """The one look at the test part (or none, see ``evaluate_on``), then the result files."""
    chosen = best(folder.checkpoints) if config.select == "best" else None
    # Where time ran out before the first validation there is no best one.
    is_best, chosen = chosen is not None, chosen or latest(folder.checkpoints)
    if chosen is None:
        raise CheckpointError("checkpoints", str(folder.checkpoints), "are gone", "train again")
    if is_best:
        state = load_checkpoint(chosen)
        saved_on = state.get("device", "cpu")
        assembly.method.load_state_dict(portable(state["method"], saved_on, fit.device))
    posterior, judged = finished(config, assembly)
    if config.refit:
        kept = chosen.step // assembly.facts.steps_per_epoch
        posterior = refitted_run(config, assembly, max(1, kept))
    posterior.preparation = assembly.dataset.preparation
    posterior.about = about_run(config, assembly.facts, chosen.step, sums_of(folder))
    judge = evaluation.evaluate if _is_measured(config, judged) else evaluation.unmeasured
    metrics, curves = judge(
        posterior,
        judged,
        part=_part(config),
        num_samples=config.num_samples,
        noise=config.noise,
        seed=config.seed,
        ood=assembly.ood,
        shift=config.shift,
    )
    run_figures: Metrics = {
        "seconds": fit.seconds,
        **{key: curves.pop(key) for key in ("predict_seconds",) if key in curves},
        "checkpoint_bytes": size_in_bytes(chosen.path),
    }
    posterior.save(folder.posterior)
    folder.write_end({**metrics, **run_figures}, curves)
    return folder.read_metrics()  # what a later reader sees


def _interrupted(folder: RunFolder, fit: Fit, progress: Progress) -> RunResult:
    message = (
        f"stopped after step {fit.step}, in epoch {fit.epoch + 1} of {fit.epochs}; "
        f"saved; go on with: gossamer train --resume --out {folder.path}"
    )
    progress.close()
    progress.message(message)
    return RunResult(folder.path, "interrupted", fit.epoch, fit.step, None, message)


def _tell_of_changes(
    folder: RunFolder, found: Found | None, progress: Progress, device: str
) -> None:
    if found is None:
        progress.message("no checkpoint yet: starting from the beginning")
    elif found.notice is not None:
        progress.message(found.notice)
    before = {"device": "cpu", **folder.read_environment()}  # the first version knew no other
    now = {**environment(), "device": device}
    for key in ("torch", "machine", "cpu_capability", "threads", "device"):
        if before.get(key) != now[key]:
            progress.message(
                f"{key} was {before.get(key)} and is {now[key]}: "
                "going on, but bit-for-bit equality with an unbroken run is not assured"
            )


def _of_members(config: RunConfig) -> str:
    if config.members in (None, 1):
        return ""
    return f", {config.members} members" + (" by cycles" if config.harvest == "cycles" else "")


def _figures(metrics: dict[str, Any]) -> str:
    keys = ("accuracy", "rmse", "nll", "ece", "nnz", "sparsity")
    return ", ".join(f"{k} {metrics[k]:.5g}" for k in keys if metrics.get(k) is not None)
