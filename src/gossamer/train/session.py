"""One sitting of a run: from a position (step 0 or a checkpoint's) to the end or to a stop.

The state of a run is (method, torch's generator, generator of the data order at the epoch's start,
position inside the epoch, running sums, best so far). All of it is in every checkpoint, so a
sitting that begins at a checkpoint takes the same steps, bit for bit, as one that never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from gossamer.data import batches
from gossamer.errors import NonFinite
from gossamer.inference import StepInfo
from gossamer.train.assembly import Assembly, leaves_out_last
from gossamer.train.checkpoint import mark_best, save_checkpoint
from gossamer.train.config import RunConfig
from gossamer.train.evaluate import Metrics, predicting_size, validate
from gossamer.train.folder import RunFolder
from gossamer.train.progress import Progress
from gossamer.train.record import Record

_VALIDATION_SAMPLES = 3
"""Posterior samples per validation: enough to follow the NLL, a few per cent of an epoch's cost."""


class Session:
    """Trains until the last epoch or until ``stopped`` says so.

    Args:
        config: The settings.
        assembly: Data and method.
        folder: Where checkpoints go.
        record: Where epochs and swaps are written.
        progress: Who watches.
        stopped: Asked after every step; the step in hand is always finished and saved.
    """

    def __init__(
        self,
        config: RunConfig,
        assembly: Assembly,
        folder: RunFolder,
        record: Record,
        progress: Progress,
        stopped: Callable[[], bool],
    ) -> None:
        self.config = config
        self.dataset, self.method = assembly.dataset, assembly.method
        self.steps_per_epoch = assembly.facts.steps_per_epoch
        self.folder, self.record, self.progress = folder, record, progress
        self.stopped = stopped
        self.epoch = 0
        self.position = 0
        self.seconds = 0.0
        self.best: dict[str, Any] | None = None
        self._order = torch.Generator().manual_seed(config.seed)
        self._epoch_start = self._order.get_state()
        self._sums: dict[str, float] = {}
        self._epoch_seconds = 0.0
        self._saved_step: int | None = None
        self._size = predicting_size(self.method)

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self.epoch * self.steps_per_epoch + self.position

    def load(self, state: dict[str, Any]) -> None:
        """Go to the position of a checkpoint's state."""
        self.epoch, self.position = state["epoch"], state["position"]
        self.seconds, self._epoch_seconds = state["seconds"], state["epoch_seconds"]
        self._sums, self.best = dict(state["sums"]), state["best"]
        self._epoch_start = state["order"]
        self.method.load_state_dict(state["method"])
        self._size = predicting_size(self.method)
        torch.set_rng_state(state["torch"])
        self._saved_step = self.step
        # A kill between a checkpoint and its pointer leaves the pointer one behind.
        if self.best is not None and (self.folder.checkpoints / self.best["name"]).exists():
            mark_best(self.folder.checkpoints, self.best["name"])

    def run(self) -> bool:
        """Train; ``True`` at the end of the last epoch, ``False`` where it was stopped before."""
        while self.epoch < self.config.epochs:
            if not self._finish_epoch():
                return False
        return True

    def _finish_epoch(self) -> bool:
        began, before = time.perf_counter(), (self.seconds, self._epoch_seconds)

        def count_time() -> None:
            passed = time.perf_counter() - began
            self.seconds, self._epoch_seconds = before[0] + passed, before[1] + passed

        self._order.set_state(self._epoch_start)
        info = self._take_steps()
        count_time()
        if info is None:
            self._save(best=False)
            return False
        validation = validate(
            self.method,
            self.dataset,
            num_samples=min(self.config.num_samples, _VALIDATION_SAMPLES),
            seed=self.config.seed,
        )
        self._size = predicting_size(self.method)  # methods that prune shrink
        self.epoch, self.position = self.epoch + 1, 0
        self._epoch_start = self._order.get_state()
        count_time()
        self._record_epoch(info, validation)
        self._sums, self._epoch_seconds = {}, 0.0
        stopping = self.stopped() and self.epoch < self.config.epochs
        scheduled = (
            self.epoch % self.config.checkpoint_every == 0 or self.epoch == self.config.epochs
        )
        if scheduled:  # only these compete for the best: a stop must not change which one it is
            self._save(best=self._improves(validation["nll"]))
        elif stopping:
            self._save(best=False)
        return not stopping

    def _take_steps(self) -> StepInfo | None:
        """The rest of an epoch's steps; the last one's info, or ``None`` where it was stopped."""
        data = batches(
            self.dataset.x_train,
            self.dataset.y_train,
            self.config.batch_size,
            self._order,
            augment=self.dataset.augment,
            drop_last=leaves_out_last(len(self.dataset.x_train), self.config.batch_size),
            start=self.position,
        )
        info = None
        for x, y in data:
            info = self.method.step((x, y))
            self.position += 1
            self._note(info, len(x))
            if self.stopped() and self.position < self.steps_per_epoch:
                return None
        return info

    def _note(self, info: StepInfo, count: int) -> None:
        """Add a step to the epoch's means, the record and the display."""
        if not abs(info.loss) < float("inf"):
            raise NonFinite("loss", info.loss, f"at step {self.step}", "lower the learning rate")
        means = {"loss": info.loss, "nll": info.nll, "accuracy": info.accuracy}
        for key, value in means.items():
            if value is not None:
                self._sums[key] = self._sums.get(key, 0.0) + value * count
        self._sums["count"] = self._sums.get("count", 0.0) + count
        if info.swap is not None:
            layers = {name: asdict(layer) for name, layer in info.swap.layers.items()}
            self.record.write("swap", self.step, {"fraction": info.swap.fraction, "layers": layers})
        shown = {"accuracy": info.accuracy, "nll": info.nll, "kl": info.kl}
        sparsity = {"sparsity": float(self._size["sparsity"])}
        self.progress.update(self.epoch + 1, self.step, {**shown, **sparsity})

    def _record_epoch(self, info: StepInfo, validation: Metrics) -> None:
        count = self._sums["count"]
        means = {key: value / count for key, value in self._sums.items() if key != "count"}
        self.record.write(
            "epoch",
            self.step,
            {
                "epoch": self.epoch,
                "train": {**means, "kl": info.kl, "kl_weight": info.kl_weight},
                "val": validation,
                **self._size,
                "lr": info.lr,
                "seconds": self._epoch_seconds,
            },
        )

    def _improves(self, nll: float | int | None) -> bool:
        if nll is None or not nll < (float("inf") if self.best is None else self.best["nll"]):
            return False
        self.best = {"nll": float(nll), "name": f"step-{self.step:08d}"}
        return True

    def _save(self, *, best: bool) -> None:
        if self._saved_step == self.step:
            return
        self.record.sync()  # the checkpoint counts on all records up to its step
        state = {
            "epoch": self.epoch,
            "position": self.position,
            "seconds": self.seconds,
            "epoch_seconds": self._epoch_seconds,
            "sums": self._sums,
            "best": self.best,
            "order": self._epoch_start,
            "torch": torch.get_rng_state(),
            "method": self.method.state_dict(),
        }
        keep = self.config.keep_checkpoints
        save_checkpoint(self.folder.checkpoints, self.step, state, keep=keep, best=best)
        self._saved_step = self.step
