"""Cyclical SGHMC (Zhang et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from gossamer.core.langevin import check_betas
from gossamer.inference.chain import ChainConfig, ChainMethod
from gossamer.inference.method import MethodEntry
from gossamer.inference.sampler import sampler_groups, sparse_copy
from gossamer.likelihoods import Likelihood
from gossamer.optim import SGHMC


@dataclass(frozen=True, kw_only=True)
class CSGHMCConfig(ChainConfig):
    """Settings of cyclical SGHMC; ``lr`` is Δt².

    Attributes:
        betas: (β₁, β₂): what is kept of the velocity, and the weight of the gradient.
    """

    label_lr: ClassVar[float] = 0.05
    real_lr: ClassVar[float] = 0.003

    betas: tuple[float, float] = (0.9, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"weight_decay": 5e-4, "lr": 0.5, "decay_biases": True, "explore": 0.9},
}


def build(
    config: CSGHMCConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> ChainMethod:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model, generator)
    optimizer = SGHMC(
        sampler_groups(config, net, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
        temperature=config.temperature,
        betas=config.betas,
    )
    return ChainMethod("csghmc", net, likelihood, optimizer, config, total_steps)


METHOD = MethodEntry(
    CSGHMCConfig,
    build,
    PRESETS,
    "cyclical stochastic gradient Hamiltonian Monte Carlo",
)
