"""A subspace and its objectives in a loop that somebody else runs.

The faces to other frameworks (``gossamer.lightning``, ``gossamer.hf``) share this: when a subspace
is built, what is in its state, and what such a loop cannot do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from gossamer.core.addition import addition_rule
from gossamer.errors import CheckpointError, InvalidValue
from gossamer.inference.objective import ELBO
from gossamer.inference.subspace import Subspace, SwapRule


class Carried:
    """Builds a ``Subspace`` once the loop has its optimisers, and carries its state.

    Args:
        settings: Of ``Subspace``, ``total_steps`` among them if the loop is not to be asked.

    Attributes:
        subspace: ``None`` until ``begin``.
        objectives: Their schedules advance with the steps of the subspace.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        rule = settings.get("rule") or SwapRule()
        addition = settings.get("addition", rule.addition)
        if addition_rule(addition).own_pass:
            raise InvalidValue(
                "addition",
                addition,
                "needs passes of its own, which a callback cannot run",
                "use 'grad', or gossamer.Subspace in a loop of your own",
            )
        self.settings = dict(settings)
        self.subspace: Subspace | None = None
        self.objectives: list[ELBO] = []

    def begin(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        total_steps: int,
        objectives: Iterable[ELBO],
        state: dict[str, Any] | None,
    ) -> Subspace:
        """Start a run, or go on where ``state`` was taken; the latter draws no random number."""
        settings = {"total_steps": total_steps, **self.settings}
        if state is not None:
            settings.setdefault("generator", torch.Generator())
        self.subspace = Subspace(model, optimizers, **settings)
        self.objectives = list(objectives)
        for objective in self.objectives:
            objective.count_by(self.subspace)
        if state is not None:
            self._load(self.subspace, state)
        return self.subspace

    def require_begun(self) -> Subspace:
        """The subspace of the run; raises outside of one."""
        if self.subspace is None:
            raise InvalidValue("subspace", None, "exists from the start of training on")
        return self.subspace

    def state_dict(self) -> dict[str, Any]:
        """State of the subspace and of the objectives; empty before the first run."""
        if self.subspace is None:
            return {}
        return {
            "subspace": self.subspace.state_dict(),
            "objectives": [objective.state_dict() for objective in self.objectives],
        }

    def _load(self, subspace: Subspace, state: dict[str, Any]) -> None:
        if len(state.get("objectives", ())) != len(self.objectives):
            raise CheckpointError(
                "state of SubspaceCallback",
                f"{len(state.get('objectives', ()))} ELBO",
                f"does not fit a script with {len(self.objectives)}",
                "resume with the script that wrote the checkpoint",
            )
        subspace.load_state_dict(state["subspace"])
        for objective, saved in zip(self.objectives, state["objectives"], strict=True):
            objective.load_state_dict(saved)


def require_state(state: dict[str, Any] | None, step: int) -> None:
    """Raise where a run goes on at ``step`` and nobody has kept the state of its subspace."""
    if not state and step > 0:
        raise CheckpointError(
            "checkpoint",
            f"step {step}",
            "has no state of SubspaceCallback: swaps and the KL's schedule would start anew",
            "resume from one that was written with the callback",
        )
