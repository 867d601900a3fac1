"""Parameter groups for any torch optimiser.

Decay where it belongs, a learning rate of its own for the standard deviations.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    std_lr: float | None = None,
    weight_decay: float = 0.0,
    decay_biases: bool = False,
) -> list[dict[str, Any]]:
    """Groups ``weights``, ``std`` and ``biases`` (biases and normalisation) for a torch optimiser.

    Empty ones are left out.

    Args:
        model: Any module.
        lr: Learning rate of everything but the standard deviations.
        std_lr: Learning rate of ``weight_raw_std``; ``lr`` if ``None``.
        weight_decay: For means and deterministic weights; never for ``weight_raw_std``.
        decay_biases: Decay biases and normalisation too, as the SSVI authors do.

    Example:
        >>> bnn = gossamer.to_bayesian(nn.Linear(4, 2))
        >>> [group["name"] for group in parameter_groups(bnn, lr=1e-3, weight_decay=1e-4)]
        ['weights', 'std', 'biases']
    """
    for name, value in (("lr", lr), ("std_lr", std_lr), ("weight_decay", weight_decay)):
        if value is not None and not value >= 0.0:
            raise InvalidValue(name, value, "must not be negative")
    layers = sparse_layers(model).values()
    roles = {id(v.parameter): v.role for layer in layers for v in (*layer.vectors, *layer.factors)}
    weights, std, biases = [], [], []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        role = roles.get(id(parameter))
        if role == "scale":
            std.append(parameter)
        elif role == "value" or parameter.dim() > 1:
            weights.append(parameter)
        else:
            biases.append(parameter)
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": weights, "lr": lr, "weight_decay": weight_decay},
        {"name": "std", "params": std, "lr": lr if std_lr is None else std_lr, "weight_decay": 0.0},
        {
            "name": "biases",
            "params": biases,
            "lr": lr,
            "weight_decay": weight_decay if decay_biases else 0.0,
        },
    ]
    return [group for group in groups if group["params"]]


def decayed_std_groups(optimizer: Optimizer, scales: set[int]) -> list[tuple[str, float]]:
    """Name (or number) and decay of every group that decays one of the given parameters."""
    found = []
    for number, group in enumerate(optimizer.param_groups):
        decay = float(group.get("weight_decay", 0.0))
        if decay and any(id(p) in scales for p in group["params"]):
            found.append((str(group.get("name", number)), decay))
    return found
