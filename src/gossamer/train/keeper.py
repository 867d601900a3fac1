"""``Keeper``: the observer that makes a fit a run. It keeps record, checkpoints and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from gossamer.inference import StepInfo
from gossamer.train.checkpoint import mark_best, save_checkpoint
from gossamer.train.folder import RunFolder
from gossamer.train.loop import Epoch, Fit, Observer
from gossamer.train.progress import Progress
from gossamer.train.record import Record
from gossamer.train.seal import run_entry, sums_of


class Keeper(Observer):
    """Writes what a fit does into a run folder, and shows it.

    Args:
        folder: Where checkpoints go.
        record: Where epochs and swaps are written.
        progress: Who is shown each step.
        stopped: Asked after every step; the step in hand is always finished and saved.
        every: Epochs between checkpoints.
        keep: How many of the newest stay.
    """

    def __init__(
        self,
        folder: RunFolder,
        record: Record,
        progress: Progress,
        stopped: Callable[[], bool],
        *,
        every: int,
        keep: int,
    ) -> None:
        self._folder, self._every, self._keep = folder, every, keep
        self._record, self._progress = record, progress
        self._stopped = stopped
        self._best: dict[str, Any] | None = None
        self._saved_step: int | None = None
        self._size: dict[str, float | int] = {}
        self._sums = sums_of(folder)

    def begin(self, fit: Fit, state: Mapping[str, Any] | None) -> None:
        """Start watching a fit, and bring it to the state of a checkpoint if there is one."""
        if state is not None:
            fit.load_state_dict(state)
            self._best, self._saved_step = state["best"], fit.step
            checkpoints = self._folder.checkpoints
            # A kill between a checkpoint and its pointer leaves the pointer one behind.
            if self._best is not None and (checkpoints / self._best["name"]).exists():
                mark_best(checkpoints, self._best["name"])
        self._size = fit.method.posterior().size
        self._progress.start(fit.total_steps, fit.step)

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        """Record a swap and show the step."""
        if info.swap is not None:
            layers = {name: asdict(layer) for name, layer in info.swap.layers.items()}
            self._record.write("swap", fit.step, {"fraction": info.swap.fraction, "layers": layers})
        if info.note is not None:
            self._record.write("note", fit.step, {"text": info.note})
            self._progress.message(f"step {fit.step}: {info.note}")
        shown = {"accuracy": info.accuracy, "nll": info.nll, "kl": info.kl}
        sparsity = {"sparsity": float(self._size["sparsity"])}
        self._progress.update(fit.epoch + 1, fit.step, {**shown, **sparsity})

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        """Record the epoch, and save where a checkpoint is due."""
        self._size = fit.method.posterior().size  # methods that prune shrink
        self._record.write(
            "epoch",
            epoch.step,
            {
                "epoch": epoch.epoch,
                "train": epoch.train,
                "val": epoch.val,
                **self._size,
                "lr": epoch.lr,
                "seconds": epoch.seconds,
            },
        )
        # Only these compete for the best: a stop must not change which one it is.
        if fit.epoch % self._every == 0 or fit.is_done:
            self._save(fit, best=self._improves(epoch))

    def on_stop(self, fit: Fit) -> None:
        """Save, also in the middle of an epoch."""
        self._save(fit, best=False)

    def should_stop(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self._stopped()

    def _improves(self, epoch: Epoch) -> bool:
        if not epoch.nll < (inf if self._best is None else self._best["nll"]):
            return False
        self._best = {"nll": epoch.nll, "name": f"step-{epoch.step:08d}"}
        return True

    def _save(self, fit: Fit, *, best: bool) -> None:
        if self._saved_step == fit.step:
            return
        self._record.sync()  # the checkpoint counts on all records up to its step
        state = fit.state_dict()
        del state["history"]  # the record holds it
        state["best"] = self._best
        run = run_entry(self._sums, self._record.sealed)
        save_checkpoint(
            self._folder.checkpoints, fit.step, state, keep=self._keep, best=best, run=run
        )
        self._saved_step = fit.step
