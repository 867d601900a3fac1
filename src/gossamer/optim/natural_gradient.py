"""Natural-gradient variational inference as a torch optimiser: the posterior is its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gossamer.core.natural import Rates, posterior_std
from gossamer.errors import InvalidValue, UnknownName
from gossamer.ops import natural
from gossamer.optim.langevin import Advance, Langevin, ensure, step_size

MeanUpdate = Literal["adam", "ivon"]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A parameter at a draw.

    Attributes:
        parameter: It, holding μ + σε inside the context.
        mean: μ.
        eps: ε.
        grad: The gradient that earlier draws of the same step left in it.
        before: That gradient as it was.
    """

    parameter: Tensor
    mean: Tensor
    eps: Tensor
    grad: Tensor | None
    before: Tensor | None


@dataclass(frozen=True, eq=False)
class _Pending:
    """The noise behind the gradient of a parameter that has not been stepped yet.

    One draw: ``eps``, and ε⊙grad is worked out at the step, from the gradient as clipping and loss
    scaling left it. Several: ``product`` is the sum of ε⊙(what each draw added to the gradient),
    ``grad`` the gradient that it belongs to.
    """

    eps: Tensor
    product: Tensor | None = None
    grad: Tensor | None = None

    def product_of(self, grad: Tensor) -> Tensor:
        """ε⊙grad for the gradient of the step, as a tensor of its own."""
        several = self.of_several(grad)
        return self.eps * grad if several is None else several

    def of_several(self, grad: Tensor) -> Tensor | None:
        """The same after several draws; ``None`` after one, where ``eps`` says it all."""
        if self.product is None or self.grad is None:
            return None
        # Between the passes and the step gradients may be scaled as a whole, by clipping or a
        # scaler: the sums of ε⊙grad follow. What else happened to them, the sums do not know.
        ours, theirs = self.grad.flatten().double(), grad.flatten().double()
        size = torch.dot(ours, ours)
        scale = torch.dot(theirs, ours) / size if size > 0.0 else size
        off = torch.linalg.vector_norm(theirs - scale * ours)
        rounding = sqrt(torch.finfo(grad.dtype).eps)  # far above what it turns a gradient by
        if off > rounding * torch.linalg.vector_norm(theirs):
            raise InvalidValue(
                "gradients after several draws",
                None,
                "were changed other than by one factor since the last sampled() context: by other "
                "processes, or value by value",
                "scale them as a whole; let processes reduce them inside the context, or take one "
                "draw per step",
            )
        return self.product * scale.to(self.product)


class NaturalGradient(Langevin):
    """N(μ, 1/(N(h + d))) around trained means: μ is the parameter, the curvature h is state.

    Forward and backward pass run at a draw, inside :meth:`sampled`; outside, parameters are μ::

        with optimizer.sampled():
            loss = F.cross_entropy(net(x), y)      # the mean over the batch
            loss.backward()
        optimizer.step()

    Several backward passes in one context share a draw (parts of a batch); several contexts before
    a step are several draws. As in any torch loop the losses of a step add up to one mean loss:
    divide by the number of passes. Gradients may be clipped, or unscaled by a ``GradScaler``,
    between context and step.

    ``update="adam"`` moves μ by Adam's rule on the gradient plus d·μ (as torch's ``weight_decay``
    does); ``update="ivon"`` by the natural gradient, lr·(h₀ + d)(m̂ + dμ)/(h + d). Groups with
    ``noisy=False`` take Adam's steps, whatever ``update`` is.

    Args:
        params: Parameters or groups.
        lr: Step on μ: Adam's, or IVON's, whose published values lie near 0.1 to 1.
        num_data: N.
        update: ``adam`` or ``ivon``.
        betas: (β₁, β₂): what is kept of the averages of gradients and of the curvature.
        square_beta: What Adam keeps of the squared gradients.
        initial_curvature: h₀. A large one starts with little noise. It is forgotten over 1/(1-β₂)
            steps, so that in a short run it acts as a temperature.
        weight_decay: d = δ/N.
        temperature: 1 for the posterior; variances are proportional to it.
        max_step: Under ``ivon``: the most that a weight moves in a step, in standard deviations of
            its posterior; ``None`` for IVON as published. Where the curvature is underestimated
            a free step leaves the region that it was measured in, and a learning rate twice too
            large diverges; this bounds the divergence between two posteriors in a row by
            max_step²/2 per weight.
        generator: Source of the seeds of the noise, on the CPU; torch's default one if ``None``.
            Processes that train together give equal ones: all must stand at the same draw.

    Example:
        >>> net, x, y = nn.Linear(3, 2), torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
        >>> opt = NaturalGradient(net.parameters(), 1e-2, num_data=100)
        >>> with opt.sampled():
        ...     nn.functional.cross_entropy(net(x), y).backward()
        >>> opt.step()
        >>> opt.std_of(net.weight).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        num_data: int,
        update: MeanUpdate = "adam",
        betas: tuple[float, float] = (0.9, 0.998),
        square_beta: float = 0.999,
        initial_curvature: float = 0.5,
        weight_decay: float = 3e-4,
        temperature: float = 1.0,
        max_step: float | None = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self._pending: dict[Tensor, _Pending] = {}
        self._is_sampled = False
        super().__init__(
            params,
            {
                "lr": lr,
                "num_data": num_data,
                "update": update,
                "betas": betas,
                "square_beta": square_beta,
                "initial_curvature": initial_curvature,
                "weight_decay": weight_decay,
                "temperature": temperature,
                "max_step": max_step,
            },
            generator,
        )

    def set_frozen(self, parameter: Tensor, frozen: Tensor | None) -> None:
        """Refused: a weight that rests would still be drawn around its mean.

        Raises:
            InvalidValue: Always, unless ``frozen`` is ``None``.
        """
        if frozen is not None:
            raise InvalidValue(
                "frozen",
                None,
                "does not go with a posterior: single weights would still be drawn",
                "leave whole parameters out with requires_grad_(False)",
            )

    def std_of(self, parameter: Tensor) -> Tensor | None:
        """σ of a parameter, of its shape; ``None`` where it has no posterior here."""
        held = (g for g in self.param_groups if any(parameter is p for p in g["params"]))
        group = next(held, None)
        if group is None or not group["noisy"]:
            return None
        h, decay = self._curvature(parameter, group), self._decay(parameter, group)
        return posterior_std(h, size=self._size(group), decay=decay)

    def __getstate__(self) -> dict[str, Any]:
        """Torch's, for copies and pickles, and where the noise stands."""
        noise = None if self.generator is None else self.generator.get_state()
        return {**super().__getstate__(), "noise": noise}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from it; the noise behind gradients that were not stepped is not carried over."""
        noise = state.pop("noise", None)
        super().__setstate__(state)
        self._pending, self._is_sampled = {}, False
        if noise is not None:
            self.generator = torch.Generator()
            self.generator.set_state(noise)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Parameters are a fresh draw μ + σε inside, and μ again afterwards, to the bit.

        A backward pass must end before the context does; torch refuses it afterwards, because the
        parameters have changed.

        Raises:
            InvalidValue: Contexts are nested, or ``step()`` is called inside.
        """
        if self._is_sampled:
            raise InvalidValue("sampled", None, "is entered twice", "leave the outer one first")
        held = self._draw()
        self._is_sampled = True
        try:
            yield
        finally:
            self._is_sampled = False
            with torch.no_grad():
                for drawn in held:
                    drawn.parameter.copy_(drawn.mean)
        for drawn in held:
            self._note(drawn)

    @torch.no_grad()
    def _draw(self) -> list[_Drawn]:
        """Put a draw into every noisy parameter: counters of one seed, in the groups' order."""
        seed = int(torch.randint(2**63 - 1, (), generator=self.generator))
        held, first = [], 0
        for group in self.param_groups:
            for p in group["params"] if group["noisy"] else ():
                if not p.requires_grad:
                    continue
                # Only gradients of an earlier draw of this step count; others were stepped already.
                grad = p.grad if p in self._pending else None
                before = None if grad is None else grad.clone()
                size, decay = self._size(group), self._decay(p, group)
                h = self._curvature(p, group)
                mean, eps = natural.draw_(p, h, seed=seed, first=first, size=size, decay=decay)
                held.append(_Drawn(p, mean, eps, grad, before))
                first += p.numel()
        return held

    @torch.no_grad()
    def _note(self, drawn: _Drawn) -> None:
        """Remember the noise that the gradient of a parameter was taken at."""
        grad, eps = drawn.parameter.grad, drawn.eps
        if grad is None:
            return
        earlier = self._pending.get(drawn.parameter)
        if earlier is None or drawn.before is None or grad is not drawn.grad:
            self._pending[drawn.parameter] = _Pending(eps)  # the gradient is of this draw alone
            return
        product = earlier.product_of(drawn.before).addcmul_(grad - drawn.before, eps)
        self._pending[drawn.parameter] = _Pending(eps, product, grad.clone())

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step from the gradients of the last :meth:`sampled` contexts.

        Args:
            closure: Computes the gradients anew, at a draw, and returns the loss.

        Raises:
            NonFinite: A gradient is not finite; nothing has moved then.
            InvalidValue: It is called inside ``sampled()``, or gradients were computed outside.
        """
        if self._is_sampled:
            raise InvalidValue("step", None, "needs the means", "leave sampled() first")
        loss = None
        if closure is not None:
            with self.sampled(), torch.enable_grad():
                loss = closure()
        self._require_draws()
        super().step()
        self._pending.clear()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Torch's; the noise behind the gradients is forgotten with them."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    def _require_draws(self) -> None:
        for number, group in enumerate(self.param_groups):
            missing = group["noisy"] and any(
                p.grad is not None and p not in self._pending for p in group["params"]
            )
            if missing:
                raise InvalidValue(
                    f"gradients of group {group.get('name', number)!r}",
                    None,
                    "were not computed at a draw",
                    "run forward and backward pass in `with optimizer.sampled():`",
                )
        for parameter, pending in self._pending.items():
            if parameter.grad is not None:
                pending.of_several(parameter.grad)  # refuses before anything has moved

    def _check_group(self, group: dict[str, Any]) -> None:
        if group["update"] not in get_args(MeanUpdate):
            raise UnknownName("update", str(group["update"]), get_args(MeanUpdate))
        super()._check_group(group)
        beta1, beta2 = group["betas"]
        shares = {"beta1": beta1, "beta2": beta2, "square_beta": group["square_beta"]}
        for name, value in shares.items():
            if not 0.0 <= value < 1.0:
                raise InvalidValue(name, value, "must lie in [0, 1)")
        for name in ("initial_curvature", "temperature", "max_step"):
            value = group[name]
            if value is not None and not (value > 0.0 and isfinite(value)):
                raise InvalidValue(name, value, "must be finite and > 0")

    def _size(self, group: dict[str, Any]) -> float:
        """N/T."""
        return float(group["num_data"] / group["temperature"])

    def _decay(self, p: Tensor, group: dict[str, Any]) -> float | Tensor:
        """That of the group, or one per weight."""
        found: float | Tensor = self.state[p].get("decay", group["weight_decay"])
        return found

    def _curvature(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[p]
        if "curvature" not in state:
            state["curvature"] = torch.full_like(p, group["initial_curvature"])
        found: Tensor = state["curvature"]
        return found

    def _noisy(self, group: dict[str, Any]) -> Advance:
        uses_adam, size = group["update"] == "adam", self._size(group)
        max_step = inf if group["max_step"] is None else group["max_step"]
        lr = step_size(group)
        if not uses_adam:
            lr *= group["initial_curvature"] + group["weight_decay"]

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            ensure(state, p, "exp_avg", *(["exp_avg_sq"] if uses_adam else []))
            pending = self._pending[p]
            natural.step_(
                p,
                grad,
                pending.of_several(grad),
                state,
                _rates(group, state, lr),
                size=size,
                decay=self._decay(p, group),
                max_step=max_step,
                uses_adam=uses_adam,
                eps=pending.eps,
            )

        return advance

    def _plain(self, group: dict[str, Any]) -> Advance:
        lr = step_size(group)

        def advance(p: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
            ensure(state, p, "exp_avg", "exp_avg_sq")
            if group["weight_decay"]:
                grad = grad.add(p, alpha=group["weight_decay"])
            natural.adam_(p, grad, state["exp_avg"], state["exp_avg_sq"], _rates(group, state, lr))

        return advance


def _rates(group: dict[str, Any], state: dict[str, Any], lr: float) -> Rates:
    """The numbers of this step of a parameter, which is counted here."""
    state["step"] = state.get("step", 0) + 1
    beta1, beta2 = group["betas"]
    return Rates(lr, beta1, group["square_beta"], beta2, state["step"])
