"""The sparse subspace.

Swaps the support of a model while any torch optimiser trains it (Algorithm 1, lines 9-11).

Stepped like a learning-rate scheduler, after ``optimizer.step()``. One step before a swap the
layers are *armed*, so that the next backward also catches addition scores; then the worst weights
by the new parameters leave and the best of caught and removed enter. All vectors over the support
(parameters, gradients, optimiser state) are permuted in place: no Parameter object is ever
replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.core.addition import AdditionRule, addition_rule
from gossamer.core.gaussian import raw_from_std
from gossamer.core.removal import NEEDS_STD, criterion
from gossamer.core.schedule import SwapSchedule
from gossamer.core.sigma_init import sigma_rule
from gossamer.core.support import sample_distinct
from gossamer.core.swap import SwapPlan, follow, plan_swap
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.addition_passes import rank_by_passes
from gossamer.inference.objective import raw_std_ids, warn_of_decay
from gossamer.inference.optimizer_state import check_optimizer, follow_optimizer
from gossamer.nn import BayesianLayer, WeightGroup, require_groups
from gossamer.ops import Growth

MAX_POSTPONED = 10
"""Swaps postponed in a row because of non-finite scores before it is an error."""


@dataclass(frozen=True)
class LayerSwap:
    """Counts of one layer's swap.

    Weights kept in all, and how many were exchanged (removed = added).
    """

    nnz: int
    removed: int
    added: int


@dataclass(frozen=True)
class SwapInfo:
    """What a swap did.

    Attributes:
        step: Optimiser steps done.
        fraction: r_t, the share of each layer's weights that was up for removal.
        layers: By layer name. A layer that no backward pass reached is not in it.
    """

    step: int
    fraction: float
    layers: dict[str, LayerSwap]


class Subspace:
    """Alternates removal and addition on the sparse layers of a model.

    Args:
        model: Converted by ``to_bayesian`` or ``to_sparse``.
        optimizer: Holds every sparse parameter that requires a gradient.
        total_steps: Optimiser steps of the whole run.
        removal: Key of ``gossamer.core.removal.REMOVAL``; default ``snr_abs``, or ``mean_abs`` for
            deterministic layers.
        addition: Key of ``gossamer.core.addition.ADDITION``.
        sigma_init: Standard deviation of fresh weights: ``mean`` or ``eps``.
        swap_fraction: Share of a layer's weights swapped at the start; falls to 0 along half a
            cosine.
        end_fraction: No swap after this share of ``total_steps``.
        update_every: Optimiser steps between swaps; default 100, fewer in short runs.
        num_draws: Passes that ``grad_multi`` averages.
        generator: For ``addition="random"``; by default seeded from torch's generator.

    Example:
        >>> subspace = Subspace(bnn, opt, total_steps=1000)  # doctest: +SKIP
        >>> loss.backward(); opt.step(); subspace.step()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        total_steps: int,
        removal: str | None = None,
        addition: str = "grad",
        sigma_init: str = "mean",
        swap_fraction: float = 0.3,
        end_fraction: float = 0.75,
        update_every: int | None = None,
        num_draws: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.groups = [g for g in require_groups(model) if g.first.leading().requires_grad]
        self.rule: AdditionRule = addition_rule(addition)
        self.addition = addition
        self.removal = removal or ("snr_abs" if _all_bayesian(self.groups) else "mean_abs")
        self.removal_score = criterion(self.removal)
        self.sigma = sigma_rule(sigma_init)
        self.schedule = SwapSchedule(total_steps, swap_fraction, end_fraction, update_every)
        if num_draws < 1:
            raise InvalidValue("num_draws", num_draws, "must be at least 1")
        self.num_draws = num_draws if self.rule.many else 1
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self.generator = generator
        self.steps = 0
        self.postponed = 0
        self.reused: set[str] = set()
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
        caught = [(g, g.first.growth) for g in self.groups if g.first.growth is not None]
        # A layer called several times in one pass shows itself now; its next swap sums its uses.
        self.reused |= {group.name for group, growth in caught if growth.needs_dense}
        if not all(growth.is_finite for _, growth in caught):
            self._postpone()
            return None
        return self._finish(self._swap(fraction))

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
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        names = {id(p): name for name, p in self.model.named_parameters()}
        for group in self.groups:
            if self.removal in NEEDS_STD and not isinstance(group.first, BayesianLayer):
                raise InvalidValue(
                    "removal",
                    self.removal,
                    f"needs a standard deviation, which layer {group.name or 'root'} has not",
                    "use 'mean_abs' for deterministic layers",
                )
            for parameter in _vectors(group):
                if id(parameter) not in held:
                    raise InvalidValue(
                        "optimizer",
                        type(self.optimizer).__name__,
                        f"lacks the parameter {names[id(parameter)]}",
                        "build it from gossamer.parameter_groups(model, lr=…) after conversion",
                    )
        warn_of_decay(self.optimizer, raw_std_ids(self.model))

    def _prepare_next(self) -> None:
        """Arm the layers if the next step swaps by training gradients, else disarm them."""
        if self.is_due and self.rule.gradient and not self.rule.own_pass:
            self._arm(keep_dense=False)
        else:
            self._disarm()

    def _arm(self, *, keep_dense: bool) -> None:
        for group in self.groups:
            layer = group.first
            count = self.schedule.max_count(layer.nnz)
            if layer.support.is_full or count == 0:
                continue
            # A weight with several uses has as many gradients in one pass: they are summed in a
            # dense buffer.
            dense = keep_dense or layer.draws_weights or group.name in self.reused
            growth = Growth.empty(layer.support, count, layer.leading().device, keep_dense=dense)
            for each in group.layers:
                each.growth = growth

    def _disarm(self) -> None:
        for group in self.groups:
            for layer in group.layers:
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
                g.name for g in self.groups if g.first.growth and not g.first.growth.is_finite
            )
            raise NonFinite(
                f"addition scores of layer {bad or 'root'}",
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
        armed = [group for group in self.groups if group.first.growth is not None]
        rank_by_passes(self.model, armed, self.rule, closure, self.num_draws)

    @torch.no_grad()
    def _swap(self, fraction: float) -> SwapInfo:
        # All plans and checks come before the first change: an error must not leave half a swap.
        plans = []
        for group in self.groups:
            plan = self._plan(group, self.schedule.count(self.steps, group.first.nnz))
            if plan is not None:
                plans.append((group, plan))
        check_optimizer(self.optimizer, [p for group, _ in plans for p in _vectors(group)])
        layers = {}
        for group, plan in plans:
            self._apply(group, plan)
            exchanged = plan.added.numel()
            layers[group.name] = LayerSwap(plan.support.nnz, exchanged, exchanged)
        return SwapInfo(self.steps, fraction, layers)

    def _plan(self, group: WeightGroup, count: int) -> SwapPlan | None:
        layer = group.first
        if layer.support.is_full:
            return None
        scores = self._removal_scores(group)
        if not self.rule.gradient:
            return self._random_plan(group, scores, count)
        growth = layer.growth
        if growth is None or not growth.is_filled:
            return None
        return plan_swap(layer.support, scores, growth.own, growth.positions, growth.scores, count)

    def _random_plan(self, group: WeightGroup, scores: Tensor, count: int) -> SwapPlan:
        """Uniform scores in O(nnz).

        Of ``count`` uniform draws from free and removed positions only the free ones matter.
        """
        layer = group.first
        free = layer.support.numel - layer.nnz
        # How many entrants come from the free positions is hypergeometric: drawing their ranks
        # draws that number.
        entering = int((sample_distinct(free + count, count, self.generator) < free).sum())
        candidates = layer.support.sample_outside(entering, self.generator).to(scores.device)
        own = torch.rand(layer.nnz, generator=self.generator).to(scores.device)
        best = torch.full((entering,), 2.0, dtype=own.dtype, device=scores.device)
        return plan_swap(layer.support, scores, own, candidates, best, count)

    def _removal_scores(self, group: WeightGroup) -> Tensor:
        layer = group.first
        mean = layer.leading().detach()
        std = (
            layer.weight_std.detach() if isinstance(layer, BayesianLayer) else torch.ones_like(mean)
        )
        scores = self.removal_score(mean, std)
        if not bool(torch.isfinite(scores).all()):
            raise NonFinite(
                f"removal scores of layer {group.name or 'root'}",
                None,
                f"are NaN or infinite under {self.removal!r}",
                "a mean or standard deviation left the range of numbers: lower the learning rate",
            )
        return scores

    def _apply(self, group: WeightGroup, plan: SwapPlan) -> None:
        """Permute everything that lives on the support.

        Fresh weights start at mean 0, σ by rule, first moments 0.
        """
        layer = group.first
        fresh: dict[str, Tensor | float] = {"weight_mean": 0.0, "weight_values": 0.0}
        if isinstance(layer, BayesianLayer):
            stayed = plan.source[plan.source >= 0]
            std = layer.weight_std
            survivors = std[stayed] if stayed.numel() else std
            fresh["weight_raw_std"] = raw_from_std(self.sigma(survivors))
        for name, parameter in layer.named_parameters(recurse=False):
            if name not in fresh:
                continue
            parameter.copy_(follow(parameter, plan.source, fresh[name]))
            if parameter.grad is not None:
                parameter.grad.copy_(follow(parameter.grad, plan.source, 0.0))
            follow_optimizer(self.optimizer, parameter, plan.source)
        for each in group.layers:
            assert each.indices is not None
            assert plan.support.indices is not None
            each.indices.copy_(plan.support.indices)
            each.refresh_pattern()


def _all_bayesian(groups: list[WeightGroup]) -> bool:
    return all(isinstance(group.first, BayesianLayer) for group in groups)


def _vectors(group: WeightGroup) -> list[nn.Parameter]:
    layer = group.first
    return [
        p
        for name, p in layer.named_parameters(recurse=False)
        if name.startswith("weight") and p.requires_grad
    ]
