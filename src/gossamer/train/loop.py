"""``Fit``: a method's steps over epochs, with its whole state; no folder, no test part.

The state of a fit is (method, torch's generators, generator of the data order at the epoch's start,
position inside the epoch, running sums, best epoch). A fit that begins at such a state takes the
same steps, bit for bit, as one that never stopped. Whoever wants to write, show or decide something
on the way is an observer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal

import torch

from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference import Method, StepInfo
from gossamer.train.device import device_of, portable, random_state, set_random_state
from gossamer.train.evaluation import Metrics
from gossamer.train.examples import Feed

Ending = Literal["finished", "patience", "stopped"]
Validate = Callable[[Method], Metrics]


@dataclass(frozen=True)
class Epoch:
    """What an epoch reports, as JSON values.

    Attributes:
        epoch: Its number, counted from 1.
        step: Optimiser steps done at its end.
        train: Means over its examples: ``loss``, ``nll``, ``accuracy`` for classes; ``kl`` and
            ``kl_weight`` of its last step.
        val: Figures of the validation part, ``nll`` among them; empty where it was not validated.
        lr: Learning rate of its last step.
        seconds: That it took, validation included.
    """

    epoch: int
    step: int
    train: dict[str, float]
    val: Metrics
    lr: float
    seconds: float

    @property
    def nll(self) -> float:
        """Validation NLL; infinite where it is unknown or not finite."""
        found = self.val.get("nll")
        return inf if found is None or not abs(found) < inf else float(found)


class Observer:
    """Somebody who watches a fit; override what you need.

    The order of a step is: the method's step, ``on_step``, ``should_stop``. At the end of an epoch
    ``on_epoch`` comes before ``should_stop``. ``on_stop`` comes once, where the fit is left before
    its end. In each of them ``fit.state_dict()`` is whole.
    """

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        """A step was taken."""

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        """An epoch has ended and was validated."""

    def on_stop(self, fit: Fit) -> None:
        """The fit stops here, before its end; it can go on."""

    def should_stop(self) -> bool:
        """Whether the fit should stop after the step in hand."""
        return False


class TimeLimit(Observer):
    """Stops fits after some seconds; how far they are by then differs from machine to machine.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0.0:
            raise InvalidValue("time_limit", seconds, "must be a number of seconds > 0")
        self._end = time.perf_counter() + seconds

    def should_stop(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() >= self._end


class Fit:
    """A method on its way through the epochs.

    Args:
        method: Built for ``epochs * feed.steps_per_epoch`` steps.
        feed: Its batches, on the method's device.
        epochs: Passes over the data.
        order: CPU generator of the order of the batches.
        validate: Figures of the method on held-out examples, ``nll`` among them.
        validate_every: Epochs between validations; the last epoch is validated in any case.
        patience: Stop where the validation NLL has not improved for so many epochs.
        observers: Who watches.
    """

    def __init__(
        self,
        method: Method,
        feed: Feed,
        *,
        epochs: int,
        order: torch.Generator,
        validate: Validate | None = None,
        validate_every: int = 1,
        patience: int | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        for name, count in (("epochs", epochs), ("validate_every", validate_every)):
            if count < 1:
                raise InvalidValue(name, count, "must be at least 1")
        if patience is not None and validate is None:
            raise InvalidValue(
                "patience", patience, "needs a validation part", "use none to train all epochs"
            )
        if patience is not None and patience < validate_every:
            raise InvalidValue(
                "patience", patience, f"must be at least validate_every, {validate_every}"
            )
        self.method, self.feed, self.epochs = method, feed, epochs
        self.patience = patience
        self.observers = list(observers)
        self.device = device_of(method.model)
        self.epoch = 0
        self.position = 0
        self.seconds = 0.0
        self.history: list[Epoch] = []
        self.best: dict[str, Any] | None = None
        self.ending: Ending | None = None
        self._validate, self._validate_every = validate, validate_every
        self._order = order
        self._epoch_start = order.get_state()
        self._noise = random_state(self.device)
        self._running = False
        self._sums: dict[str, float] = {}
        self._epoch_seconds = 0.0
        self._clock = 0.0

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self.epoch * self.feed.steps_per_epoch + self.position

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all epochs."""
        return self.epochs * self.feed.steps_per_epoch

    @property
    def best_epoch(self) -> int | None:
        """The epoch of least validation NLL so far."""
        return None if self.best is None else int(self.best["epoch"])

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do: the last epoch, or no more patience."""
        return self.epoch >= self.epochs or self._is_out_of_patience

    @property
    def _is_out_of_patience(self) -> bool:
        if self.patience is None or self.epoch == 0:
            return False
        return self.epoch - (self.best_epoch or 0) >= self.patience

    def run(self, until: int | None = None) -> bool:
        """Train to the end, or to the end of epoch ``until``.

        torch's generators go on where this fit left them, and stay where it leaves them.

        Returns:
            Whether it got there; ``False`` where an observer stopped it before.

        Raises:
            NonFinite: The loss is not finite.
        """
        last = self.epochs if until is None else min(until, self.epochs)
        self.ending = None
        set_random_state(self._noise, self.device)
        self._running = True
        try:
            return self._train_to(last)
        finally:
            self._noise = random_state(self.device)
            self._running = False

    def _train_to(self, last: int) -> bool:
        while self.epoch < last and not self.is_done:
            self._clock = time.perf_counter()
            self._order.set_state(self._epoch_start)
            for batch in self.feed.epoch(self._order, self.position):
                info = self.method.step(batch)
                self.position += 1
                self._note(info, len(batch.x))
                if self._must_stop() and self.position < self.feed.steps_per_epoch:
                    return self._stop()
            self._end_epoch(info, is_last=self.epoch + 1 == last)
            if self._must_stop() and not self.is_done:
                return self._stop()
        self.ending = "patience" if self.epoch < self.epochs and self.is_done else "finished"
        return True

    def _note(self, info: StepInfo, count: int) -> None:
        """Add a step to the epoch's means and tell the observers."""
        if not abs(info.loss) < inf:
            raise NonFinite("loss", info.loss, f"at step {self.step}", "lower the learning rate")
        means = {"loss": info.loss, "nll": info.nll, "accuracy": info.accuracy}
        for key, value in means.items():
            if value is not None:
                self._sums[key] = self._sums.get(key, 0.0) + value * count
        self._sums["count"] = self._sums.get("count", 0.0) + count
        for observer in self.observers:
            observer.on_step(self, info)
        self._count_time()

    def _end_epoch(self, info: StepInfo, *, is_last: bool) -> None:
        validation: Metrics = {}
        due = self.epoch + 1 == self.epochs or (self.epoch + 1) % self._validate_every == 0
        if self._validate is not None and (due or is_last):
            validation = self._validate(self.method)
        self.epoch, self.position = self.epoch + 1, 0
        self._epoch_start = self._order.get_state()
        self._count_time()
        count = self._sums.pop("count")
        means = {key: value / count for key, value in self._sums.items()}
        report = Epoch(
            self.epoch,
            self.step,
            {**means, "kl": info.kl, "kl_weight": info.kl_weight},
            validation,
            info.lr,
            self._epoch_seconds,
        )
        self._sums, self._epoch_seconds = {}, 0.0
        self.history.append(report)
        # Where a fit only halts here it must not look better or worse than one that did not.
        if due and report.nll < (inf if self.best is None else self.best["nll"]):
            self.best = {"epoch": self.epoch, "nll": report.nll}
        for observer in self.observers:
            observer.on_epoch(self, report)

    def _must_stop(self) -> bool:
        return any(observer.should_stop() for observer in self.observers)

    def _stop(self) -> bool:
        self.ending = "stopped"
        for observer in self.observers:
            observer.on_stop(self)
        return False

    def _count_time(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self._clock
        self._epoch_seconds += now - self._clock
        self._clock = now

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on: tensors and JSON values."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seconds": self.seconds,
            "epoch_seconds": self._epoch_seconds,
            "sums": dict(self._sums),
            "order": self._epoch_start,
            **(random_state(self.device) if self._running else self._noise),
            "device": str(self.device),
            "method": self.method.state_dict(),
            "best_epoch": self.best,
            "history": [asdict(epoch) for epoch in self.history],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken, on the present device.

        Where the state was saved on another device, the fit goes on to rounding only.
        """
        self.epoch, self.position = state["epoch"], state["position"]
        self.seconds, self._epoch_seconds = state["seconds"], state["epoch_seconds"]
        self._sums, self._epoch_start = dict(state["sums"]), state["order"]
        self._noise = {k: state[k] for k in ("torch", "torch_device") if k in state}
        # The first version knew no device, no patience, and kept its history in the record alone.
        saved_on = state.get("device", "cpu")
        self.best = state.get("best_epoch")
        self.history = [Epoch(**epoch) for epoch in state.get("history", [])]
        self.method.load_state_dict(portable(state["method"], saved_on, self.device))
