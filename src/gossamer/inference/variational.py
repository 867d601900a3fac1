"""What methods with a Gaussian posterior share: prior, initial posterior, KL warm-up."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.core.schedule import linear_warmup
from gossamer.errors import InvalidValue
from gossamer.inference.gradient import OptimizerConfig
from gossamer.inference.objective import ELBO
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_bayesian
from gossamer.nn.candidates import find_candidates
from gossamer.nn.prior import POSTERIOR_SHARE, PosteriorStd, PriorStd
from gossamer.ops import AUTO


@dataclass(frozen=True, kw_only=True)
class VariationalConfig(OptimizerConfig):
    """Settings of prior, posterior and KL; the optimiser's are inherited. See docs/defaults.md.

    Attributes:
        prior_std: ``"scaled"`` or a number.
        posterior_std: Initial σ: ``"scaled"``, a number, or (mean, spread).
        posterior_share: What ``"scaled"`` is of the prior's standard deviation.
        initial_mean_std: Redraw the means from N(0, this²) instead of keeping the network's own
            initialisation.
        kl_weight: β at the end of the warm-up; ``None``: 1 where the likelihood has a scale of
            noise, else ``KL_WEIGHT``.
        kl_warmup: Share of the run over which β rises from 0.
        temperature: Of the posterior.
        backend: Engine of the layers: ``auto`` chooses per layer.
    """

    std_lr: float | None = 1e-2
    prior_std: PriorStd = "scaled"
    posterior_std: PosteriorStd = "scaled"
    posterior_share: float = POSTERIOR_SHARE
    initial_mean_std: float | None = None
    kl_weight: float | None = None
    kl_warmup: float = 0.5
    temperature: float = 1.0
    backend: str = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("initial_mean_std", "kl_weight", "temperature"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if not 0.0 <= self.kl_warmup <= 1.0:
            raise InvalidValue(
                "kl_warmup", self.kl_warmup, "must lie in [0, 1], a share of the run"
            )


KL_WEIGHT = 0.01
"""β for labels and counts. The learnt noise of real targets falls to nothing with it:
docs/defaults.md."""


PAPER: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.01,
    "std_lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "decay_biases": True,
    "prior_std": 0.005,
    "posterior_std": (0.0006, 0.0005),
    "initial_mean_std": 0.01,
    "kl_weight": 0.01,
    "kl_warmup": 0.5,
}
"""Prior, posterior and optimiser of the SSVI authors' CIFAR runs, dense and sparse."""


def bayesian_copy(
    config: VariationalConfig, model: nn.Module, sparsity: float, sparsity_distribution: str = "erk"
) -> nn.Module:
    """A Bayesian copy of ``model`` with the prior and initial posterior of ``config``."""
    redraw = config.initial_mean_std is not None
    if redraw:
        model = _redrawn(model, float(config.initial_mean_std or 0.0))
    return to_bayesian(
        model,
        sparsity,
        sparsity_distribution=sparsity_distribution,
        rescale=not redraw,
        prior_std=config.prior_std,
        posterior_std=config.posterior_std,
        posterior_share=config.posterior_share,
        backend=config.backend,
    )


def warmed_elbo(
    config: VariationalConfig,
    bnn: nn.Module,
    likelihood: Likelihood,
    num_data: int,
    total_steps: int,
) -> ELBO:
    """The objective: β rises linearly from 0 to ``kl_weight`` over ``kl_warmup`` of the run."""
    weight = config.kl_weight
    if weight is None:
        weight = 1.0 if likelihood.has_noise else KL_WEIGHT
    schedule = linear_warmup(round(config.kl_warmup * total_steps), end=weight)
    return ELBO(bnn, num_data, schedule, temperature=config.temperature)


def _redrawn(model: nn.Module, std: float) -> nn.Module:
    """A copy whose convertible weights are drawn from N(0, std²)."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for candidate in find_candidates(model):
            candidate.modules[0].weight.normal_(0.0, std)  # type: ignore[operator]
    return model
