"""Posterior draws of a weight, and products with several of them in turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.ops.noise import normal_like


def draw(mean: Tensor, std: Tensor, seed: Tensor) -> Tensor:
    """θ = mean + std ⊙ ε, ``[nnz]`` in the dtype of ``mean``; ``std`` is float32 at least."""
    drawn = mean.to(std.dtype) + std * normal_like(seed, mean)
    return drawn.to(mean.dtype)


def one_by_one(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, mean: Tensor, std: Tensor, seeds: Tensor
) -> Tensor:
    """The samples in turn, by any backend's ``product(rows, values)``.

    Args:
        product: Maps rows ``[B, ...]`` by values ``[nnz]``.
        x: ``[S · B, ...]``: the B rows of sample 0, then those of sample 1.
        mean: ``[nnz]``.
        std: ``[nnz]``.
        seeds: int64 ``[S]``.

    Returns:
        ``[S · B, ...]``.
    """
    parts = zip(torch.chunk(x, seeds.numel()), seeds.unbind(), strict=True)
    return torch.cat([product(rows, draw(mean, std, seed)) for rows, seed in parts])
