"""The sparse subspace.

Swaps the support of a model while any torch optimiser trains it (Algorithm 1, lines 9-11).

Stepped like a learning-rate scheduler, after ``optimizer.step()``. One step before a swap the
layers are *armed*, so that the next backward also catches addition scores; then the worst weights
by the new parameters leave and the best of caught and removed enter. All vectors over the support
(parameters, gradients, optimiser state) are permuted in place: no Parameter object is ever
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.core.addition import AdditionRule, addition_rule
from gossamer.core.removal import NEEDS_STD, criterion
from gossamer.core.schedule import Swaps, SwapSchedule
from gossamer.core.scores import score_named
from gossamer.core.sigma_init import sigma_rule
from gossamer.core.support import sample_distinct
from gossamer.core.swap import (
    Budget,
    FixedBudget,
    LayerScores,
    LayerSwap,
    SwapInfo,
    plan_swaps,
)
from gossamer.errors import InvalidValue, NonFinite, UnknownName
from gossamer.inference.addition_passes import rank_by_passes
from gossamer.inference.group import ALONE, Group
from gossamer.inference.objective import warn_of_decay
from gossamer.inference.swappable import (
    Stepped,
    as_sequence,
    holders,
    require_group,
    require_optimizers,
    require_whole,
)
from gossamer.nn import Weight, move, require_movable, require_weights, scale_parameters
from gossamer.nn.followers import Follower, require_followed
from gossamer.ops import Growth

MAX_POSTPONED = 10
"""Swaps postponed in a row because of non-finite scores before it is an error."""


@dataclass(frozen=True, kw_only=True)
class SwapSettings:
    """How a support moves, whatever the layers are.

    Attributes:
        addition: Key of ``gossamer.core.addition.ADDITION`` (Sec. 3.3.2).
        num_draws: K, the passes that ``grad_multi`` averages.
        swap_fraction: r_0, the share of a layer's weights swapped at the start; it falls to 0 along
            half a cosine.
        end_fraction: Share of the run after which the support is fixed.
        update_every: M, optimiser steps between swaps; 100, fewer in short runs, if ``None``.
    """

    addition: str = "grad"
    num_draws: int = 4
    swap_fraction: float = 0.3
    end_fraction: float = 0.75
    update_every: int | None = None


@dataclass(frozen=True, kw_only=True)
class SwapRule(SwapSettings):
    """How the support of a model moves: the settings of ``Subspace``.

    Attributes:
        removal: Key of ``gossamer.core.removal.REMOVAL`` (Sec. 3.3.1); ``None`` takes ``snr_abs``,
            or ``mean_abs`` in layers whose weights have no posterior.
        sigma_init: Standard deviation of fresh weights (Sec. 3.2): ``mean`` or ``eps``.
    """

    removal: str | None = None
    sigma_init: str = "mean"


def shared_settings(config: SwapSettings) -> dict[str, Any]:
    """The settings of a swap that a method's config has of ``SwapSettings``, by name."""
    return {field.name: getattr(config, field.name) for field in fields(SwapSettings)}


@runtime_checkable
class HoldsPosterior(Protocol):
    """An optimiser whose state is the posterior, such as ``gossamer.optim.NaturalGradient``."""

    def std_of(self, parameter: Tensor) -> Tensor | None:
        """σ of a parameter, of its shape; ``None`` where it has none."""
        ...


class Subspace:
    """Alternates removal and addition on the sparse layers of a model.

    Args:
        model: Converted by ``to_bayesian`` or ``to_sparse``.
        optimizer: Holds every sparse parameter that requires a gradient; or several that do so
            together.
        total_steps: Optimiser steps of the whole run.
        rule: How the support moves.
        budget: How many weights each layer keeps; every layer its own number by default.
        group: The processes that train together; it sums gradients before they are ranked.
        follow: Averages of the model (``torch.optim.swa_utils.AveragedModel``, or other copies
            with the same layers), which move as the optimiser's state does. One that is not told
            of is refused at the next swap.
        accumulate: Backward passes of one step, whose gradients are one: they are summed in a dense
            buffer per layer. 1 lets the last pass before ``step()`` count.
        generator: For ``addition="random"``; by default seeded from torch's generator.
        **settings: Fields of ``rule`` to change: ``removal="snr_abs"``, ``update_every=50``, …

    Example:
        >>> bnn = gossamer.to_bayesian(nn.Linear(8, 4), sparsity=0.5)
        >>> opt = torch.optim.Adam(gossamer.parameter_groups(bnn, lr=1e-2))
        >>> subspace = Subspace(bnn, opt, total_steps=20, removal="snr_abs", update_every=2)
        >>> for _ in range(2):
        ...     bnn(torch.randn(3, 8)).square().mean().backward()
        ...     opt.step()
        ...     info = subspace.step()
        >>> info.step, bnn.nnz
        (2, 16)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        total_steps: int,
        rule: SwapRule | None = None,
        budget: Budget | None = None,
        group: Group = ALONE,
        follow: Iterable[nn.Module] = (),
        accumulate: int = 1,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        rule = _changed(rule or SwapRule(), settings)
        self.model = model
        self.optimizers = as_sequence(optimizer)
        self._all = require_weights(model)
        require_group(model, group)
        require_whole(model, self._all)
        require_optimizers(self.optimizers)
        self.weights = [weight for weight in self._all if weight.is_trained]
        self.followers = [Follower(model, copy) for copy in follow]
        self.rule: AdditionRule = addition_rule(rule.addition)
        self.addition = rule.addition
        has_std = any(self._std(weight) is not None for weight in self._all)
        self.removal = rule.removal or ("snr_abs" if has_std else "mean_abs")
        self._is_chosen = rule.removal is not None
        self.removal_score = criterion(self.removal)
        self.sigma = sigma_rule(rule.sigma_init)
        self.schedule: Swaps = SwapSchedule(
            total_steps, rule.swap_fraction, rule.end_fraction, rule.update_every
        )
        if rule.num_draws < 1:
            raise InvalidValue("num_draws", rule.num_draws, "must be at least 1")
        self.num_draws = rule.num_draws if self.rule.many else 1
        self.budget: Budget = budget or FixedBudget()
        self.group = group
        self.accumulate = accumulate
        if not self.rule.gradient and not isinstance(self.budget, FixedBudget):
            raise InvalidValue(
                "addition",
                self.addition,
                "draws as many positions as leave a layer, so that its budget is fixed",
                "use 'grad', or leave the budget out",
            )
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self.generator = generator
        self.steps = 0
        self.postponed = 0
        self.reused: set[str] = set()
        self._joined: set[str] = set()
        self._stepped = Stepped()
        self._check()
        self._prepare_next()

    @property
    def is_due(self) -> bool:
        """Whether the next ``step()`` tries a swap."""
        return self.postponed > 0 or self.schedule.is_due(self.steps + 1)

    def step(self, closure: Callable[[], Tensor] | None = None) -> SwapInfo | None:
        """Count one optimiser step; swap if one is due.

        Args:
            closure: Computes the loss of a mini-batch; needed by ``grad_mean`` and ``grad_multi``
                only. It is run with the BatchNorm statistics frozen and leaves ``.grad`` untouched.

        Returns:
            What was swapped, or ``None``.
        """
        due = self.is_due
        self.steps += 1
        if not due:
            self._prepare_next()
            return None
        fraction = self.schedule.share(self.steps)
        if fraction == 0.0:
            return self._finish(None)
        if self.rule.own_pass:
            self._own_passes(closure)
        caught = [(w, w.layer.growth) for w in self.weights if w.layer.growth is not None]
        # A layer called several times in one pass shows itself now; its next swap sums its uses.
        self.reused |= {weight.name for weight, growth in caught if growth.needs_dense}
        if not all(growth.is_finite for _, growth in caught):
            self._postpone()
            return None
        return self._finish(self._swap(fraction))

    def use_schedule(self, schedule: Swaps) -> None:
        """Swap by another schedule from now on; it is no part of the state."""
        self.schedule = schedule
        self._prepare_next()

    def state_dict(self) -> dict[str, Any]:
        """Step count, postponed swaps and generator. Supports and parameters are the model's."""
        return {
            "steps": self.steps,
            "postponed": self.postponed,
            "reused": sorted(self.reused),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; arms the layers if a swap comes next."""
        self.steps = int(state["steps"])
        self.postponed = int(state["postponed"])
        self.reused = set(state["reused"])
        self.generator.set_state(state["generator"].cpu())
        self._prepare_next()

    def _check(self) -> None:
        held = holders(self.optimizers)
        names = {id(p): name for name, p in self.model.named_parameters()}
        for weight in self.weights:
            for vector in weight.layer.vectors:
                if vector.parameter.requires_grad and id(vector.parameter) not in held:
                    raise InvalidValue(
                        "optimizer",
                        ", ".join(type(optimizer).__name__ for optimizer in self.optimizers),
                        f"lacks the parameter {names[id(vector.parameter)]}",
                        "build it from gossamer.parameter_groups(model, lr=…) after conversion",
                    )
            self._join(weight)
        for optimizer in self.optimizers:
            warn_of_decay(optimizer, scale_parameters(self.model))

    def _join(self, weight: Weight) -> None:
        """A weight takes part in swaps from now on."""
        if self._is_chosen and self.removal in NEEDS_STD and self._std(weight) is None:
            raise InvalidValue(
                "removal",
                self.removal,
                f"needs a standard deviation, which layer {weight.title} has not",
                "use 'mean_abs' for deterministic layers, or leave it out: each layer then has "
                "the criterion that it can have",
            )
        self._joined.add(weight.name)
        self._stepped.note([weight])

    def _choose_weights(self) -> None:
        """Layers may be frozen and set free during a run; an optimiser has to hold them."""
        trained = [weight for weight in self._all if weight.is_trained]
        held = set()
        if any(weight.name not in self._joined for weight in trained):
            held = holders(self.optimizers)
        for weight in trained:
            if weight.name not in self._joined and all(
                id(vector.parameter) in held
                for vector in weight.layer.vectors
                if vector.parameter.requires_grad
            ):
                self._join(weight)
        self.weights = [weight for weight in trained if weight.name in self._joined]

    def _prepare_next(self) -> None:
        """Arm the layers if the next step swaps by training gradients, else disarm them."""
        self._choose_weights()
        self._disarm()  # a loaded state may keep all of a layer that was armed
        if self.is_due and self.rule.gradient and not self.rule.own_pass:
            self._arm(keep_dense=False)

    def _arm(self, *, keep_dense: bool) -> None:
        for weight in self.weights:
            layer = weight.layer
            count = self.schedule.max_count(layer.nnz)
            if not isinstance(self.budget, FixedBudget):
                count = max(count, 1)  # a layer that gives nothing away may still receive
            if layer.support.is_full or count == 0:
                continue
            # A weight with several uses has as many gradients in one pass: they are summed in a
            # dense buffer.
            sums = self.accumulate > 1 and not keep_dense  # own passes see the whole batch
            dense = keep_dense or sums or layer.draws_weights or weight.name in self.reused
            offered = count * self.budget.reach
            growth = Growth.empty(
                layer.support,
                offered,
                weight.values.device,
                keep_dense=dense,
                score=self.rule.score,
                reducer=None if self.group.size == 1 else self.group,
                sums_passes=sums,
            )
            for each in weight.layers:
                each.growth = growth

    def _disarm(self) -> None:
        for weight in self._all:
            for layer in weight.layers:
                layer.growth = None

    def _finish(self, info: SwapInfo | None) -> SwapInfo | None:
        self.postponed = 0
        self._prepare_next()
        return info

    def _postpone(self) -> None:
        """Leave everything as it is and try again at the next step.

        A loss scaler overflows now and then.
        """
        self.postponed += 1
        if self.postponed >= MAX_POSTPONED:
            bad = next(
                w.title for w in self.weights if w.layer.growth and not w.layer.growth.is_finite
            )
            raise NonFinite(
                f"addition scores of layer {bad}",
                None,
                f"were NaN or infinite {MAX_POSTPONED} swaps in a row",
                "lower the learning rate or check the data",
            )
        self._prepare_next()

    def _own_passes(self, closure: Callable[[], Tensor] | None) -> None:
        if closure is None:
            raise InvalidValue(
                "closure",
                None,
                f"addition={self.addition!r} needs step(closure)",
                "pass a function that returns the loss",
            )
        self._arm(keep_dense=True)
        armed = [weight for weight in self.weights if weight.layer.growth is not None]
        rank_by_passes(self.model, armed, self.rule, closure, self.num_draws)

    @torch.no_grad()
    def _swap(self, fraction: float) -> SwapInfo:
        # All plans and checks come before the first change: an error must not leave half a swap.
        scored = [(weight, self._scores(weight)) for weight in self.weights]
        known = [(weight, scores) for weight, scores in scored if scores is not None]
        plans = plan_swaps([scores for _, scores in known], self.budget)
        moving = [weight for weight, _ in known]
        self._require_movable(moving)
        layers = {}
        for (weight, _), plan in zip(known, plans, strict=True):
            move(
                weight,
                plan.support,
                plan.source,
                sigma=self.sigma,
                optimizer=self.optimizers,
                followers=[follower.twin_of(weight) for follower in self.followers],
            )
            layers[weight.name] = LayerSwap(
                plan.support.nnz, plan.removed.numel(), plan.added.numel()
            )
        self._stepped.note(moving)
        return SwapInfo(self.steps, fraction, layers)

    def _require_movable(self, moving: list[Weight]) -> None:
        require_movable(self.optimizers, moving, grows=True)
        with_gradient = [
            weight
            for weight in moving
            if weight.values.grad is not None
            or (weight.layer.growth is not None and weight.layer.growth.is_filled)
        ]
        self._stepped.require_state(self.optimizers, with_gradient)
        require_followed(self._all, self.followers)
        for follower in self.followers:
            follower.require_same_support(self._all)

    def _scores(self, weight: Weight) -> LayerScores | None:
        """What the swap of a weight is decided by; ``None`` where there is nothing to swap."""
        layer = weight.layer
        if layer.support.is_full and isinstance(self.budget, FixedBudget):
            return None
        count = self.schedule.count(self.steps, layer.nnz)
        removal = self._removal_scores(weight)
        if layer.support.is_full:
            return self._full_scores(weight, removal, count)
        if not self.rule.gradient:
            return self._random_scores(weight, removal, count)
        growth = layer.growth
        if growth is None or not growth.is_filled:
            return None
        return LayerScores(
            layer.support, removal, growth.own, growth.positions, growth.scores, count
        )

    def _full_scores(self, weight: Weight, removal: Tensor, count: int) -> LayerScores | None:
        """A layer without a free position can only give weights away, to other layers."""
        grad = weight.values.grad
        if grad is None:
            return None
        positions = torch.arange(weight.layer.nnz, device=grad.device)
        own = score_named(self.rule.score)(grad.detach().clone().float(), positions)
        none = torch.empty(0, dtype=torch.int64, device=grad.device)
        return LayerScores(weight.layer.support, removal, own, none, own[:0], count)

    def _random_scores(self, weight: Weight, removal: Tensor, count: int) -> LayerScores:
        """Uniform scores in O(nnz).

        Of ``count`` uniform draws from free and removed positions only the free ones matter.
        """
        layer = weight.layer
        free = layer.support.numel - layer.nnz
        # How many entrants come from the free positions is hypergeometric: drawing their ranks
        # draws that number.
        entering = int((sample_distinct(free + count, count, self.generator) < free).sum())
        candidates = layer.support.sample_outside(entering, self.generator).to(removal.device)
        own = torch.rand(layer.nnz, generator=self.generator).to(removal.device)
        best = torch.full((entering,), 2.0, dtype=own.dtype, device=removal.device)
        return LayerScores(layer.support, removal, own, candidates, best, count)

    def _std(self, weight: Weight) -> Tensor | None:
        """σ of a weight: its layer's, or that of an optimiser which holds the posterior."""
        std = weight.layer.marginal_std
        for optimizer in self.optimizers:
            if std is None and isinstance(optimizer, HoldsPosterior):
                std = optimizer.std_of(weight.values)
        return std

    def _removal_scores(self, weight: Weight) -> Tensor:
        mean, std = weight.values.detach(), self._std(weight)
        if std is None and self.removal in NEEDS_STD:  # beside layers that have one
            scores = criterion("mean_abs")(mean, torch.ones_like(mean))
        else:
            std = torch.ones_like(mean) if std is None else std.detach()
            scores = self.removal_score(mean, std)
        if not bool(torch.isfinite(scores).all()):
            raise NonFinite(
                f"removal scores of layer {weight.title}",
                None,
                f"are NaN or infinite under {self.removal!r}",
                "a mean or standard deviation left the range of numbers: lower the learning rate",
            )
        return scores


def _changed(rule: SwapRule, settings: dict[str, Any]) -> SwapRule:
    known = [field.name for field in fields(SwapRule)]
    for name in settings:
        if name not in known:
            raise UnknownName("setting of Subspace", name, known)
    return replace(rule, **settings) if settings else rule
