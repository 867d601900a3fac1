"""A dense linear map most of whose inputs have weight 0 for now.

Dynamic pruning with feedback, Eq. (8) of cvadam2023, wants the gradient of all weights at a point
where whole columns of them are 0. The forward pass then need not read those inputs; the backward
pass reads all of them, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.growth import Growth
from gossamer.ops.layout import Layout
from gossamer.ops.pattern import Pattern
from gossamer.ops.torch_private import is_forward_differentiated, is_transformed, version_of

if TYPE_CHECKING:
    from gossamer.ops.backend import Backend

FEWEST_SKIPPED = 2**18
"""Values of the input that must be left out: with fewer torch's own product takes no longer."""
MOST_READ = 0.125
"""Share of the inputs up to which gathering them is worth it."""


class ReadingBackend:
    """Stands in for a layer's backend while most of the layer's inputs have weight 0.

    Its product leaves those inputs out. What was said of the zeros holds for those values alone:
    copies, loaded weights and other weights in their place are computed by the backend itself.

    Args:
        inner: The backend of a linear layer with a full support.
        inputs: int64 ``[k]``, the inputs whose weights are not all 0.
        values: The vector that it was said of, as it is now.
    """

    def __init__(self, inner: Backend, inputs: Tensor, values: Tensor) -> None:
        self.inner, self.inputs = inner, inputs
        self._values, self._changes = values, version_of(values)

    def holds_for(self, values: Tensor) -> bool:
        """Whether ``values`` are those that it was said of, unchanged."""
        return values is self._values and version_of(values) == self._changes

    def product(
        self,
        x: Tensor,
        values: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        growth: Growth | None,
    ) -> Tensor:
        """The backend's product, or the same from the inputs that count."""
        # What was derived are kernels of the backend that read a small full support faster.
        is_plain = pattern.indices is None and not pattern.derived
        if is_plain and self.holds_for(values):
            weight = values.view(layout.shape)
            if skips(x, weight, bias, self.inputs):
                return reading(x, weight, bias, self.inputs)
        return self.inner.product(x, values, pattern, layout, bias, growth)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the backend's own."""
        return getattr(self.inner, name)

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a layer has other values, of which nothing was said."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """So has one that was pickled."""
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
