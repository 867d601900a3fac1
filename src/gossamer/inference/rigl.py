"""RigL (Evci et al., ICML 2020).

A deterministic network on a support of fixed size; the smallest weights leave, the largest
gradients
enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.objective import ELBO
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse
from gossamer.ops import AUTO


@dataclass(frozen=True, kw_only=True)
class RigLConfig(OptimizerConfig):
    """Settings of RigL; the optimiser's are inherited.

    Attributes:
        sparsity: Share of weights removed, constant and exact.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        addition: Addition criterion; ``random`` makes it SET.
        swap_fraction: Share of a layer's weights swapped at the start.
        end_fraction: Share of the run after which the support is fixed.
        update_every: Optimiser steps between swaps; 100, fewer in short runs, if ``None``.
        backend: Engine of the layers: ``auto`` chooses per layer.
    """

    sparsity: float = 0.95
    sparsity_distribution: str = "erk"
    addition: str = "grad"
    swap_fraction: float = 0.3
    end_fraction: float = 0.75
    update_every: int | None = None
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
    config: RigLConfig, model: nn.Module, *, num_data: int, total_steps: int, likelihood: Likelihood
) -> GradientMethod:
    """The method on a copy of ``model``; the random support comes from torch's generator."""
    net = to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
    )
    subspace = {
        "removal": "mean_abs",
        "addition": config.addition,
        "swap_fraction": config.swap_fraction,
        "end_fraction": config.end_fraction,
        "update_every": config.update_every,
    }
    return GradientMethod(
        "rigl",
        net,
        likelihood,
        ELBO(net, num_data, 0.0),
        config,
        total_steps,
        subspace=subspace,
        max_samples=1,
    )
