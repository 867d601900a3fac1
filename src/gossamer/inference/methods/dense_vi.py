"""Dense variational inference: a Gaussian on every weight (Eq. 1 of li2024ssvi).

The method that SSVI is measured against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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
from gossamer.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class DenseVIConfig(VariationalConfig):
    """Settings of dense VI: those of posterior and optimiser, all inherited."""

    # Of more weights against the same rows, so that its KL weighs more: docs/defaults.md.
    NOISE_KL_WEIGHT: ClassVar[float] = 0.3


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": PAPER,
}


def build(
    config: DenseVIConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> GradientMethod:
    """The method on a copy of ``model``."""
    bnn = bayesian_copy(config, model, sparsity=0.0, generator=generator)
    elbo = warmed_elbo(config, bnn, likelihood, num_data, total_steps)
    return GradientMethod("dense_vi", bnn, likelihood, elbo, config, total_steps)


METHOD = MethodEntry(
    DenseVIConfig,
    build,
    PRESETS,
    "dense mean-field variational inference with local reparameterisation",
)
