"""Stochastic gradient Langevin dynamics as a torch optimiser."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gossamer.core.langevin import sgld_
from gossamer.optim.langevin import Advance, Langevin, step_size


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
