"""The part of a method's state that all methods have: saved alike, and refused alike."""

from __future__ import annotations

import copy
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

from gossamer.errors import InvalidValue
from gossamer.likelihoods import Likelihood
from gossamer.nn import adopt, restore_backends, sparse_layers


class Stepped(Protocol):
    """What every method has that steps a network with an optimiser."""

    name: str
    model: nn.Module
    likelihood: Likelihood
    optimizer: Any
    steps: int


def common_state(method: Stepped) -> dict[str, Any]:
    """Name, network, likelihood, optimiser, steps, and the backends that the layers run on."""
    layers = sparse_layers(method.model)
    return {
        "method": method.name,
        "model": dict(method.model.state_dict()),
        "likelihood": dict(method.likelihood.state_dict()),
        "optimizer": method.optimizer.state_dict(),
        "steps": method.steps,
        "backends": {name: layer.backend.name for name, layer in layers.items()},
    }


def require_own_state(method: Stepped, state: dict[str, Any]) -> None:
    """Raise unless ``state`` was saved by a method of this name.

    Earlier states of gradient methods have no name: what else is in them must do.
    """
    saved = state.get("method")
    if (saved or method.name) != method.name or "model" not in state:
        raise not_own_state(method.name, saved)
    # Asked before anything is loaded: half a state is worse than none. Supports may come and go.
    names, known = (
        {name for name in found if name.rpartition(".")[2] != "indices"}
        for found in (state["model"], method.model.state_dict())
    )
    groups = [len(group["params"]) for group in method.optimizer.param_groups]
    saved_groups = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
    if names != known or groups != saved_groups:
        raise not_own_state(method.name, saved)


def not_own_state(name: str, saved: object = None) -> InvalidValue:
    """The refusal of a foreign state."""
    rule = f"was not saved by a {name} run with these settings"
    return InvalidValue("state", saved, rule, "load the state of such a run")


def saved_backends(state: dict[str, Any]) -> dict[str, str]:
    """What every layer ran on; earlier states call it ``engines``."""
    found: dict[str, str] = state.get("backends", state.get("engines", {}))
    return found


def load_common_state(method: Stepped, state: dict[str, Any]) -> None:
    """Go on where ``common_state`` was taken; supports may have other sizes than now."""
    adopt(method.model, state["model"])
    method.likelihood.load_state_dict(state["likelihood"])
    restore_backends(method.model, saved_backends(state))
    optimizer: Optimizer = method.optimizer
    # A copy: torch keeps the given tensors, and two methods would then share their moments.
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    method.steps = int(state["steps"])
