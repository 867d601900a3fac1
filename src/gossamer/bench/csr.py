"""Sparse training with what torch itself has: CSR matrices."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn


class CSRLinear(nn.Module):
    """A linear layer on a CSR weight, used as well as it can be used.

    The gradient of the input takes a transposed copy of the pattern (torch's own product with a
    transposed CSR matrix converts it anew each time), that of the weight ``sampled_addmm``, which
    computes the kept entries only. torch has no sparse convolution.

    Args:
        weight: ``[out, in]``; its zeros are removed.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            pattern = weight.detach().to_sparse_csr()
            transposed = weight.detach().t().contiguous().to_sparse_csr()
        self.shape = tuple(weight.shape)
        self.values = nn.Parameter(pattern.values().clone())
        # Where the k-th kept weight of the transposed order lies in the order of the values.
        out = torch.repeat_interleave(torch.arange(weight.shape[0]), pattern.crow_indices().diff())
        self.order = torch.argsort(pattern.col_indices() * weight.shape[0] + out)
        self.rows = (pattern.crow_indices(), pattern.col_indices())
        self.columns = (transposed.crow_indices(), transposed.col_indices())

    def forward(self, x: Tensor) -> Tensor:
        """The linear map of ``x``: ``[B, in] → [B, out]``."""
        y: Tensor = _CSRProduct.apply(x, self.values, self)  # type: ignore[no-untyped-call]
        return y


def _matrix(place: tuple[Tensor, Tensor], values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_csr_tensor(*place, values, shape, check_invariants=False)


class _CSRProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, layer: CSRLinear) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.layer = layer
        return (_matrix(layer.rows, values, layer.shape) @ x.t()).t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, values = ctx.saved_tensors
        layer: CSRLinear = ctx.layer
        transposed = _matrix(layer.columns, values[layer.order], layer.shape[::-1])
        dx = (transposed @ gradient.t()).t()
        pattern = _matrix(layer.rows, values, layer.shape)
        dense = torch.sparse.sampled_addmm(pattern, gradient.t(), x, beta=0.0)
        return dx, dense.values(), None
