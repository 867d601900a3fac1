"""What a step learns from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import InvalidData


class Batch(NamedTuple):
    """Examples of one step.

    Attributes:
        x: Inputs ``[B, ...]``.
        y: Targets ``[B, ...]``.
        weight: Weight of each example ``[B]``, or ``None`` for 1 each. An example of weight 2
            counts as two: the loss is the mean of weight · nll over the rows of the batch, and
            ``num_data`` stays the number of rows.
        left_out: Numbers of the members that must not learn from each example, int64 ``[B, T]``,
            or ``None``; only several members know what to do with it.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    left_out: Tensor | None = None

    @classmethod
    def of(cls, given: Batch | tuple[Tensor, ...], *, for_members: bool = False) -> Batch:
        """A batch as it is, or from ``(x, y)`` or ``(x, y, weight)``; the weights are checked.

        Args:
            given: What a step was called with.
            for_members: Whether the caller hands each example on to the members that may see it.

        Raises:
            InvalidData: Inputs of several tensors; weights that are no vector of the length of the
                batch, negative or not finite; examples to be left out by somebody who cannot.
        """
        batch = cls(*given)
        if batch.left_out is not None and not for_members:
            raise InvalidData(
                "left_out",
                tuple(batch.left_out.shape),
                "is for several members: one network cannot leave out what it learns from",
                "build the method with members and leave_out",
            )
        if isinstance(batch.x, tuple | list | dict):
            raise InvalidData(
                "x",
                type(batch.x).__name__,
                "must be a tensor: methods train networks of one argument",
                "train others in a loop of your own, see docs/custom-loops.md",
            )
        weight = batch.weight
        if weight is None:
            return batch
        rows = batch.x.shape[0]
        if weight.shape != (rows,):
            raise InvalidData("weight shape", tuple(weight.shape), f"must be ({rows},), one each")
        if not bool(((weight >= 0.0) & weight.isfinite()).all()):
            raise InvalidData("weight", None, "must be finite and not negative everywhere")
        return batch

    def seen_by(self, member: int) -> Batch:
        """What one member learns from: the examples that it does not leave out.

        Where fewer than two are left, which BatchNorm cannot train on, it gets the whole batch with
        weight 0 instead: a step that learns nothing, so that all members keep the same count.
        """
        if self.left_out is None:
            return self
        kept = (self.left_out != member).all(1).nonzero().squeeze(1)
        if len(kept) < min(2, len(self.x)):
            return Batch(self.x, self.y, self.x.new_zeros(len(self.x), dtype=torch.float32))
        weight = None if self.weight is None else self.weight.index_select(0, kept)
        return Batch(self.x.index_select(0, kept), self.y.index_select(0, kept), weight)

    def parts(self, count: int) -> list[Batch]:
        """The batch in ``count`` consecutive parts of nearly equal size, none of them empty."""
        rows = self.x.shape[0]
        if count == 1 or rows < 2:
            return [self]
        xs, ys = self.x.tensor_split(min(count, rows)), self.y.tensor_split(min(count, rows))
        if self.weight is None:
            return [Batch(x, y) for x, y in zip(xs, ys, strict=True)]
        weights = self.weight.tensor_split(min(count, rows))
        return [Batch(*part) for part in zip(xs, ys, weights, strict=True)]
