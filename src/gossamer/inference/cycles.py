"""Members harvested from one run: the learning rate and the swaps go round M times.

Each cycle begins with large steps and large swaps and ends with none of either; there a copy of the
network is kept. The first cycle takes half of the run, because it begins from nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.schedule import CosineCycles, SwapCycles, Warmed, cycle_ends
from gossamer.errors import InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.gradient import GradientMethod
from gossamer.inference.method import Method, StepInfo
from gossamer.inference.state import not_own_state, require_own_state
from gossamer.inference.subspace import SwapSettings
from gossamer.likelihoods import Likelihood
from gossamer.nn.replica import replicate
from gossamer.prediction import NoiseDraws, Posterior, mixture

Kept = dict[str, dict[str, Tensor]]
"""What is kept of a cycle: the tensors of the network that predicts, and of the likelihood."""


class Cycles:
    """One gradient method whose run is cut into M cycles, behind the protocol of a method.

    Until the first cycle is over its posterior is that of the network in training; then it is the
    even mixture of those kept.

    Args:
        method: Before its first step; its schedules are replaced.
        members: M.
        total_steps: Optimiser steps of all cycles together.
        weights: Weights of the dense network that sparsity is told against.
    """

    def __init__(self, method: Method, members: int, total_steps: int, weights: int) -> None:
        if not isinstance(method, GradientMethod) or not method.may_cycle:
            raise InvalidValue(
                "harvest",
                "cycles",
                f"needs networks that predict by themselves, which {method.name} has not",
                "use harvest='runs'",
            )
        config = method.config
        if config.lr_schedule != "cosine":
            raise InvalidValue(
                "lr_schedule",
                config.lr_schedule,
                "lets no cycle come to rest",
                "use 'cosine' with harvest='cycles'",
            )
        for setting in ("average", "lr_floor"):
            if getattr(config, setting) > 0.0:
                raise InvalidValue(
                    setting,
                    getattr(config, setting),
                    "and cycles are two ways to use the end of a run",
                    "set one of them",
                )
        self.method = method
        self.weights = weights
        self.ends = cycle_ends(total_steps, members)
        self.kept: list[Kept] = []
        rising = round(config.lr_warmup * total_steps)
        decay = CosineCycles(self.ends)
        method.lr_schedule = decay if rising == 0 else Warmed(decay, rising)
        if method.subspace is not None:
            assert isinstance(config, SwapSettings)
            rule = SwapCycles(
                self.ends, config.swap_fraction, config.end_fraction, config.update_every
            )
            method.subspace.use_schedule(rule)

    @property
    def name(self) -> str:
        """See ``Method.name``."""
        return self.method.name

    @property
    def model(self) -> torch.nn.Module:
        """The network in training."""
        return self.method.model

    @property
    def likelihood(self) -> Likelihood:
        """That of the network in training."""
        return self.method.likelihood

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self.method.steps

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """One step; at the end of a cycle a copy is kept."""
        info = self.method.step(batch)
        if self.method.steps in self.ends:
            self.kept.append(self._copy())
        return info

    def posterior(self) -> Posterior:
        """The even mixture of the networks kept; before there is one, that in training."""
        present = self.method.posterior()
        if not self.kept:
            return present
        found = [self._posterior(one, present) for one in self.kept]
        return mixture(found, weights=self.weights)

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``; with the networks kept."""
        return {
            "method": self.name,
            "cycles": list(self.ends),
            "training": self.method.state_dict(),
            "kept": [{part: dict(held) for part, held in one.items()} for one in self.kept],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if state.get("method") != self.name or state.get("cycles") != list(self.ends):
            raise not_own_state(self.name, state.get("method"))
        require_own_state(self.method, state["training"])
        self.method.load_state_dict(state["training"])
        place = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        self.kept = [
            {part: {n: t.to(place) for n, t in held.items()} for part, held in one.items()}
            for one in state["kept"]
        ]

    def _copy(self) -> Kept:
        posterior = self.method.posterior()
        parts = {"network": posterior.draws.network, "likelihood": posterior.likelihood}
        return {
            part: {name: t.detach().clone() for name, t in module.state_dict().items()}
            for part, module in parts.items()
        }

    def _posterior(self, kept: Kept, present: Posterior) -> Posterior:
        """A posterior over tensors that nobody trains on."""
        network = replicate(present.draws.network, kept["network"])
        likelihood = replicate(present.likelihood, kept["likelihood"])
        assert isinstance(likelihood, Likelihood)
        return Posterior(NoiseDraws(network), likelihood)
