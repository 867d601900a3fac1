"""EM-MCMC, Algorithm 3 of cvadam2023: Algorithm 2 under a spike-and-slab prior, pruned on the way.

After the warm-up both masks are formed anew once per epoch (see ``pruning``); where a sparsity is
asked for, also at the step by which it is due.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.core.groups import Group, Statistic
from gossamer.errors import InvalidValue
from gossamer.inference.chain import ChainMethod, sparse_copy
from gossamer.inference.chain_prior import require_narrower
from gossamer.inference.langevin_base import Langevin
from gossamer.inference.preconditioned import AUTHORS, PreconditionedConfig, preconditioned
from gossamer.inference.pruning import Pruner, Pruning, PruningRule, Scope
from gossamer.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class EMMCMCConfig(PreconditionedConfig):
    """Settings of EM-MCMC; those of the sampler are inherited, ``weight_decay`` is the slab's δ₁/N.

    Attributes:
        pruning: ``dfp``: masked weights leave for good; ``dpf``: they may come back, and weights
            and state stay dense.
        group: Groups of the soft mask: ``kernel``, ``input``, ``output``, ``weight``, or ``auto``.
        prune_group: Groups of the hard mask; ``auto`` takes input units.
        statistic: ``range`` (Eq. 9), ``abs_range`` (as printed), ``mean_square`` (Eq. 10) or
            ``auto``.
        spike_decay: δ₀/N; ``None`` is 20 times the slab's, or what the step size can follow.
        spike_threshold: λ₁, on the mean square of a group; ``None``: a tenth of the slab's
            variance.
        prune_threshold: λ₂, on the statistic of a group; ``None``: a hundredth of the slab's
            variance, or for a range a tenth of its standard deviation.
        warmup: Share of the run before the first masks.
        target_sparsity: Reach this share of zero weights instead of using ``prune_threshold``.
        target_scope: ``network``: of all weights that are trained, by scores of groups that hold
            across layers; ``layer``: of every layer's.
        prune_end: Share of the run by which the target is reached.
    """

    pruning: Pruning = "dfp"
    group: Group | Literal["auto"] = "auto"
    prune_group: Group | Literal["auto"] = "auto"
    statistic: Statistic | Literal["auto"] = "auto"
    spike_decay: float | None = None
    spike_threshold: float | None = None
    prune_threshold: float | None = None
    warmup: float = 0.1
    target_sparsity: float | None = None
    target_scope: Scope = "network"
    prune_end: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("spike_decay", "spike_threshold", "prune_threshold"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if self.weight_decay is not None and self.spike_decay is not None:
            require_narrower(self.spike_decay, self.weight_decay)
        if not 0.0 <= self.warmup <= 1.0:
            raise InvalidValue("warmup", self.warmup, "must lie in [0, 1], a share of the run")
        if self.target_sparsity is not None and not 0.0 <= self.target_sparsity < 1.0:
            raise InvalidValue("target_sparsity", self.target_sparsity, "must lie in [0, 1)")
        if self.target_sparsity is not None and not self.warmup <= self.prune_end <= 1.0:
            raise InvalidValue(
                "prune_end", self.prune_end, f"must lie in [warmup = {self.warmup}, 1]"
            )


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        **AUTHORS,
        "lr": 1.0,
        "weight_decay": 5e-4,
        "spike_decay": 1e-2,
        "spike_threshold": 1e-2,
        "prune_threshold": 1e-3,
    },
}


class EMMCMC(ChainMethod):
    """See the module."""

    config: EMMCMCConfig

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        optimizer: Langevin,
        config: EMMCMCConfig,
        num_data: int,
        total_steps: int,
    ) -> None:
        super().__init__("em_mcmc", model, likelihood, optimizer, config, total_steps)
        rule = PruningRule(
            pruning=config.pruning,
            group=config.group,
            prune_group=config.prune_group,
            statistic=config.statistic,
            spike_decay=config.spike_decay,
            spike_threshold=config.spike_threshold,
            prune_threshold=config.prune_threshold,
            target_scope=config.target_scope,
        )
        self.pruner = Pruner(model, optimizer, rule, config.backend)
        self.num_data = num_data
        self.rows = 0  # seen since the masks were last formed

    def snapshot(self) -> dict[str, Tensor]:
        """The network without what is masked."""
        state = super().snapshot()
        for group in self.pruner.groups:
            mask = self.pruner.masks.get(group.name)
            if mask is None or bool(mask.all()):
                continue
            positions = group.first.support.positions()[mask.cpu()].to(torch.int32)
            # Under all its names: the state of a layer that has two is saved twice.
            for name, layer in self.model.named_modules(remove_duplicate=False):
                if layer in group.layers:
                    prefix = f"{name}." if name else ""
                    state[f"{prefix}indices"] = positions
                    state[f"{prefix}weight_values"] = group.first.leading().detach()[mask]
        return state

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        masks = {name: mask.clone() for name, mask in self.pruner.masks.items()}
        own = {"pruning": self.config.pruning, "masks": masks, "rows": self.rows}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if state.get("pruning", self.config.pruning) != self.config.pruning:
            raise InvalidValue(
                "pruning", self.config.pruning, f"must be {state['pruning']!r}, as in the saved run"
            )
        super().load_state_dict(state)
        self.pruner.masks = {name: mask.clone() for name, mask in state["masks"].items()}
        self.rows = int(state["rows"])

    def _effective(self) -> AbstractContextManager[None]:
        return self.pruner.effective()

    def _after_step(self, rows: int) -> None:
        self.rows += rows
        total, config = self.schedule.steps, self.config
        aims = config.target_sparsity is not None
        is_last_chance = aims and self.steps == ceil(config.prune_end * total)
        if self.steps < config.warmup * total:
            return
        if self.rows < self.num_data and not is_last_chance:
            return
        self.rows = 0
        self.pruner.refresh(self._target() if aims else None)

    def _target(self) -> float:
        """The sparsity asked for by now: a cubic rise from the warm-up to ``prune_end``."""
        assert self.config.target_sparsity is not None
        begin, end = self.config.warmup, self.config.prune_end
        share = self.steps / self.schedule.steps
        left = 0.0 if share >= end else 1.0 - (share - begin) / (end - begin)
        return self.config.target_sparsity * (1.0 - left**3)


def build(
    config: EMMCMCConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
) -> EMMCMC:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model)
    optimizer = preconditioned(config, net, likelihood, num_data)
    return EMMCMC(net, likelihood, optimizer, config, num_data, total_steps)
