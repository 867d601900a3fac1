"""The face to Lightning: one callback that swaps and keeps the state.

Needs ``pip install 'gossamer[lightning]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gossamer.core.swap import SwapInfo
from gossamer.errors import InvalidValue, MissingDependency
from gossamer.inference import ELBO, Subspace
from gossamer.inference.carried import Carried, require_state

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        Callback = object

__all__ = ["SubspaceCallback"]


class SubspaceCallback(Callback):
    """Swaps the support of a ``LightningModule`` after every optimiser step that is due.

    It counts optimiser steps, whatever ``accumulate_grad_batches`` is, and so do the schedules of
    the ``gossamer.ELBO`` objects that the module holds as attributes. Both are in the checkpoint,
    with the state of torch's generator, which Lightning does not save: a run that is killed and
    resumed ends with the same bits. The trainer's loggers get ``swap/removed`` and ``swap/added``.

    Args:
        elbo: An objective that is no attribute of the module.
        **settings: Of ``gossamer.Subspace``: ``removal="snr_abs"``, ``update_every=50``, …;
            ``total_steps`` is the trainer's unless it is given.

    Attributes:
        subspace: The ``gossamer.Subspace`` of the run; ``None`` before it.
    """

    def __init__(self, *, elbo: ELBO | None = None, **settings: Any) -> None:
        super().__init__()
        if Callback is object:
            raise MissingDependency(
                "lightning",
                None,
                "is needed for gossamer.lightning",
                "pip install 'gossamer[lightning]'",
            )
        self._carried = Carried(settings)
        self._elbo = elbo
        self._state: dict[str, Any] | None = None
        self._noise: torch.Tensor | None = None
        self._seen = 0
        self._ends_epoch = True

    @property
    def subspace(self) -> Subspace | None:
        """See the class."""
        return self._carried.subspace

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Go on with the noise of a run that was saved between epochs.

        Before data are read: the order of the next epoch is drawn from it.
        """
        require_state(self._state, 0 if trainer.ckpt_path is None else 1)
        if self._state is not None and self._state["ends_epoch"]:
            torch.set_rng_state(self._state["noise"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Build the subspace on the module and the trainer's optimisers.

        After the loaders: to ask for the number of steps any earlier would start them.
        """
        resumed, self._state = self._state, None
        if resumed is not None and not resumed["ends_epoch"]:
            self._noise = resumed["noise"]
        total = self._carried.settings.get("total_steps") or _total_steps(trainer)
        self._carried.begin(
            pl_module, trainer.optimizers, total, _objectives(pl_module, self._elbo), resumed
        )
        self._seen = trainer.global_step

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Go on with the noise of a run that was saved within an epoch."""
        if self._noise is not None:
            torch.set_rng_state(self._noise)
            self._noise = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step if the optimisers took one; swap if one is due."""
        taken = trainer.global_step - self._seen
        self._seen = trainer.global_step
        self._ends_epoch = bool(trainer.is_last_batch)
        # Lightning counts the steps of every optimiser.
        if taken not in (0, len(trainer.optimizers)):
            raise InvalidValue(
                "optimizer steps in one batch",
                taken,
                f"must be one of each of the {len(trainer.optimizers)} optimisers, or none",
                "leave the callback out and step a gossamer.Subspace in training_step",
            )
        if taken:
            info = self._carried.require_begun().step()
            if info is not None:
                _log(trainer, info)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        state = self._carried.state_dict()
        if not state:
            return {}
        return {**state, "noise": torch.get_rng_state(), "ends_epoch": self._ends_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a state until the optimisers exist."""
        self._state = state_dict or None


def _log(trainer: Any, info: SwapInfo) -> None:
    """Tell the trainer's loggers of a swap, whatever ``log_every_n_steps`` is."""
    counts = {"swap/removed": info.removed, "swap/added": info.added}
    for logger in trainer.loggers:
        # Lightning counts the steps of its curves from 0.
        logger.log_metrics(counts, step=info.step - 1)


def _total_steps(trainer: Any) -> int:
    total = trainer.estimated_stepping_batches
    if total == float("inf"):
        raise InvalidValue(
            "total_steps",
            "unlimited",
            "must be known: swaps grow fewer towards the end",
            "set max_steps or max_epochs of the Trainer, or SubspaceCallback(total_steps=…)",
        )
    return int(total)


def _objectives(module: nn.Module, given: ELBO | None) -> list[ELBO]:
    found = [value for part in module.modules() for value in vars(part).values()]
    objectives = {id(value): value for value in (*found, given) if isinstance(value, ELBO)}
    return list(objectives.values())
