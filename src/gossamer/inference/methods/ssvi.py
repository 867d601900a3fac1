"""SSVI, Sparse Subspace Variational Inference (Li et al., ICLR 2024).

A Gaussian posterior on a fixed number of weights; their set and the posterior are learnt
alternately, Algorithm 1: M optimiser steps on Eq. (3), then removal and addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.inference.gradient import (
    PAPER,
    GradientMethod,
    VariationalConfig,
    bayesian_copy,
    warmed_elbo,
)
from gossamer.inference.method import MethodEntry
from gossamer.inference.subspace import SwapRule
from gossamer.likelihoods import Likelihood
from gossamer.nn.convert import AbsentVariance


@dataclass(frozen=True, kw_only=True)
class SSVIConfig(VariationalConfig, SwapRule):
    """Settings of SSVI; those of posterior, optimiser and swaps are inherited.

    Attributes:
        sparsity: Share of weights removed, constant and exact.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        skip_step_on_swap: No optimiser step where a swap is due.
        absent_variance: Which layers give the weights off their support a variance too, learnt as a
            product of one factor per output and one per input: ``none``, ``linear``, ``all``.
    """

    sparsity: float = 0.95
    sparsity_distribution: str = "erk"
    removal: str | None = "snr_abs"
    skip_step_on_swap: bool = False
    absent_variance: AbsentVariance = "none"


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    # The authors' CIFAR runs: see docs/defaults.md.
    "paper": {
        **PAPER,
        "sparsity_distribution": "uniform_dense_first",
        "update_every": 100,
        "skip_step_on_swap": True,
    },
}


def build(
    config: SSVIConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> GradientMethod:
    """The method on a copy of ``model``; ``generator`` draws the support."""
    bnn = bayesian_copy(
        config,
        model,
        config.sparsity,
        config.sparsity_distribution,
        absent_variance=config.absent_variance,
        generator=generator,
    )
    return GradientMethod(
        "ssvi",
        bnn,
        likelihood,
        warmed_elbo(config, bnn, likelihood, num_data, total_steps),
        config,
        total_steps,
        swaps=config,
        generator=generator,
        skip_step_on_swap=config.skip_step_on_swap,
    )


METHOD = MethodEntry(
    SSVIConfig,
    build,
    PRESETS,
    "sparse subspace variational inference: Gaussian posterior on a learnt set of weights",
)
