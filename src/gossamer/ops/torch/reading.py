"""A dense linear map most of whose inputs have weight 0 for now.

Dynamic pruning with feedback, Eq. (8) of cvadam2023, wants the gradient of all weights at a point
where whole columns of them are 0. The forward pass then need not read those inputs; the backward
pass reads all of them, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.torch_private import is_forward_differentiated, is_transformed, version_of

FEWEST_SKIPPED = 2**18
"""Values of the input that must be left out: with fewer torch's own product takes no longer."""
MOST_READ = 0.125
"""Share of the inputs up to which gathering them is worth it."""


@dataclass(frozen=True, eq=False)
class ReadInputs:
    """Which columns of a weight are not 0, said of the values that it has now.

    Attributes:
        inputs: int64 ``[k]``.
        values: The vector that it was said of.
        version: How often that had been changed in place.
    """

    inputs: Tensor
    values: Tensor
    version: int

    @classmethod
    def of(cls, inputs: Tensor, values: Tensor) -> ReadInputs:
        """Said of ``values`` as they are."""
        return cls(inputs, values, version_of(values))

    def holds_for(self, values: Tensor) -> bool:
        """Whether ``values`` are those that it was said of, unchanged."""
        return values is self.values and version_of(values) == self.version

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of a layer has other values, of which nothing was said."""
        return type(None), ()


def skips(x: Tensor, weight: Tensor, bias: Tensor | None, read: Tensor) -> bool:
    """Whether ``reading`` takes this call, and is worth it.

    Autocast, torch.func transforms and forward-mode differentiation need operators that torch
    knows from inside: they take torch's own product.
    """
    if torch.compiler.is_compiling() or is_transformed():
        return False
    inputs = weight.shape[1]
    return (
        x.device.type == "cpu"
        and x.dim() >= 1
        and x.shape[-1] == inputs
        and read.numel() <= MOST_READ * inputs
        and x[..., :1].numel() * (inputs - read.numel()) >= FEWEST_SKIPPED
        and x.dtype == weight.dtype
        and (bias is None or bias.dtype == x.dtype)
        and not torch.is_autocast_enabled("cpu")
        and not is_forward_differentiated()
    )


def reading(x: Tensor, weight: Tensor, bias: Tensor | None, read: Tensor) -> Tensor:
    """``F.linear(x, weight, bias)`` where all columns of ``weight`` but ``read`` are 0.

    Args:
        x: ``[..., in]``.
        weight: ``[out, in]``; its gradient is that of every weight.
        bias: ``[out]`` or ``None``.
        read: int64 ``[k]``, the columns that may differ from 0.

    Returns:
        ``[..., out]``.
    """
    out: Tensor = _Reading.apply(x, weight, bias, read)  # type: ignore[no-untyped-call]
    return out


class _Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, read: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, read)
        return F.linear(x.index_select(-1, read), weight.index_select(1, read), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, read = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0] and torch.is_grad_enabled():
            to_x = gradient @ weight  # to be differentiated again, also by weights that are 0
        elif ctx.needs_input_grad[0]:
            kept = gradient @ weight.index_select(1, read)
            to_x = x.new_zeros(x.shape).index_copy(-1, read, kept)
        if ctx.needs_input_grad[1]:
            to_weight = rows.t() @ x.reshape(-1, x.shape[-1])
        if ctx.needs_input_grad[2]:
            to_bias = rows.sum(0)
        return to_x, to_weight, to_bias, None
