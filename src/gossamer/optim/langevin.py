"""What the samplers share: checks before anything moves, then one loop."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, sqrt
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from gossamer.core.langevin import check_betas, momentum_
from gossamer.errors import InvalidValue, NonFinite

Advance = Callable[[Tensor, Tensor, dict[str, Any]], None]
"""The step of one parameter, from its gradient and state."""

VELOCITY = "momentum_buffer"
"""State that holds v: torch's own name, which a swap knows for a first moment."""

_NOT_NEGATIVE = ("lr", "temperature", "noise_scale", "weight_decay", "tau_lr")


class Langevin(Optimizer):
    """What the samplers share: the closure, the checks, the loop, the prior.

    Args:
        params: Parameters or groups.
        defaults: Settings of groups that do not have their own.
        generator: Source of the noise; torch's default one if ``None``. A copied or unpickled
            optimiser has the default one.
    """

    generator: torch.Generator | None = None

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], generator: torch.Generator | None
    ) -> None:
        self.generator = generator
        super().__init__(params, {**defaults, "noisy": True})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Torch's, and the settings checked."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except InvalidValue:
            self.param_groups.pop()
            raise

    def set_frozen(self, parameter: Tensor, frozen: Tensor | None) -> None:
        """Stop single weights of a parameter: steps leave them as they are.

        Args:
            parameter: One of this optimiser's.
            frozen: bool, the parameter's shape; kept in the state as ``moving``, 1 where a weight
                still moves. ``None`` lets all of them move again.
        """
        self._group_of(parameter)
        if frozen is None:
            self.state[parameter].pop("moving", None)
            return
        if frozen.shape != parameter.shape or frozen.dtype != torch.bool:
            raise InvalidValue(
                "frozen",
                f"{tuple(frozen.shape)} {frozen.dtype}",
                f"must be bool of the parameter's shape {tuple(parameter.shape)}",
            )
        self.state[parameter]["moving"] = (~frozen).to(parameter)

    def set_decay(self, parameter: Tensor, decay: Tensor | None) -> None:
        """Give a parameter a prior precision per weight.

        Args:
            parameter: One of this optimiser's.
            decay: δ/N of each weight, the parameter's shape, used in place of the group's
                ``weight_decay``; copied into the state as ``decay``. ``None`` goes back to the
                group's.
        """
        self._group_of(parameter)
        if decay is None:
            self.state[parameter].pop("decay", None)
            return
        if decay.shape != parameter.shape:
            raise InvalidValue(
                "decay",
                tuple(decay.shape),
                f"must have the parameter's shape {tuple(parameter.shape)}",
            )
        if not bool(((decay >= 0.0) & torch.isfinite(decay)).all()):
            raise InvalidValue("decay", None, "must be finite and not negative everywhere")
        self.state[parameter]["decay"] = decay.detach().to(parameter, copy=True)

    def fresh_state(self, parameter: Tensor, name: str) -> float | None:
        """What the state of a weight is that was not there before; ``None`` if it is no own name.

        It moves, has the prior of its group, τ = ½ as at the start of a run, and rests at 0.
        """
        if name == "decay":
            return float(self._group_of(parameter)["weight_decay"])
        return {"moving": 1.0, "rho": 0.0, "noise": 0.0, "mean": 0.0, "cycle_end": 0.0}.get(name)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step from the ``.grad`` of all parameters; those without one stay as they are.

        Args:
            closure: Computes the gradients anew and returns the loss.

        Raises:
            NonFinite: A gradient is not finite; nothing has moved then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._require_finite()
        for group in self.param_groups:
            advance = self._noisy(group) if group["noisy"] else self._plain(group)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                moving = state.get("moving")
                before = None if moving is None else p.clone()
                advance(p, p.grad, state)
                if moving is not None and before is not None:
                    p.copy_(torch.where(moving > 0.0, p, before))
        return loss

    def _noisy(self, group: dict[str, Any]) -> Advance:
        """The step of a parameter, with what the group fixes worked out once."""
        raise NotImplementedError

    def _plain(self, group: dict[str, Any]) -> Advance:
        """The step of a parameter without noise and prior."""
        lr, betas = step_size(group), group["betas"]

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            ensure(state, p, VELOCITY)
            momentum_(p, state[VELOCITY], grad, lr=lr, betas=betas)

        return advance

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self.generator)

    def _group_of(self, parameter: Tensor) -> dict[str, Any]:
        for group in self.param_groups:
            if any(parameter is p for p in group["params"]):
                return group
        raise InvalidValue("parameter", tuple(parameter.shape), "does not belong to this optimiser")

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in _NOT_NEGATIVE:
            value = group.get(name)
            if value is not None and not (value >= 0.0 and isfinite(value)):
                raise InvalidValue(name, value, "must be finite and not negative")
        if not group["num_data"] >= 1:
            raise InvalidValue(
                "num_data", group["num_data"], "must be at least 1", "give the size of the data set"
            )
        if "betas" in group:
            check_betas(group["betas"])

    def _require_finite(self) -> None:
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        for grad in grads:
            if grad.layout != torch.strided:
                raise InvalidValue(
                    "gradient", str(grad.layout), "must be dense", "use sparse=False in embeddings"
                )
        # One number for all: a sum is finite only if every term is. Which gradient it was, or that
        # finite terms overflowed, is only asked in the rare other case.
        sums = [grad.sum() for grad in grads]
        if not sums or isfinite(torch.stack([s.to(sums[0].device) for s in sums]).sum()):
            return
        for number, group in enumerate(self.param_groups):
            for p in group["params"]:
                wrong = 0 if p.grad is None else int((~torch.isfinite(p.grad)).sum())
                if wrong:
                    raise NonFinite(
                        f"gradient of group {group.get('name', number)!r}",
                        f"{wrong} of {p.numel()} entries NaN or infinite",
                        "must be finite",
                        "lower lr, or look at the loss; nothing has moved",
                    )


def step_size(group: dict[str, Any]) -> float:
    """The group's ``lr`` as a schedule left it."""
    lr = float(group["lr"])
    if not lr >= 0.0:
        raise InvalidValue("lr", lr, "must not be negative", "look at the schedule")
    return lr


def velocity_scale(group: dict[str, Any], lr: float) -> float:
    """What v is to be multiplied by where a schedule moved Δt² = ``lr`` since the last step.

    v is a displacement, Δt times a velocity: what is left of a larger Δt would be too hot for a
    smaller one, and the end of a cycle hotter than its temperature.
    """
    before, group["last_lr"] = group.get("last_lr"), lr
    return sqrt(lr / before) if before else 1.0


def ensure(state: dict[str, Any], p: Tensor, *names: str) -> None:
    """Zeros of the parameter's shape under every name that the state lacks."""
    for name in names:
        if name not in state:
            state[name] = torch.zeros_like(p)
