"""Algorithm 2 of cvadam2023 as a torch optimiser: SGHMC preconditioned by a learnt τ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gossamer.core.cv import adapt_, cv_sghmc_move_
from gossamer.core.langevin import Betas, spread_at_temperature, spread_of_noise_scale
from gossamer.errors import InvalidValue
from gossamer.optim.langevin import (
    VELOCITY,
    Advance,
    Langevin,
    ensure,
    step_size,
    velocity_scale,
)

_START_STD = 0.001
"""Of the velocity in Algorithm 2."""


class CVSGHMC(Langevin):
    """Algorithm 2, preconditioned SGHMC, :func:`gossamer.core.cv.cv_sghmc`.

    Exactly one of ``temperature`` and ``noise_scale`` is given.

    With ``temperature`` the noise is divided by √τ, so that every weight is sampled at that
    temperature whatever its τ, at every step size of a schedule, with which v is scaled (see
    ``SGHMC``). The law is exact for a frozen τ; set the groups' ``tau_lr`` to 0 once τ has settled
    to have it so.

    With ``noise_scale`` the form is the printed one, as the authors run it (k = 1/√N, β = (0.1, 1),
    η = 0.1), unless ``exact_noise=True``. Its temperature is
    :func:`gossamer.core.langevin.sampled_temperature`, differs from weight to weight with τ (no k
    gives the posterior where τ is unequal) and falls with Δt. Hence there is no printed form at a
    ``temperature``; for one common frozen τ take k from :func:`gossamer.core.langevin.noise_scale`.

    Args:
        params: Parameters or groups.
        lr: Δt².
        num_data: N.
        temperature: 1 for the posterior.
        noise_scale: k.
        betas: (β₁, β₂): what is kept of the velocity, and the weight of the gradient.
        tau_lr: η, the step on ρ = logit τ; 0 freezes τ.
        weight_decay: δ/N.
        exact_noise: Divide the noise by √τ; ``None`` as said above.
        generator: Source of the noise; torch's default one if ``None``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        num_data: int,
        temperature: float | None = None,
        noise_scale: float | None = None,
        betas: Betas = (0.1, 1.0),
        tau_lr: float = 0.1,
        weight_decay: float = 0.0,
        exact_noise: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "num_data": num_data,
                "temperature": temperature,
                "noise_scale": noise_scale,
                "betas": betas,
                "tau_lr": tau_lr,
                "weight_decay": weight_decay,
                "exact_noise": exact_noise,
            },
            generator,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        by_temperature = group["temperature"] is not None
        if by_temperature == (group["noise_scale"] is not None):
            raise InvalidValue(
                "temperature, noise_scale",
                (group["temperature"], group["noise_scale"]),
                "exactly one must be given",
                "temperature=1.0 samples the posterior",
            )
        if by_temperature and group["exact_noise"] is False:
            raise InvalidValue(
                "exact_noise",
                False,
                "the printed form has no single temperature",
                "give noise_scale instead of temperature",
            )
        if group["exact_noise"] is None:
            group["exact_noise"] = by_temperature

    def _noisy(self, group: dict[str, Any]) -> Advance:
        lr, betas, decay = step_size(group), group["betas"], group["weight_decay"]
        tau_lr, exact_noise = group["tau_lr"], group["exact_noise"]
        if group["temperature"] is None:
            scale = 1.0  # as printed, hot at the end of a cycle
            temperature = 1.0 / group["num_data"]  # of the step on ρ alone: the paper's 1/N
            alpha = spread_of_noise_scale(group["noise_scale"], lr)
        else:
            scale = velocity_scale(group, lr)
            temperature = group["temperature"] / group["num_data"]
            alpha = spread_at_temperature(temperature, lr, betas)

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if "rho" not in state:
                ensure(state, p, "rho", "noise")
                state[VELOCITY] = self._normal(p).mul_(_START_STD)
            v, noise, own = state[VELOCITY], state["noise"], state.get("decay", decay)
            if scale != 1.0:
                v.mul_(scale)
            tau = adapt_(
                state["rho"],
                noise,
                grad,
                alpha=alpha,
                temperature=temperature,
                tau_lr=tau_lr,
                decay=own,
            )
            noise.normal_(generator=self.generator)
            cv_sghmc_move_(
                p,
                v,
                tau,
                grad,
                noise,
                lr=lr,
                betas=betas,
                alpha=alpha,
                decay=own,
                exact_noise=exact_noise,
            )

        return advance
