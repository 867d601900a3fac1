"""Three methods written here alone, without a line of ``src``: what a new method may do.

``gated``: a stochastic gate per hidden unit, with a KL, noise and units that leave for good.
``shifting``: a posterior whose layers give weights away to each other, the total exact.
``l1_chain``: a chain under a Laplace prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.core.priors import Laplace
from gossamer.core.support import Support
from gossamer.core.swap import LayerScores
from gossamer.inference import Energy, MethodEntry, SwapRule
from gossamer.inference.chain import ChainConfig, ChainMethod
from gossamer.inference.gradient import (
    GradientMethod,
    OptimizerConfig,
    VariationalConfig,
    bayesian_copy,
    warmed_elbo,
)
from gossamer.inference.sampler import sampler_groups, sparse_copy
from gossamer.nn import SparseLayer, StochasticModule, move, move_parameter, weights_of
from gossamer.ops import normal_like
from gossamer.optim import SGHMC

# --- a gate per unit -----------------------------------------------------------------------------


class Gate(StochasticModule):
    """z ⊙ x with z ~ N(mean, std²) per unit, prior N(1, 1); dropped units are 0."""

    resizes = True

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units
        self.mean = nn.Parameter(torch.ones(units))
        self.log_std = nn.Parameter(torch.full((units,), -2.0))
        self.register_buffer("alive", torch.arange(units))

    def kl_divergence(self) -> Tensor:
        q = torch.distributions.Normal(self.mean, self.log_std.exp())
        return torch.distributions.kl_divergence(q, torch.distributions.Normal(1.0, 1.0)).sum()

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, self.alive]
        z = self.mean.expand_as(seen) if self.noise() == "local" else self.mean
        if self.noise() is not None:
            z = z + self.log_std.exp() * normal_like(self.seed(), z)
        return torch.zeros_like(x).index_copy(1, self.alive, seen * z)

    def keep(self, kept: Tensor, optimizer: torch.optim.Optimizer | None = None) -> None:
        for parameter in (self.mean, self.log_std):
            move_parameter(parameter, kept, optimizer=optimizer)
        self.alive = self.alive[kept]

    def _load_from_state_dict(self, state, prefix, *args) -> None:
        count = state[prefix + "mean"].numel()
        if count != self.mean.numel():
            self.alive = torch.arange(count)
            for parameter in (self.mean, self.log_std):
                parameter.data = torch.zeros(count)
        super()._load_from_state_dict(state, prefix, *args)


@dataclass(frozen=True, kw_only=True)
class GatedConfig(OptimizerConfig):
    """Settings of the gated method.

    Attributes:
        sparsity: Share of weights removed before training.
        prune_threshold: |mean|/std of a gate below which its unit leaves.
    """

    sparsity: float = 0.0
    prune_threshold: float = 6.0


class Gated(GradientMethod):
    config: GatedConfig

    def step(self, batch):
        info = super().step(batch)
        if self.steps % 3 == 0:
            self._drop_units()
        return info

    @torch.no_grad()
    def _drop_units(self) -> None:
        before, gate, after = gated_parts(self.model)
        ratio = gate.mean.abs() / gate.log_std.exp()
        kept = (ratio >= self.config.prune_threshold).nonzero().flatten()
        if kept.numel() in (0, gate.mean.numel()):
            return
        gate.keep(kept, self.optimizer)
        for layer, axis in ((before, 0), (after, 1)):
            (weight,) = (w for w in weights_of(self.model) if w.layer is layer)
            grid = torch.arange(layer.layout.numel).view(layer.layout.shape)
            inside = grid.index_select(axis, gate.alive).flatten().sort().values
            positions = layer.support.positions()
            stays = torch.isin(positions, inside)
            if not bool(stays.any()):
                continue  # a layer without weights would cut the network in two
            support = Support.from_positions(positions[stays], layer.layout.shape)
            move(weight, support, stays.nonzero().flatten(), optimizer=self.optimizer)


def gated_parts(model: nn.Module) -> tuple[SparseLayer, Gate, SparseLayer]:
    layers = [m for m in model.modules() if isinstance(m, SparseLayer)]
    (gate,) = (m for m in model.modules() if isinstance(m, Gate))
    return layers[0], gate, layers[-1]


def build_gated(config, model, *, num_data, total_steps, likelihood, generator=None):
    net = gs.to_sparse(model, config.sparsity, generator=generator)
    assert isinstance(net, nn.Sequential)
    net.insert(1, Gate(net[0].layout.fan_out))
    elbo = gs.ELBO(net, num_data, 0.1)
    return Gated("gated", net, likelihood, elbo, config, total_steps)


# --- a budget that moves -------------------------------------------------------------------------


class ByGradient:
    """Layers whose candidates have larger gradients get more of the weights that left."""

    reach = 2

    def entering(self, layers: list[LayerScores]) -> list[int]:
        left = sum(layer.leaving for layer in layers)
        found = [max(0, 1 - (layer.support.nnz - layer.leaving)) for layer in layers]
        while sum(found) < left:
            gains = [
                float(layer.scores.sum()) / (1 + n) if n < layer.most_entering else -1.0
                for layer, n in zip(layers, found, strict=True)
            ]
            found[gains.index(max(gains))] += 1
        return found


@dataclass(frozen=True, kw_only=True)
class ShiftingConfig(VariationalConfig, SwapRule):
    """Settings of the method whose budget moves.

    Attributes:
        sparsity: Share of weights removed, constant and exact in the network.
    """

    sparsity: float = 0.9


def build_shifting(config, model, *, num_data, total_steps, likelihood, generator=None):
    bnn = bayesian_copy(config, model, config.sparsity, generator=generator)
    elbo = warmed_elbo(config, bnn, likelihood, num_data, total_steps)
    return GradientMethod(
        "shifting",
        bnn,
        likelihood,
        elbo,
        config,
        total_steps,
        swaps=config,
        budget=ByGradient(),
        generator=generator,
    )


# --- another prior on a chain --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class L1ChainConfig(ChainConfig):
    """Settings of the chain under a Laplace prior.

    Attributes:
        scale: Mean of |weight| under the prior.
    """

    scale: float = 1.0
    weight_decay: float | None = 0.0


def build_l1_chain(config, model, *, num_data, total_steps, likelihood, generator=None):
    net = sparse_copy(config, model, generator)
    prior = Laplace(config.scale)

    def log_prior(network: nn.Module) -> Tensor:
        return torch.stack([prior.log_density(w.values).sum() for w in weights_of(network)]).sum()

    optimizer = SGHMC(
        sampler_groups(config, net, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
    )
    energy = Energy(net, num_data, log_prior)
    return ChainMethod("l1_chain", net, likelihood, optimizer, config, total_steps, energy=energy)


THROWAWAY: dict[str, MethodEntry] = {
    "gated": MethodEntry(GatedConfig, build_gated, {"default": {}}, "a gate per unit"),
    "shifting": MethodEntry(ShiftingConfig, build_shifting, {"default": {}}, "a moving budget"),
    "l1_chain": MethodEntry(L1ChainConfig, build_l1_chain, {"default": {}}, "a Laplace prior"),
}
MOVES_BUDGET = {"shifting"}
