"""``refitted``: a method trained anew on all rows, for as long as its validation part advised.

Rows that chose when to stop, and how wide predictions are, then learn too. What they chose is taken
over: the number of epochs, a temperature, and the scores of intervals or label sets. These are of
the first fit; the second errs about as it did, a little less, so that its intervals are a little
wide. No guarantee survives, as no row is left that it could rest on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossamer.inference import Method
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, StudentT
from gossamer.prediction import Posterior, calibrated, tempered
from gossamer.prediction.finish.finish import Finish
from gossamer.train.assembly import Assembly, build_method
from gossamer.train.config import RunConfig
from gossamer.train.device import device_of, own_noise
from gossamer.train.examples import Examples, Pair, steps_per_epoch
from gossamer.train.finishing import LEAST_SCORES
from gossamer.train.fitting import FitResult, fit
from gossamer.train.loop import Epoch, Fit, Observer


class StopAfter(Observer):
    """Ends a fit after so many epochs; its schedules are those of the whole run.

    Args:
        epochs: From 1 on.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs, self._is_over = epochs, False

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        """Count it."""
        self._is_over = epoch.epoch >= self._epochs

    def should_stop(self) -> bool:
        """Whether it was the last."""
        return self._is_over


def all_rows(examples: Examples) -> Examples:
    """Training and validation rows together, nothing held out."""
    if examples.validation is None:
        return examples
    x, y = examples.validation
    weight: Tensor | None = None
    if examples.weight is not None:
        learnt = examples.weight.new_full((len(x),), examples.validation_weight)
        weight = torch.cat([examples.weight, learnt])
    return replace(
        examples,
        x=torch.cat([examples.x, x]),
        y=torch.cat([examples.y, y]),
        weight=weight,
        validation=None,
    )


def refitted(
    first: Method,
    examples: Examples,
    refit: Callable[[Examples, list[Observer]], FitResult],
    *,
    epochs: int,
    finishes: bool,
    conformal: bool,
    look: dict[str, Any],
) -> Posterior:
    """The posterior of a second fit, on all rows.

    Args:
        first: The method of the first fit, in the state that was kept.
        examples: What it learnt from; its validation part learns now.
        refit: The second fit, from its examples and an observer that ends it.
        epochs: How many the first one kept.
        finishes: Whether the validation part chose a temperature.
        conformal: Whether it decided intervals or label sets.
        look: ``num_samples``, ``noise`` and ``seed`` of predictions.
    """
    finish = _chosen(first.posterior(), examples.validation, finishes, conformal, look)
    found = refit(all_rows(examples), [StopAfter(epochs)]).method.posterior()
    return found.finished(finish)


def _chosen(
    posterior: Posterior,
    held_out: Pair | None,
    finishes: bool,
    conformal: bool,
    look: dict[str, Any],
) -> Finish:
    """What held-out rows say, as far as it holds for other weights too: no last layer."""
    kind = posterior.likelihood
    if held_out is None:
        return Finish()
    if finishes and isinstance(kind, Categorical | Bernoulli | Gaussian | StudentT):
        posterior = tempered(posterior, held_out, **look)
    if conformal and isinstance(kind, Categorical | Bernoulli | Gaussian):
        posterior = calibrated(posterior, held_out, **look)
    return posterior.finish


def refitted_run(config: RunConfig, assembly: Assembly, epochs: int) -> Posterior:
    """That of a run's second fit, which is not saved on the way: after a stop it begins anew."""
    place = device_of(assembly.method.model)

    def refit(examples: Examples, observers: list[Observer]) -> FitResult:
        count = len(examples.x)
        per_epoch = steps_per_epoch(count, config.batch_size)
        facts = replace(
            assembly.facts,
            num_data=count,
            steps_per_epoch=per_epoch,
            epochs=assembly.facts.epochs_in(config),
        )
        with own_noise(place, config.seed):
            method = build_method(config, facts, place)
        return fit(
            examples,
            method,
            epochs=facts.epochs_in(config),
            batch_size=config.batch_size,
            seed=config.seed,
            observers=observers,
        )

    return refitted(
        assembly.method,
        assembly.examples,
        refit,
        epochs=epochs,
        finishes=config.finish != "none",
        conformal=config.conformal and len(assembly.dataset.x_val) >= LEAST_SCORES,
        look={
            "num_samples": config.num_samples,
            "noise": "local" if config.noise == "local" else "weight",
            "seed": config.seed,
        },
    )
