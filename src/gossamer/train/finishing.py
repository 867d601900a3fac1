"""The finishing step of a run: what the validation part adds before the test part is looked at."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from gossamer.data import DataSet, Rows
from gossamer.errors import InvalidValue
from gossamer.likelihoods import Gaussian, Poisson
from gossamer.nn import Noise
from gossamer.nn.replica import replicate
from gossamer.prediction import Posterior, last_layer, tempered
from gossamer.prediction.finish.layer import last_linear
from gossamer.train.assembly import Assembly
from gossamer.train.config import RunConfig
from gossamer.train.device import device_of

_LEAST = 2
"""Validation rows that a finishing step needs."""


def check_finish(config: RunConfig, assembly: Assembly) -> None:
    """Raise, before anything is trained, where the finishing step could not be done.

    Raises:
        InvalidValue: There are no validation rows to choose by, the likelihood has no such step, or
            the network has no last linear layer.
    """
    if config.finish == "none":
        return
    validation = assembly.dataset.validation
    rows = 0 if validation is None else len(validation.x)
    needed = 2 * _LEAST if config.evaluate_on == "validation" else _LEAST
    if rows < needed:
        raise InvalidValue(
            "finish",
            config.finish,
            f"needs {needed} validation rows or more to choose by, there are {rows}",
            "give a validation part (validation_fraction), or set finish=none",
        )
    likelihood = assembly.method.likelihood
    if isinstance(likelihood, Poisson):
        raise InvalidValue("finish", config.finish, "does not apply to counts", "set finish=none")
    if config.finish == "last_layer":
        if isinstance(likelihood, Gaussian) and likelihood.noise_std == "head":
            raise InvalidValue(
                "finish",
                config.finish,
                "has no closed form where the network gives every row a noise of its own",
                "set finish=temperature",
            )
        model = assembly.method.model
        rows_there = assembly.dataset.x_val[:2].to(device_of(model))
        for network in model if isinstance(model, nn.ModuleList) else [model]:
            with torch.no_grad():
                last_linear(replicate(network).eval(), rows_there)  # refuses where there is none


def finished(config: RunConfig, assembly: Assembly) -> tuple[Posterior, DataSet]:
    """The posterior with its finishing step, and the data on which it may be judged.

    Rows that chose something never judge it: where the validation part is measured, half of it,
    drawn by the run's seed, chooses, and the other half is what is left of it.
    """
    posterior, dataset = assembly.method.posterior(), assembly.dataset
    if config.finish == "none":
        return posterior, dataset
    chooses = Rows(dataset.x_val, dataset.y_val)
    if config.evaluate_on == "validation":
        order = torch.randperm(len(chooses.x), generator=torch.Generator().manual_seed(config.seed))
        first, second = (
            order[: len(order) // 2].sort().values,
            order[len(order) // 2 :].sort().values,
        )
        judges = Rows(chooses.x[second], chooses.y[second])
        chooses = Rows(chooses.x[first], chooses.y[first])
        dataset = replace(dataset, validation=judges)
    held_out = (chooses.x, chooses.y)
    noise: Noise = "local" if config.noise == "local" else "weight"
    if config.finish == "temperature":
        found = tempered(
            posterior, held_out, num_samples=config.num_samples, noise=noise, seed=config.seed
        )
        return found, dataset
    train = dataset.train
    # A regression knows no weights of examples; then the held-out rows correct the network's own.
    use_train = isinstance(posterior.likelihood, Gaussian) and train.weight is None
    found = last_layer(
        posterior,
        held_out,
        rows=(train.x, train.y) if use_train else None,
        num_data=assembly.facts.num_data,
        num_samples=config.num_samples,
        noise=noise,
        seed=config.seed,
    )
    return found, dataset
