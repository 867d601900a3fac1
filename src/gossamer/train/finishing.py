"""The finishing step of a run: what the validation part adds before the test part is looked at."""

from __future__ import annotations

from dataclasses import replace

from gossamer.data import DataSet, Rows
from gossamer.errors import InvalidValue
from gossamer.likelihoods import Poisson
from gossamer.nn import Noise
from gossamer.prediction import Posterior, last_layer, tempered
from gossamer.train.assembly import Assembly
from gossamer.train.config import RunConfig

_LEAST = 2
"""Validation rows that a finishing step needs."""


def check_finish(config: RunConfig, assembly: Assembly) -> None:
    """Raise, before anything is trained, where the finishing step could not be done.

    Raises:
        InvalidValue: There are no validation rows to choose by, or the likelihood has none.
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
    if isinstance(assembly.method.likelihood, Poisson):
        raise InvalidValue("finish", config.finish, "does not apply to counts", "set finish=none")


def finished(config: RunConfig, assembly: Assembly) -> tuple[Posterior, DataSet]:
    """The posterior with its finishing step, and the data on which it may be judged.

    Rows that chose something never judge it: where the validation part is measured, its first half
    chooses and its second half is what is left of it.
    """
    posterior, dataset = assembly.method.posterior(), assembly.dataset
    if config.finish == "none":
        return posterior, dataset
    chooses = Rows(dataset.x_val, dataset.y_val)
    if config.evaluate_on == "validation":
        half = len(chooses.x) // 2
        judges = Rows(chooses.x[half:], chooses.y[half:])
        chooses = Rows(chooses.x[:half], chooses.y[:half])
        dataset = replace(dataset, validation=judges)
    held_out = (chooses.x, chooses.y)
    noise: Noise = "local" if config.noise == "local" else "weight"
    if config.finish == "temperature":
        found = tempered(
            posterior, held_out, num_samples=config.num_samples, noise=noise, seed=config.seed
        )
        return found, dataset
    found = last_layer(
        posterior,
        held_out,
        num_data=assembly.facts.num_data,
        num_samples=config.num_samples,
        noise=noise,
        seed=config.seed,
    )
    return found, dataset
