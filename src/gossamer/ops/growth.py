"""Catching addition scores in a backward pass (Sec. 3.3.2, Eq. 9).

An *armed* layer routes its dense weight through ``probe``, an identity whose backward writes the
gradient's scores into the bounded buffers of a ``Growth``: the k best off the support and those on
it. The buffers are tensors that a registered operator changes in place, so an armed layer compiles
to a second graph without a break. The last backward before a swap counts: each one overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.core.support import Support

_EMPTY = -1


@dataclass(eq=False)
class Growth:
    """Scores caught for one weight.

    Attributes:
        scores: ``[k]`` best addition scores off the support, highest first.
        positions: int64 ``[k]``, their flat positions; -1 until a backward has filled them.
        own: ``[nnz]`` scores on the support.
        dense: ``[numel]`` gradient summed over the uses of a weight in one pass, where it has
            several or several passes are averaged; else ``[0]``.
    """

    scores: Tensor
    positions: Tensor
    own: Tensor
    dense: Tensor

    @classmethod
    def empty(
        cls, support: Support, count: int, device: torch.device, *, keep_dense: bool
    ) -> Growth:
        """Buffers for the ``count`` best positions off ``support``."""
        k = min(count, support.numel - support.nnz)
        return cls(
            scores=torch.zeros(k, device=device),
            positions=torch.full((k,), _EMPTY, dtype=torch.int64, device=device),
            own=torch.zeros(support.nnz, device=device),
            dense=torch.zeros(support.numel if keep_dense else 0, device=device),
        )

    @property
    def is_filled(self) -> bool:
        """Whether a backward pass has reached the weight since it was armed."""
        return bool((self.positions != _EMPTY).all())

    @property
    def is_finite(self) -> bool:
        """Whether no caught score is NaN or infinite."""
        return bool(torch.isfinite(self.scores).all() and torch.isfinite(self.own).all())

    def new_pass(self) -> None:
        """Forget the gradient summed so far: a new forward begins."""
        self.dense.zero_()

    def rank(self, size: Tensor, indices: Tensor) -> None:
        """Fill the buffers from addition scores ``size`` ``[numel]``, all at least 0."""
        kept = indices.to(torch.int64)
        self.own.copy_(size[kept])
        best = size.index_fill(0, kept, -1.0).topk(self.scores.numel())
        self.scores.copy_(best.values)
        self.positions.copy_(best.indices)


@torch.library.custom_op("gossamer::probe", mutates_args=())
def _probe(
    weight: Tensor, indices: Tensor, scores: Tensor, positions: Tensor, own: Tensor, dense: Tensor
) -> Tensor:
    return weight.clone()


@_probe.register_fake
def _(weight: Tensor, *buffers: Tensor) -> Tensor:
    return torch.empty_like(weight)


@torch.library.custom_op(
    "gossamer::catch_scores", mutates_args=("scores", "positions", "own", "dense")
)
def _catch_scores(
    gradient: Tensor, indices: Tensor, scores: Tensor, positions: Tensor, own: Tensor, dense: Tensor
) -> None:
    flat = gradient.detach().flatten().to(scores.dtype)
    if dense.numel() > 0:
        flat = dense.add_(flat)
    Growth(scores, positions, own, dense).rank(flat.abs(), indices)


@_catch_scores.register_fake
def _(gradient: Tensor, *buffers: Tensor) -> None:
    return None


def _setup_probe(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _probe_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    _catch_scores(gradient, *ctx.saved_tensors)
    return gradient, None, None, None, None, None


_probe.register_autograd(_probe_backward, setup_context=_setup_probe)


def probe(weight: Tensor, indices: Tensor, growth: Growth) -> Tensor:
    """``weight``, dense, unchanged; its gradient fills ``growth`` on the way back.

    Gradients may overflow (a loss scaler tries): ask ``Growth.is_finite`` before the scores are
    used.
    """
    out: Tensor = _probe(weight, indices, growth.scores, growth.positions, growth.own, growth.dense)
    return out
