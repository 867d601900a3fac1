"""CV-SGHMC, Algorithm 2 of cvadam2023: SGHMC preconditioned by a learnt τ per weight, in cycles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.inference.chain import (
    AUTHORS,
    ChainMethod,
    PreconditionedConfig,
    preconditioned,
)
from gossamer.inference.method import MethodEntry
from gossamer.inference.sampler import sparse_copy
from gossamer.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class CVSGHMCConfig(PreconditionedConfig):
    """Settings of CV-SGHMC, all inherited."""


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {**AUTHORS, "weight_decay": 5e-4, "lr": 1.0},
}


def build(
    config: CVSGHMCConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> ChainMethod:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model, generator)
    optimizer = preconditioned(config, net, likelihood, num_data)
    return ChainMethod("cv_sghmc", net, likelihood, optimizer, config, total_steps)


METHOD = MethodEntry(
    CVSGHMCConfig,
    build,
    PRESETS,
    "SGHMC preconditioned by a learnt scale per weight, in cycles",
)
