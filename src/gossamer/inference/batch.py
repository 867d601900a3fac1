"""What a step learns from."""

from __future__ import annotations

from typing import NamedTuple

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
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    @classmethod
    def of(cls, given: Batch | tuple[Tensor, ...]) -> Batch:
        """A batch as it is, or from ``(x, y)`` or ``(x, y, weight)``; the weights are checked.

        Raises:
            InvalidData: Inputs of several tensors; weights that are no vector of the length of the
                batch, negative or not finite.
        """
        batch = cls(*given)
        if not isinstance(batch.x, Tensor):
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
