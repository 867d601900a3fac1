"""RigL (Evci et al., ICML 2020): a deterministic network on a support of fixed size.

The smallest weights leave, the positions with the largest gradients enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.method import MethodEntry
from gossamer.inference.objective import ELBO
from gossamer.inference.subspace import SwapRule, SwapSettings, shared_settings
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse
from gossamer.ops import AUTO


@dataclass(frozen=True, kw_only=True)
class RigLConfig(OptimizerConfig, SwapSettings):
    """Settings of RigL; those of optimiser and swaps are inherited. ``addition="random"`` is SET.

    Attributes:
        sparsity: Share of weights removed, constant and exact.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    sparsity: float = 0.95
    sparsity_distribution: str = "erk"
    backend: str = AUTO


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "decay_biases": True,
        "update_every": 100,
    },
}


def build(
    config: RigLConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> GradientMethod:
    """The method on a copy of ``model``; ``generator`` draws the support."""
    net = to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
        generator=generator,
    )
    return GradientMethod(
        "rigl",
        net,
        likelihood,
        ELBO(net, num_data, 0.0),
        config,
        total_steps,
        swaps=SwapRule(removal="mean_abs", **shared_settings(config)),
        generator=generator,
    )


METHOD = MethodEntry(
    RigLConfig,
    build,
    PRESETS,
    "sparse deterministic training with swaps",
)
