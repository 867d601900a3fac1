"""BatchNorm, a residual and a ReLU as one module, so that an engine may do them in one pass."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class BatchNormReLU2d(nn.BatchNorm2d):
    """relu(batchnorm(x) + residual), the tail of a residual block.

    Arguments, parameters, buffers and their names are those of ``nn.BatchNorm2d``. A network
    that Gossamer converts computes it in one pass over the data, in training and in evaluation;
    as three modules it takes as many passes.

    Example:
        >>> import torch
        >>> norm = BatchNormReLU2d(3)
        >>> x = torch.randn(2, 3, 4, 4)
        >>> norm(x).shape, norm(x, x).shape  # without and with a residual
        (torch.Size([2, 3, 4, 4]), torch.Size([2, 3, 4, 4]))
    """

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002
        """``[B, C, H, W]``, and a residual of the same shape; the arguments are not changed."""
        y = super().forward(input)
        return F.relu(y if residual is None else y + residual, inplace=True)
