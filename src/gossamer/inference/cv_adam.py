"""CV-Adam, Algorithm 1 of cvadam2023: a Gaussian N(μ, (ατ)²) around a trained mean.

Unlike the chains its samples are draws from that Gaussian, as many as are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import nn

from gossamer.errors import InvalidValue
from gossamer.inference.chain import ChainConfig, ChainMethod, chain_groups, sparse_copy
from gossamer.inference.langevin import CVAdam
from gossamer.likelihoods import Likelihood
from gossamer.nn import Noise
from gossamer.ops import fold_seed, normal_like


@dataclass(frozen=True, kw_only=True)
class CVAdamConfig(ChainConfig):
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
        if self.explore > 0.0:
            raise InvalidValue(
                "explore",
                self.explore,
                "must be 0: the draws of CV-Adam are its gradient's noise",
                "lower alpha instead",
            )
        if self.freeze is not None:
            raise InvalidValue("freeze", self.freeze, "must be none: the weights are fresh draws")
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


class CVAdamMethod(ChainMethod):
    """See the module."""

    keeps_samples = False
    optimizer: CVAdam
    config: CVAdamConfig

    @property
    def max_samples(self) -> int | None:
        """Any number."""
        return None

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """The network at μ + ατ⊙ε, with ε fixed by ``seed``: one draw for all rows."""
        held = [
            (p, p.detach().clone(), state)
            for p, state in self.optimizer.state.items()
            if "mean" in state
        ]
        alpha = self.optimizer.param_groups[0]["alpha"]
        try:
            with torch.no_grad():
                for number, (p, _, state) in enumerate(held):
                    eps = normal_like(torch.tensor(fold_seed(seed, number)), p)
                    std = alpha * torch.sigmoid(state["rho"])
                    torch.addcmul(state["mean"], std, eps.to(p), out=p.data)
            yield self.model
        finally:
            with torch.no_grad():
                for p, draw, _ in held:
                    p.copy_(draw)

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
) -> CVAdamMethod:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model)
    optimizer = CVAdam(
        chain_groups(config, net, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
        alpha=config.alpha,
        temperature=config.temperature,
        betas=config.betas,
        tau_lr=config.tau_lr,
    )
    return CVAdamMethod("cv_adam", net, likelihood, optimizer, config, total_steps)
