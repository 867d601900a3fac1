"""Optimiser state that follows its weight through a swap."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.core.swap import follow
from gossamer.errors import InvalidValue

FIRST_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "grad_avg", "prev", "ax"})
"""State that averages gradients or steps: 0 for a fresh weight."""

SECOND_MOMENTS = frozenset(
    {
        "exp_avg_sq",
        "max_exp_avg_sq",
        "square_avg",
        "acc_delta",
        "sum",
        "exp_inf",
        "variance",
        "step_size",
    }
)
"""State that measures the size of gradients.

The layer's mean over the kept ones for a fresh weight. Zero would make Adam's first
steps up to (1 - β₁)/√(1 - β₂) = 3.2 times the learning rate, and several times that over the
following ones.
"""


def check_optimizer(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Raise, before anything moves, where state of the optimiser could not follow a swap."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
                _refuse(optimizer, name, f"{len(value)} tensors", "its parameter's shape")
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.dim() > 0 and value.shape != parameter.shape:
                wanted = f"the shape {tuple(parameter.shape)}"
                _refuse(optimizer, name, tuple(value.shape), wanted)


def follow_optimizer(optimizer: Optimizer, parameter: nn.Parameter, source: Tensor) -> None:
    """Carry every state tensor of ``parameter`` to the new support, in place; scalars stay.

    Args:
        optimizer: One that passed ``check_optimizer``.
        parameter: Vector over the support.
        source: int64 ``[nnz]``, see ``SwapPlan``.
    """
    for name, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, Tensor) and value.dim() > 0:
            value.copy_(follow(value, source, _fresh_value(name, value, source, optimizer)))


def shrink_optimizer(optimizer: Optimizer, parameter: nn.Parameter, keep: Tensor) -> None:
    """Drop the state of weights that leave for good; scalars stay.

    Args:
        optimizer: One that passed ``check_optimizer``.
        parameter: Vector over the support.
        keep: bool ``[nnz]``.
    """
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            state[name] = value[keep]


def _refuse(optimizer: Optimizer, name: str, value: object, wanted: str) -> None:
    raise InvalidValue(
        f"state {name!r} of {type(optimizer).__name__}",
        value,
        f"must be scalar or of {wanted} to follow a swap",
        "use an optimiser with elementwise state, such as SGD, Adam or RMSprop",
    )


def _fresh_value(name: str, value: Tensor, source: Tensor, optimizer: Optimizer) -> Tensor | float:
    if name in SECOND_MOMENTS:
        stayed = source[source >= 0]
        return value[stayed].mean() if stayed.numel() else value.mean()
    if name not in FIRST_MOMENTS:
        warnings.warn(
            f"state {name!r} of {type(optimizer).__name__} is not known to gossamer: "
            "fresh weights start with 0 there",
            stacklevel=5,
        )
    return torch.zeros((), dtype=value.dtype).item()
