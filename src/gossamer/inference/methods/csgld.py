"""Cyclical SGLD (Zhang et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.inference.chain import ChainConfig, ChainMethod
from gossamer.inference.method import MethodEntry
from gossamer.inference.sampler import sampler_groups, sparse_copy
from gossamer.likelihoods import Likelihood
from gossamer.optim import SGLD


@dataclass(frozen=True, kw_only=True)
class CSGLDConfig(ChainConfig):
    """Settings of cyclical SGLD, all inherited; ``lr`` is the plain step."""


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"weight_decay": 5e-4, "lr": 0.5, "decay_biases": True, "explore": 0.9},
}


def build(
    config: CSGLDConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> ChainMethod:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model, generator)
    optimizer = SGLD(
        sampler_groups(config, net, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
        temperature=config.temperature,
    )
    return ChainMethod("csgld", net, likelihood, optimizer, config, total_steps)


METHOD = MethodEntry(
    CSGLDConfig,
    build,
    PRESETS,
    "cyclical stochastic gradient Langevin dynamics",
)
