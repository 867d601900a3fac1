"""EM-MCMC, Algorithm 3 of cvadam2023: Algorithm 2 under a spike-and-slab prior, pruned on the way.

After the warm-up both masks are formed anew once per epoch (see ``pruning``); where a sparsity is
asked for, also at the step by which it is due.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.spike_slab import require_narrower
from gossamer.errors import InvalidValue
from gossamer.inference.chain import (
    AUTHORS,
    ChainMethod,
    PreconditionedConfig,
    preconditioned,
)
from gossamer.inference.method import MethodEntry
from gossamer.inference.pruning import Pruner, PruningRule
from gossamer.inference.sampler import sparse_copy
from gossamer.likelihoods import Likelihood
from gossamer.nn import state_on
from gossamer.optim import Langevin


@dataclass(frozen=True, kw_only=True)
class EMMCMCConfig(PreconditionedConfig, PruningRule):
    """Settings of EM-MCMC; those of the sampler and of the masks are inherited.

    ``weight_decay`` is the slab's δ₁/N.

    Attributes:
        warmup: Share of the run before the first masks.
        target_sparsity: Reach this share of zero weights instead of using ``prune_threshold``.
        prune_end: Share of the run by which the target is reached.
    """

    warmup: float = 0.1
    target_sparsity: float | None = None
    prune_end: float = 0.5

    def __post_init__(self) -> None:
        PreconditionedConfig.__post_init__(self)
        PruningRule.__post_init__(self)
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
        self.pruner = Pruner(model, optimizer, config, config.backend)
        self.num_data = num_data
        self.rows = 0  # seen since the masks were last formed

    def snapshot(self) -> dict[str, Tensor]:
        """The network without what is masked."""
        return state_on(self.model, self.pruner.masks)

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
        self._prune(rows)
        super()._after_step(rows)

    def _prune(self, rows: int) -> None:
        """Form the masks anew where an epoch has passed, or a target is due."""
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
    generator: torch.Generator | None = None,
) -> EMMCMC:
    """The method on a copy of ``model``."""
    net = sparse_copy(config, model, generator)
    optimizer = preconditioned(config, net, likelihood, num_data)
    return EMMCMC(net, likelihood, optimizer, config, num_data, total_steps)


METHOD = MethodEntry(
    EMMCMCConfig,
    build,
    PRESETS,
    "SGHMC under a spike-and-slab group prior, pruned while it runs",
)
