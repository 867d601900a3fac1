"""BatchNorm, a residual and a ReLU, in one pass where the norm offers it."""

from __future__ import annotations

from torch import Tensor, nn


def norm_relu(
    norm: nn.Module, relu: nn.Module, x: Tensor, residual: Tensor | None = None
) -> Tensor:
    """``relu(norm(x) + residual)``, the tail of a residual block.

    The BatchNorm layers of a network that Gossamer converted do it in one pass over the data, in
    training and in evaluation; any other modules do it one after the other.

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
