"""MC dropout (Gal & Ghahramani, ICML 2016): dropout in training that goes on in prediction.

A draw of the masks is a draw of the weights; weight decay is the prior. Dense by default; with a
sparsity it trains on a random support that never moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.method import MethodEntry
from gossamer.inference.objective import ELBO
from gossamer.likelihoods import Likelihood
from gossamer.nn import drop_inputs, to_sparse
from gossamer.ops import AUTO
from gossamer.settings import Within


@dataclass(frozen=True, kw_only=True)
class MCDropoutConfig(OptimizerConfig):
    """Settings of MC dropout; the optimiser's are inherited.

    ``weight_decay`` is the prior: l²/((1 - rate) N) for weights with the prior N(0, 1/l²).

    Attributes:
        rate: Probability that an input unit of a layer is dropped.
        layers: Before which layers: ``hidden`` (all but the first) or ``all``.
        sparsity: Share of weights removed before training, for a static sparse network; 0 is dense.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    rate: Annotated[float, Within(0.0, 1.0)] = 0.1
    layers: Literal["hidden", "all"] = "hidden"
    sparsity: float = 0.0
    sparsity_distribution: str = "erk"
    backend: str = AUTO


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "rate": 0.5,
        "optimizer": "sgd",
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "decay_biases": True,
    },
}


def build(
    config: MCDropoutConfig,
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
    drop_inputs(net, config.rate, config.layers)
    elbo = ELBO(net, num_data, 0.0)  # its KL is the weight decay
    return GradientMethod("mc_dropout", net, likelihood, elbo, config, total_steps)


METHOD = MethodEntry(
    MCDropoutConfig,
    build,
    PRESETS,
    "dropout in training and in prediction, dense by default",
)
