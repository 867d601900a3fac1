"""BatchNorm, a residual and a ReLU, in one pass where the norm offers it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class FusingNorm(Protocol):
    """What a norm offers that can do the sum and the ReLU after it in its own pass.

    This is all that :func:`norm_relu` asks of a norm, and a module of any make may offer it:
    whenever ``norm.fuses(relu)`` holds, ``norm(x, residual, relu=True)`` must give the value and
    the gradients of ``relu(norm(x) + residual)``, and change the same state.
    """

    def fuses(self, relu: nn.Module) -> bool:
        """Whether this norm may, at this moment, do the work of the activation after it.

        It must say no to what it cannot compute, and to modules with hooks, which would not see the
        values that they wait for.

        Args:
            relu: The module that would follow.
        """

    def forward(
        self,
        input: Tensor,  # noqa: A002 (torch's name)
        residual: Tensor | None = None,
        *,
        relu: bool = False,
    ) -> Tensor:
        """The normalised input; plus the residual if there is one; rectified if asked for.

        Args:
            input: What the norm takes.
            residual: Of the shape of ``input``.
            relu: Whether to rectify the result.
        """


def norm_relu(
    norm: nn.Module, relu: nn.Module, x: Tensor, residual: Tensor | None = None
) -> Tensor:
    """``relu(norm(x) + residual)``, the tail of a residual block.

    A :class:`FusingNorm` may do it in one pass over the data; any other modules do it one after the
    other.

    Args:
        norm: Mostly a BatchNorm layer.
        relu: The activation.
        x: What the norm takes.
        residual: Of the shape of ``x``; ``None`` for none.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 3, 4, 4)
        >>> norm_relu(nn.BatchNorm2d(3), nn.ReLU(), x, residual=x).shape
        torch.Size([2, 3, 4, 4])
    """
    # By name: isinstance with a protocol takes 20 times as long, at every norm of every pass.
    fuses = getattr(norm, "fuses", None)
    if fuses is not None and fuses(relu):
        y: Tensor = norm(x, residual, relu=True)
        return y
    y = norm(x)
    out: Tensor = relu(y if residual is None else y + residual)
    return out


class NormReLUStem(nn.Sequential):
    """A convolution, a norm, a ReLU, and what may follow them, with ``norm_relu``."""

    def forward(self, x: Tensor) -> Tensor:
        """What ``nn.Sequential`` gives."""
        convolution, norm, relu, *rest = self
        y = norm_relu(norm, relu, convolution(x))
        for module in rest:
            y = module(y)
        return y
