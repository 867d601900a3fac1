"""Plain training of a deterministic network: the baseline without a posterior.

With a sparsity it trains on a random support that never moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.method import MethodEntry
from gossamer.inference.objective import ELBO
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse
from gossamer.ops import AUTO


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    """Settings of plain training; the optimiser's are inherited.

    Attributes:
        sparsity: Share of weights removed before training, for a static sparse network; 0 is dense.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    sparsity: float = 0.0
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
    },
}


def build(
    config: SGDConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> GradientMethod:
    """The method on a copy of ``model``."""
    net = to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
        generator=generator,
    )
    return GradientMethod("sgd", net, likelihood, ELBO(net, num_data, 0.0), config, total_steps)


METHOD = MethodEntry(
    SGDConfig,
    build,
    PRESETS,
    "plain deterministic training, dense by default",
)
