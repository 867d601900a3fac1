"""Natural-gradient variational inference on a learnt support: SSVI's support, CV-Adam's posterior.

A Gaussian posterior on a fixed number of weights that lives in the optimiser: one draw of θ and one
sparse product per pass, σ from a running estimate of the curvature, swaps by |μ|/σ.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.inference.gradient import DescentConfig, GradientMethod, base_lr
from gossamer.inference.method import MethodEntry
from gossamer.inference.objective import ELBO
from gossamer.inference.parameters import parameter_groups
from gossamer.inference.state import not_own_state
from gossamer.inference.subspace import SwapRule, SwapSettings, shared_settings
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse, weights_of, with_spread
from gossamer.ops import AUTO
from gossamer.optim import NaturalGradient


@dataclass(frozen=True, kw_only=True)
class NGVIConfig(DescentConfig, SwapSettings):
    """Settings of natural-gradient VI; those of steps and swaps are inherited.

    ``weight_decay`` is δ/N, the prior's precision over the number of examples: it pulls the means
    and bounds σ.

    Attributes:
        update: How means move: ``adam``, or ``ivon``, the natural gradient.
        natural_lr: Learning rate of the weights under ``ivon``; biases keep ``lr``.
        draws: Draws of θ per step, each a pass over the batch.
        betas: (β₁, β₂): what is kept of the averages of gradients and of the curvature.
        initial_curvature: h₀; the larger, the less noise at the start.
        temperature: Of the posterior.
        max_step: Under ``ivon``, how far a weight moves at most in a step, in σ; ``None``: any far.
        predicts: With draws of the ``posterior``, or in one pass with its ``mean``.
        removal: ``snr_abs`` or another key of ``gossamer.core.removal.REMOVAL``.
        sparsity: Share of weights removed, constant and exact.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    update: Literal["adam", "ivon"] = "adam"
    natural_lr: float = 1.0
    draws: int = 1
    betas: tuple[float, float] = (0.9, 0.998)
    initial_curvature: float = 0.5
    temperature: float = 1.0
    max_step: float | None = 1.0
    predicts: Literal["posterior", "mean"] = "posterior"
    removal: str = "snr_abs"
    sparsity: float = 0.95
    sparsity_distribution: str = "erk"
    backend: str = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws < 1:
            raise InvalidValue("draws", self.draws, "must be at least 1")
        if not self.natural_lr >= 0.0:
            raise InvalidValue("natural_lr", self.natural_lr, "must not be negative")
        if not self.weight_decay > 0.0:
            raise InvalidValue("weight_decay", self.weight_decay, "must be positive: it is δ/N")


PRESETS: dict[str, dict[str, Any]] = {"default": {}}


class NGVI(GradientMethod):
    """See the module."""

    optimizer: NaturalGradient
    config: NGVIConfig

    def _contexts(self) -> Sequence[AbstractContextManager[None]]:
        return [self.optimizer.sampled() for _ in range(self.passes)]

    def _as_predicted(self, network: nn.Module) -> nn.Module:
        """The network with the present σ around its weights, or without."""
        if self.config.predicts == "mean":
            return network
        prior_std = (self.elbo.num_data * self.config.weight_decay) ** -0.5
        return with_spread(network, self._std_of, prior_std)

    def _std_of(self, parameter: Tensor) -> Tensor | None:
        """The present σ, also around a mean over the last steps."""
        if self.average is not None and self.predicting is not self.model:
            parameter = self.average.original_of(parameter)
        return self.optimizer.std_of(parameter)

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``; with the generator of the noise."""
        assert self.optimizer.generator is not None
        return {**super().state_dict(), "noise": self.optimizer.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if state.get("method") == self.name and "noise" not in state:
            raise not_own_state(self.name)
        super().load_state_dict(state)
        assert self.optimizer.generator is not None
        self.optimizer.generator.set_state(state["noise"].cpu())


def build(
    config: NGVIConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> NGVI:
    """The method on a copy of ``model``; ``generator`` draws the support and seeds the noise."""
    net = to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
        generator=generator,
    )
    # Of its own, and part of the state: processes that train together must stand at one draw.
    noise = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
    return NGVI(
        "ngvi",
        net,
        likelihood,
        ELBO(net, num_data, 0.0),
        config,
        total_steps,
        optimizer=_optimizer(config, net, likelihood, num_data, noise),
        passes=config.draws,
        swaps=SwapRule(removal=config.removal, **shared_settings(config)),
        generator=generator,
    )


def _optimizer(
    config: NGVIConfig,
    model: nn.Module,
    likelihood: Likelihood,
    num_data: int,
    noise: torch.Generator,
) -> NaturalGradient:
    """Weights of sparse layers have a posterior; biases, normalisation and the rest have none."""
    lr = base_lr(config, model)
    sparse = {id(weight.values) for weight in weights_of(model)}
    groups: list[dict[str, Any]] = []
    for group in parameter_groups(model, lr=lr, weight_decay=config.weight_decay):
        noisy = [p for p in group["params"] if id(p) in sparse]
        plain = [p for p in group["params"] if id(p) not in sparse]
        if noisy:
            rate = lr if config.update == "adam" else config.natural_lr
            groups.append({**group, "params": noisy, "lr": rate})
        if plain:
            decay = config.weight_decay if group["weight_decay"] or config.decay_biases else 0.0
            groups.append({**group, "params": plain, "noisy": False, "weight_decay": decay})
    extra = list(likelihood.parameters())
    if extra:
        groups.append(
            {"name": "likelihood", "params": extra, "lr": lr, "noisy": False, "weight_decay": 0.0}
        )
    return NaturalGradient(
        groups,
        lr,
        num_data=num_data,
        update=config.update,
        betas=config.betas,
        initial_curvature=config.initial_curvature,
        temperature=config.temperature,
        max_step=config.max_step,
        generator=noise,
    )


METHOD = MethodEntry(
    NGVIConfig,
    build,
    PRESETS,
    "natural-gradient variational inference on a learnt support: the posterior is the optimiser's",
)
