"""The finishing step of a run: what the validation part adds before the test part is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.data import DataSet, Rows
from gossamer.errors import InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, StudentT
from gossamer.nn import Noise
from gossamer.nn.replica import replicate
from gossamer.prediction import (
    Mixture,
    Posterior,
    calibrated,
    calibrated_by_scores,
    last_layer,
    tempered,
)
from gossamer.prediction.conformal.rank import rows_needed
from gossamer.prediction.finish.layer import last_linear
from gossamer.prediction.finish.left_out import Judged, judged
from gossamer.train.assembly import Assembly
from gossamer.train.config import RunConfig
from gossamer.train.device import device_of
from gossamer.train.examples import Examples, Pair

_LEAST = 2
"""Validation rows that a finishing step needs."""

LEAST_SCORES = rows_needed(0.95)
"""Held-out rows from which they decide intervals and label sets: enough for 95 %."""


def check_finish(config: RunConfig, assembly: Assembly) -> None:
    """Raise, before anything is trained, where the finishing step could not be done.

    Raises:
        InvalidValue: There are no validation rows to choose by, the likelihood has no such step, or
            the network has no last linear layer.
    """
    if config.refit:
        _check_refit(config, assembly)
    if config.finish == "left_out":
        _check_left_out(config, assembly)
    if config.finish in ("none", "left_out"):
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
    if likelihood.has_counts:
        raise InvalidValue("finish", config.finish, "does not apply to counts", "set finish=none")
    if config.finish == "last_layer":
        if isinstance(likelihood, Gaussian) and likelihood.noise_std == "head":
            raise InvalidValue(
                "finish",
                config.finish,
                "has no closed form where the network gives every row a noise of its own",
                "set finish=temperature",
            )
        if isinstance(likelihood, StudentT):
            raise InvalidValue(
                "finish",
                config.finish,
                "is a linear regression with normal noise, which student_t has not",
                "set finish=temperature",
            )
        model = assembly.method.model
        rows_there = assembly.dataset.x_val[:2].to(device_of(model))
        for network in model if isinstance(model, nn.ModuleList) else [model]:
            with torch.no_grad():
                last_linear(replicate(network).eval(), rows_there)  # refuses where there is none


def _check_refit(config: RunConfig, assembly: Assembly) -> None:
    if assembly.dataset.validation is None:
        rule = "has no validation rows to take in: all rows are trained on as it is"
        raise InvalidValue("refit", True, rule, "leave it out")
    if config.evaluate_on == "validation":
        rule = "would train on the rows that are to be measured"
        raise InvalidValue("refit", True, rule, "set evaluate_on=test, or leave it out")


def _check_left_out(config: RunConfig, assembly: Assembly) -> None:
    likelihood = assembly.method.likelihood
    if config.leave_out < 2:
        raise InvalidValue(
            "finish",
            config.finish,
            f"needs rows that 2 members or more left out, and leave_out is {config.leave_out}",
            "set e.g. members=20 and leave_out=4",
        )
    has_level = isinstance(likelihood, Gaussian) and likelihood.noise_std != "head"
    if not has_level and not isinstance(likelihood, Categorical | Bernoulli):
        raise InvalidValue(
            "finish",
            config.finish,
            f"finds one level of noise, which {likelihood.name} has not",
            "use likelihood=gaussian, or set finish=none and leave_out=0",
        )


def finished(config: RunConfig, assembly: Assembly) -> tuple[Posterior, DataSet]:
    """The posterior with its finishing step, and the data on which it may be judged.

    Rows that chose something never judge it: where the validation part is measured, half of it,
    drawn by the run's seed, chooses, and the other half is what is left of it.
    """
    posterior, dataset = assembly.method.posterior(), assembly.dataset
    if config.finish == "left_out":
        return _by_left_out(config, assembly), dataset
    if config.finish == "none" and not _is_conformal(config, assembly):
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
    look: dict[str, Any] = {
        "num_samples": config.num_samples,
        "noise": noise,
        "seed": config.seed,
    }
    if config.finish == "temperature":
        posterior = tempered(posterior, held_out, **look)
    elif config.finish == "last_layer":
        posterior = _with_last_layer(posterior, assembly, held_out, look)
    if _is_conformal(config, assembly) and len(chooses.x) >= LEAST_SCORES:
        posterior = calibrated(posterior, held_out, **look)
    return posterior, dataset


def _is_conformal(config: RunConfig, assembly: Assembly) -> bool:
    """Whether held-out rows decide intervals or label sets too."""
    likelihood, validation = assembly.method.likelihood, assembly.dataset.validation
    fits = isinstance(likelihood, Gaussian | Categorical | Bernoulli)
    return config.conformal and fits and validation is not None


def _by_left_out(config: RunConfig, assembly: Assembly) -> Posterior:
    """Calibrated by all training rows, each judged by the members that left it out."""
    found = judged_by_left_out(assembly.method.posterior(), assembly.examples, config.seed)
    scores = found.standardised
    if not config.conformal or scores is None or len(scores) < LEAST_SCORES:
        return found.posterior
    return calibrated_by_scores(found.posterior, scores)


def judged_by_left_out(posterior: Posterior, examples: Examples, seed: int) -> Judged:
    """Members, calibrated by the training rows that each of them left out.

    Rows judge in proportion to their weights.
    """
    examples = examples.evened()
    assert isinstance(posterior, Mixture)
    assert examples.left_out is not None
    return judged(posterior, (examples.x, examples.y), examples.left_out, seed=seed)


def _with_last_layer(
    posterior: Posterior, assembly: Assembly, held_out: Pair, look: Mapping[str, Any]
) -> Posterior:
    train = assembly.dataset.train
    # A regression knows no weights of examples; then the held-out rows correct the network's own.
    use_train = isinstance(posterior.likelihood, Gaussian) and train.weight is None
    return last_layer(
        posterior,
        held_out,
        rows=(train.x, train.y) if use_train else None,
        num_data=assembly.facts.num_data,
        **look,
    )
