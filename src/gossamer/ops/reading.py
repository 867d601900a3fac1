"""A dense linear map most of whose inputs have weight 0 for now.

Dynamic pruning with feedback, Eq. (8) of cvadam2023, wants the gradient of all weights at a point
where whole columns of them are 0. The forward pass then need not read those inputs; the backward
pass reads all of them, once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FEWEST_SKIPPED = 2**18
"""Values of the input that must be left out: with fewer torch's own product takes no longer."""


def skips(x: Tensor, weight: Tensor, bias: Tensor | None, read: Tensor) -> bool:
    """Whether ``reading`` takes this call, and is worth it.

    Half precision also comes in through autocast, and torch.func transforms need operators that
    torch knows from inside: both take torch's own product.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack():
        return False
    inputs = weight.shape[1]
    return (
        x.numel() // max(inputs, 1) * (inputs - read.numel()) >= FEWEST_SKIPPED
        and 2 * read.numel() <= inputs
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and (bias is None or bias.dtype == x.dtype)
        and not torch.is_autocast_enabled("cpu")
        and x.dim() >= 1
        and x.shape[-1] == inputs
    )


def reading(x: Tensor, weight: Tensor, bias: Tensor | None, read: Tensor) -> Tensor:
    """``F.linear(x, weight, bias)`` where all columns of ``weight`` but ``read`` are 0.

    Args:
        x: ``[..., in]``.
        weight: ``[out, in]``; its gradient is that of every weight.
        bias: ``[out]`` or ``None``.
        read: int64 ``[k]``, the columns that may differ from 0.

    Returns:
        ``[..., out]``, differentiable once.
    """
    out: Tensor = _Reading.apply(x, weight, bias, read)  # type: ignore[no-untyped-call]
    return out


class _Reading(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, read: Tensor) -> Tensor:
        return F.linear(x.index_select(-1, read), weight.index_select(1, read), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, read = inputs
        ctx.save_for_backward(x, weight.index_select(1, read), read)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kept, read = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_x = torch.zeros_like(x).index_copy_(-1, read, gradient @ kept)
        if ctx.needs_input_grad[1]:
            to_weight = rows.t() @ x.reshape(-1, x.shape[-1])
        if ctx.needs_input_grad[2]:
            to_bias = rows.sum(0)
        return to_x, to_weight, to_bias, None
