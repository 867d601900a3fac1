"""Samplers and CV-Adam as torch optimisers: a plain training loop, ``step()`` without arguments.

``.grad`` is the gradient of the **mean** negative log-likelihood of a batch; the optimiser adds the
prior N(0, 1/δ) as ``weight_decay`` = δ/N and the noise. ``temperature`` is that of the posterior of
``num_data`` = N points: 1 samples it, 0 only descends. Every setting can be given per group; a
group with ``noisy=False`` (parameters of a likelihood, say) takes plain steps without noise and
prior.

``lr`` is Δt² for SGHMC and CVSGHMC, so that torch's ``CosineAnnealingWarmRestarts`` with
``T_0`` = C gives the paper's cyclical step, Δt² = ½Δt₀²(1 + cos(π (t mod C)/C)), exactly. It is the
plain step for SGLD, and l for CVAdam.

State tensors have the parameter's shape and dtype; there is nothing else, so that slicing them all
follows a pruned parameter. Loading a ``state_dict`` goes on bit for bit if the random numbers do:
they come from torch's default generator or from the ``generator`` passed in, whose state is the
caller's to save.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gossamer.core.langevin import Betas, sghmc_, sgld_
from gossamer.inference.constrained import CVSGHMC, CVAdam
from gossamer.inference.langevin_base import (
    VELOCITY,
    Advance,
    Langevin,
    ensure,
    step_size,
    velocity_scale,
)

__all__ = ["CVSGHMC", "SGHMC", "SGLD", "CVAdam", "Langevin"]


class SGLD(Langevin):
    """Stochastic gradient Langevin dynamics, :func:`gossamer.core.langevin.sgld`.

    Args:
        params: Parameters or groups.
        lr: Step size.
        num_data: N.
        temperature: 1 for the posterior.
        weight_decay: δ/N.
        generator: Source of the noise; torch's default one if ``None``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        num_data: int,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "num_data": num_data,
                "temperature": temperature,
                "weight_decay": weight_decay,
            },
            generator,
        )

    def _noisy(self, group: dict[str, Any]) -> Advance:
        lr, decay = step_size(group), group["weight_decay"]
        temperature = group["temperature"] / group["num_data"]

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            sgld_(
                p,
                grad,
                self._normal(p),
                lr=lr,
                temperature=temperature,
                decay=state.get("decay", decay),
            )

        return advance

    def _plain(self, group: dict[str, Any]) -> Advance:
        lr = step_size(group)

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            p.add_(grad, alpha=-lr)

        return advance


class SGHMC(Langevin):
    """Stochastic gradient Hamiltonian Monte Carlo, :func:`gossamer.core.langevin.sghmc`.

    Where a schedule moves ``lr``, v is scaled with √lr: it is a displacement, and what a larger
    step left would heat the smaller ones.

    Args:
        params: Parameters or groups.
        lr: Δt².
        num_data: N.
        temperature: 1 for the posterior.
        betas: (β₁, β₂): what is kept of the velocity, and the weight of the gradient.
        weight_decay: δ/N.
        generator: Source of the noise; torch's default one if ``None``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        num_data: int,
        temperature: float = 1.0,
        betas: Betas = (0.9, 1.0),
        weight_decay: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "num_data": num_data,
                "temperature": temperature,
                "betas": betas,
                "weight_decay": weight_decay,
            },
            generator,
        )

    def _noisy(self, group: dict[str, Any]) -> Advance:
        lr, betas, decay = step_size(group), group["betas"], group["weight_decay"]
        temperature = group["temperature"] / group["num_data"]
        scale = velocity_scale(group, lr)

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            ensure(state, p, VELOCITY)
            if scale != 1.0:
                state[VELOCITY].mul_(scale)
            sghmc_(
                p,
                state[VELOCITY],
                grad,
                self._normal(p),
                lr=lr,
                betas=betas,
                temperature=temperature,
                decay=state.get("decay", decay),
            )

        return advance
