"""Algorithm 1 of cvadam2023 as a torch optimiser: constrained variational Adam."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gossamer.core.cv import adapt_, cv_adam_draw_, cv_adam_mean_
from gossamer.core.langevin import Betas
from gossamer.errors import InvalidValue
from gossamer.optim.langevin import Advance, Langevin, ensure, step_size


class CVAdam(Langevin):
    """Algorithm 1, constrained variational Adam, :func:`gossamer.core.cv.cv_adam`.

    The parameters hold the current draw w, so that a plain loop computes the gradient there; μ, m,
    ρ = logit τ and ε are state. ``step()`` moves μ and draws the next w. The first gradient is
    taken at the given parameters, which are the first μ. The posterior is N(μ, (ατ)²) with τ < 1:
    ``alpha`` is its largest standard deviation, a group entry that may be annealed.

    Args:
        params: Parameters or groups.
        lr: l, the step on μ.
        num_data: N.
        alpha: α.
        temperature: 1 for the posterior; the variances are proportional to it.
        betas: (β₁, β₂): what is kept of the momentum, and the weight of the gradient.
        tau_lr: η, the step on ρ; 0 freezes τ.
        weight_decay: δ/N.
        generator: Source of the noise; torch's default one if ``None``.
    """

    _at_means = False

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        num_data: int,
        alpha: float,
        temperature: float = 1.0,
        betas: Betas = (0.9, 0.1),
        tau_lr: float = 0.1,
        weight_decay: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "num_data": num_data,
                "alpha": alpha,
                "temperature": temperature,
                "betas": betas,
                "tau_lr": tau_lr,
                "weight_decay": weight_decay,
            },
            generator,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if not (group["alpha"] > 0.0 and isfinite(group["alpha"])):
            raise InvalidValue("alpha", group["alpha"], "must be finite and > 0")

    @contextmanager
    def means(self) -> Iterator[None]:
        """Parameters are μ inside and the current draw again afterwards, also after an exception.

        Raises:
            InvalidValue: ``step()`` is called inside.
        """
        held = [
            (p, p.detach().clone(), self.state[p]["mean"])
            for group in self.param_groups
            for p in group["params"]
            if "mean" in self.state.get(p, {})
        ]
        outer, self._at_means = self._at_means, True
        try:
            with torch.no_grad():
                for p, _, mean in held:
                    p.copy_(mean)
            yield
        finally:
            self._at_means = outer
            with torch.no_grad():
                for p, draw, _ in held:
                    p.copy_(draw)

    def _noisy(self, group: dict[str, Any]) -> Advance:
        if self._at_means:
            raise InvalidValue("step", None, "needs the gradient at a draw", "leave means() first")
        lr, betas, decay = step_size(group), group["betas"], group["weight_decay"]
        tau_lr, alpha = group["tau_lr"], group["alpha"]
        temperature = group["temperature"] / group["num_data"]

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            if "mean" not in state:
                ensure(state, p, "exp_avg", "rho", "noise")
                state["mean"] = p.detach().clone()
            m, noise, own = state["exp_avg"], state["noise"], state.get("decay", decay)
            cv_adam_mean_(m, p, grad, betas=betas, decay=own)
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
            cv_adam_draw_(p, state["mean"], m, tau, noise, lr=lr, alpha=alpha)

        return advance
