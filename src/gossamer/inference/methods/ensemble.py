"""The deep ensemble (Lakshminarayanan et al., NeurIPS 2017): M plain networks, averaged.

They differ by their initial weights; their disagreement is the uncertainty about the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.method import Method, MethodEntry
from gossamer.inference.objective import ELBO
from gossamer.inference.sharing import Membership, joint
from gossamer.inference.starts import Networks
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse
from gossamer.ops import AUTO
from gossamer.settings import Within


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig(OptimizerConfig):
    """Settings of a deep ensemble; the optimiser's are inherited.

    Attributes:
        members: M, the number of networks.
        member_start: Initial weights where the network is given as a module: ``own`` draws anew
            those of all but the first, ``same`` takes the given ones for all.
        sparsity: Share of one network's weights removed, whose rest all members share on random
            supports that never move; 0: M dense networks.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    members: Annotated[int, Within(1)] = 5
    member_start: Literal["own", "same"] = "own"
    sparsity: float = 0.0
    sparsity_distribution: str = "erk"
    backend: str = AUTO


PRESETS: dict[str, dict[str, Any]] = {"default": {}}


def build(
    config: EnsembleConfig,
    model: Networks,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> Method:
    """The method on copies of ``model``, or on networks that it makes."""
    return joint(
        "ensemble",
        MethodEntry(EnsembleConfig, _member, PRESETS, ""),
        config,
        model,
        Membership(members=config.members, member_start=config.member_start),
        num_data=num_data,
        total_steps=total_steps,
        likelihood=likelihood,
        generator=generator,
    )


def _member(
    config: EnsembleConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> GradientMethod:
    """One network."""
    net = to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
        generator=generator,
    )
    return GradientMethod(
        "ensemble", net, likelihood, ELBO(net, num_data, 0.0), config, total_steps
    )


METHOD = MethodEntry(
    EnsembleConfig,
    build,
    PRESETS,
    "deep ensemble: several plain networks, averaged",
    takes_function=True,
)
