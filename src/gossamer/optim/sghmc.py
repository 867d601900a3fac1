"""Stochastic gradient Hamiltonian Monte Carlo as a torch optimiser."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gossamer.core.langevin import Betas, sghmc_
from gossamer.optim.langevin import (
    VELOCITY,
    Advance,
    Langevin,
    ensure,
    step_size,
    velocity_scale,
)


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
