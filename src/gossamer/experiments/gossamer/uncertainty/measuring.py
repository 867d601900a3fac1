"""One contender on one problem: trained once, measured in every form that it can be finished in."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from gossamer.errors import GossamerError
from gossamer.experiments.fits import Told, fit_of
from gossamer.experiments.news import Watch
from gossamer.experiments.task import Values
from gossamer.prediction import Mixture, Posterior, last_layer, mixture, tempered
from gossamer.train import RunConfig, evaluate
from gossamer.train.assembly import Assembly

FORMS = ("none", "temperature", "last_layer")
"""How a posterior is finished by held-out rows, the same for all contenders."""

KEPT = (
    *("accuracy", "nll", "brier", "ece", "aurc", "rmse", "crps", "coverage"),
    *("auroc", "temperature", "last_layer_scale"),
)
"""Figures that a row keeps: these, and all that begin with ``auroc_``."""


@dataclass(frozen=True)
class Measured:
    """What is trained and measured; JSON values.

    Attributes:
        config: The settings of the run that are not defaults, so that rows outlive settings that
            are added later.
        parts: By the key of a smaller contender: how many members it has, the first of this one's.
    """

    config: dict[str, Any]
    parts: dict[str, int] = field(default_factory=dict)


def told(config: RunConfig) -> dict[str, Any]:
    """The settings of a run that are not defaults, as JSON values."""
    usual = RunConfig().to_json()
    return {name: value for name, value in config.to_json().items() if value != usual[name]}


def measure(settings: Measured, watch: Watch) -> Values:
    """The row of a task: figures by form, and what training cost.

    Returns:
        ``forms`` by name: metrics, or ``refused`` with the reason; ``parts``: the same by smaller
        contender; ``cpu_seconds`` of training, ``nnz``, ``sparsity``.
    """
    config = RunConfig.from_json(settings.config)
    assembly, fit = fit_of(config)
    fit.observers.append(Told(watch, 0.8))
    began = time.process_time()
    if not fit.run():
        watch.tell(fit.step / fit.total_steps)
    row: Values = {"cpu_seconds": time.process_time() - began}
    posterior = assembly.method.posterior()
    row.update(posterior.size)
    row["forms"] = _forms(posterior, config, assembly, watch)
    if settings.parts:
        assert isinstance(posterior, Mixture)
        row["parts"] = {
            key: _forms(
                posterior.members[0] if count == 1 else mixture(posterior.members[:count]),
                replace(config, num_samples=count),
                assembly,
                watch,
            )
            for key, count in settings.parts.items()
        }
    return row


def _forms(posterior: Posterior, config: RunConfig, assembly: Assembly, watch: Watch) -> Values:
    found: Values = {}
    for form in FORMS:
        watch.tell(0.9, form)
        try:
            finished = _finished(form, posterior, config, assembly)
        except GossamerError as refusal:
            found[form] = {"refused": str(refusal)}
            continue
        metrics, _ = evaluate(
            finished,
            assembly.dataset,
            num_samples=config.num_samples,
            seed=config.seed,
            ood=assembly.ood,
        )
        found[form] = {
            key: value
            for key, value in metrics.items()
            if value is not None and (key in KEPT or key.startswith("auroc_"))
        }
    return found


def _finished(form: str, posterior: Posterior, config: RunConfig, assembly: Assembly) -> Posterior:
    data = assembly.dataset
    held_out = (data.x_val, data.y_val)
    samples, seed = config.num_samples, config.seed
    if form == "temperature":
        return tempered(posterior, held_out, num_samples=samples, seed=seed)
    if form == "last_layer":
        rows = None if data.task == "classification" else (data.x_train, data.y_train)
        num_data = assembly.facts.num_data
        return last_layer(
            posterior, held_out, num_data=num_data, rows=rows, num_samples=samples, seed=seed
        )
    return posterior
