"""CV-Adam, Algorithm 1 of cvadam2023: a Gaussian N(μ, (ατ)²) around a trained mean.

Unlike the chains its samples are draws from that Gaussian, as many as are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.langevin import check_betas
from gossamer.errors import InvalidValue
from gossamer.inference.method import MethodEntry
from gossamer.inference.sampler import SamplerConfig, SamplerMethod, sampler_groups, sparse_copy
from gossamer.likelihoods import Likelihood
from gossamer.optim import CVAdam
from gossamer.prediction import Centre, GaussianDraws, Posterior


@dataclass(frozen=True, kw_only=True)
class CVAdamConfig(SamplerConfig):
    """Settings of CV-Adam; ``lr`` is l, the step on the means.

    Attributes:
        alpha: α, the largest standard deviation of a weight at the start of a cycle.
        alpha_end: What it falls to, with the step size, by the end of one.
        betas: (β₁, β₂): what is kept of the momentum, and the weight of the gradient.
        tau_lr: η, the step on logit τ.
    """

    cycles: int = 1
    alpha: float = 0.05
    alpha_end: float = 0.05
    betas: tuple[float, float] = (0.9, 1.0)
    tau_lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)
        for name in ("alpha", "alpha_end"):
            if not 0.0 < getattr(self, name) < inf:
                raise InvalidValue(name, getattr(self, name), "must be positive")
        if not self.tau_lr >= 0.0:
            raise InvalidValue("tau_lr", self.tau_lr, "must not be negative")


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "weight_decay": 5e-4,
        "lr": 1.0,
        "cycles": 4,
        "betas": (0.1, 1.0),
        "decay_biases": True,
    },
}


class CVAdamMethod(SamplerMethod):
    """See the module."""

    optimizer: CVAdam
    config: CVAdamConfig

    def posterior(self) -> Posterior:
        """The Gaussian of the present means and spreads."""
        state = self.optimizer.state
        names: dict[Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        centres = [Centre(names[p], s["mean"], s["rho"]) for p, s in state.items() if "mean" in s]
        draws = GaussianDraws(self.model, centres, self.optimizer.param_groups[0]["alpha"])
        return Posterior(draws, self.likelihood)

    def _schedule(self) -> float:
        factor = super()._schedule()
        for group in self.optimizer.param_groups:
            start, end = self.config.alpha, self.config.alpha_end
            group["alpha"] = end + (start - end) * factor
        return factor


def build(
    config: CVAdamConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> CVAdamMethod:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model, generator)
    optimizer = CVAdam(
        sampler_groups(config, net, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
        alpha=config.alpha,
        temperature=config.temperature,
        betas=config.betas,
        tau_lr=config.tau_lr,
    )
    return CVAdamMethod("cv_adam", net, likelihood, optimizer, config, total_steps)


METHOD = MethodEntry(
    CVAdamConfig,
    build,
    PRESETS,
    "constrained variational Adam: a bounded Gaussian around a trained mean",
    gone=frozenset(
        {
            "budget_mb",
            "explore",
            "freeze",
            "sample_every",
            "sample_folder",
            "samples_per_cycle",
        }
    ),
)
