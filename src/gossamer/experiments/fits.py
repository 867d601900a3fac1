"""The fit of a run without its folder, for tasks that watch what a run does not keep."""

from __future__ import annotations

import torch

from gossamer.experiments.news import Watch
from gossamer.train import Batches, Epoch, Fit, Observer, RunConfig, resolve_device
from gossamer.train.assembly import Assembly, assemble


def fit_of(config: RunConfig) -> tuple[Assembly, Fit]:
    """What a run of these settings works with, and its fit before the first step.

    It takes the steps of the run, on the device of ``config``, and validates nothing: whoever
    wants to see something joins ``fit.observers``. torch's generators are seeded.
    """
    device = resolve_device(config.device)
    torch.manual_seed(config.seed)
    assembly = assemble(config, device=device)
    fit = Fit(
        assembly.method,
        Batches(assembly.examples, config.batch_size, device),
        epochs=assembly.facts.epochs_in(config),
        order=torch.Generator().manual_seed(config.seed),
    )
    return assembly, fit


class Told(Observer):
    """Tells after every epoch how far the task is.

    Args:
        watch: Whom it tells.
        share: Of the task that is done with the last epoch.
    """

    def __init__(self, watch: Watch, share: float = 1.0) -> None:
        self._watch, self._share = watch, share

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        """Tell."""
        self._watch.tell(self._share * epoch.epoch / fit.epochs, f"epoch {epoch.epoch}")
