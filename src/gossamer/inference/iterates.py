"""Mean, variance and last points of the iterates of a run, in float32 or better.

Welford's recurrence: E[w²] - mean² loses a quarter of the variance of a float32 weight whose spread
is a thousandth of its mean, and is negative for half of those with a ten-thousandth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue


class IterateMoments:
    """Of tensors that are looked at again and again, by their names.

    Args:
        rank: How many of the last points are kept; 0 for none.

    Attributes:
        count: Points seen.
        mean: Of each tensor.
        last: The latest points, the oldest first.
    """

    def __init__(self, rank: int) -> None:
        if rank < 0:
            raise InvalidValue("rank", rank, "must not be negative")
        self.rank = rank
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self.last: list[dict[str, Tensor]] = []
        self._squares: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """See one more point; it is copied."""
        points = {name: _precise(t.detach()) for name, t in tensors.items()}
        if self.count == 0:
            self.mean = {name: torch.zeros_like(p) for name, p in points.items()}
            self._squares = {name: torch.zeros_like(p) for name, p in points.items()}
        self.count += 1
        for name, point in points.items():
            before = point - self.mean[name]
            self.mean[name].add_(before, alpha=1.0 / self.count)
            self._squares[name].addcmul_(before, point - self.mean[name])
        if self.rank:
            self.last = self.last[-(self.rank - 1) :] if self.rank > 1 else []
            self.last.append({name: p.clone() for name, p in points.items()})

    def variance(self, name: str) -> Tensor:
        """Σ (w - mean)²/(n - 1) of a tensor; at least two points must have been seen."""
        if self.count < 2:
            raise InvalidValue("points", self.count, "must be at least 2 for a variance")
        return self._squares[name] / (self.count - 1)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "count": self.count,
            "mean": dict(self.mean),
            "squares": dict(self._squares),
            "last": [dict(point) for point in self.last],
        }

    def load_state_dict(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Go on where ``state`` was taken.

        Args:
            state: Of ``state_dict``.
            like: The tensors that are looked at: names, shapes and device.
        """
        parts = [state["mean"], state["squares"], *state["last"]] if state["count"] else []
        for part in parts:
            found = {name: tuple(t.shape) for name, t in part.items()}
            if found != {name: tuple(t.shape) for name, t in like.items()}:
                raise InvalidData("moments", sorted(found), "are of other tensors")
        mean, squares, *last = [_copied(part, like) for part in parts] if parts else [{}, {}]
        self.count, self.mean, self._squares, self.last = int(state["count"]), mean, squares, last


def _precise(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _copied(part: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: part[name].to(like[name].device, copy=True) for name in like}
