"""SSVI, Sparse Subspace Variational Inference (Li et al., ICLR 2024).

A Gaussian posterior on a fixed number of weights; their set and the posterior are learnt
alternately, Algorithm 1: M optimiser steps on Eq. (3), then removal and addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from gossamer.inference.gradient import GradientMethod
from gossamer.inference.variational import (
    PAPER,
    VariationalConfig,
    bayesian_copy,
    warmed_elbo,
)
from gossamer.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class SSVIConfig(VariationalConfig):
    """Settings of SSVI; those of posterior and optimiser are inherited.

    Attributes:
        sparsity: Share of weights removed, constant and exact.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        removal: Removal criterion (Sec. 3.3.1).
        addition: Addition criterion (Sec. 3.3.2).
        num_draws: K of the multi-step addition criterion.
        sigma_init: σ of fresh weights (Sec. 3.2).
        swap_fraction: r_0.
        end_fraction: Share of the run after which the support is fixed.
        update_every: M, optimiser steps between swaps; 100, fewer in short runs, if ``None``.
        skip_step_on_swap: No optimiser step where a swap is due.
    """

    sparsity: float = 0.95
    sparsity_distribution: str = "erk"
    removal: str = "snr_abs"
    addition: str = "grad"
    num_draws: int = 4
    sigma_init: str = "mean"
    swap_fraction: float = 0.3
    end_fraction: float = 0.75
    update_every: int | None = None
    skip_step_on_swap: bool = False


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
    config: SSVIConfig, model: nn.Module, *, num_data: int, total_steps: int, likelihood: Likelihood
) -> GradientMethod:
    """The method on a copy of ``model``; the random support comes from torch's generator."""
    bnn = bayesian_copy(config, model, config.sparsity, config.sparsity_distribution)
    subspace = {
        "removal": config.removal,
        "addition": config.addition,
        "num_draws": config.num_draws,
        "sigma_init": config.sigma_init,
        "swap_fraction": config.swap_fraction,
        "end_fraction": config.end_fraction,
        "update_every": config.update_every,
    }
    return GradientMethod(
        "ssvi",
        bnn,
        likelihood,
        warmed_elbo(config, bnn, likelihood, num_data, total_steps),
        config,
        total_steps,
        subspace=subspace,
        skip_step_on_swap=config.skip_step_on_swap,
    )
