"""Groups of weights that live or die together: kernels, input units, output units, single weights.

A group is a number per kept weight. Statistics of groups are vectors over all groups of the dense
weight; a group without a kept weight has statistic 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.support import Support
from gossamer.errors import UnknownName

Group = Literal["kernel", "input", "output", "weight"]
GROUPS: tuple[Group, ...] = ("kernel", "input", "output", "weight")

Statistic = Literal["mean_square", "range", "abs_range"]
STATISTICS: tuple[Statistic, ...] = ("mean_square", "range", "abs_range")


@dataclass(frozen=True)
class Units:
    """How a dense weight's flat positions map to input and output units.

    Attributes:
        shape: Of the dense weight: ``[out, in/groups, *kernel]``, or ``[in, out/groups, *kernel]``
            where ``transposed``.
        groups: Channel groups of a convolution.
        transposed: Whether inputs come first.
    """

    shape: tuple[int, ...]
    groups: int = 1
    transposed: bool = False

    def of(self, positions: Tensor, group: Group) -> Tensor:
        """The group of every flat position: int64 of the same shape."""
        if group not in GROUPS:
            raise UnknownName("group", str(group), GROUPS)
        if group == "weight":
            return positions
        taps = prod(self.shape[2:])
        slow, fast = positions // (taps * self.shape[1]), positions // taps % self.shape[1]
        if group == "kernel":
            return positions // taps
        if (group == "input") == self.transposed:
            return slow
        # The fast index counts within a channel group, which the slow one tells.
        return slow // (self.shape[0] // self.groups) * self.shape[1] + fast

    def count(self, group: Group) -> int:
        """Number of groups of the dense weight."""
        if group == "weight":
            return prod(self.shape)
        if group == "kernel":
            return self.shape[0] * self.shape[1]
        if (group == "input") == self.transposed:
            return self.shape[0]
        return self.shape[1] * self.groups

    def size(self, group: Group) -> int:
        """Dense weights per group."""
        return prod(self.shape) // self.count(group)


@dataclass(frozen=True, eq=False)
class Grouping:
    """The groups of the kept weights of one layer.

    Attributes:
        ids: int64 ``[nnz]``.
        count: Number of groups of the dense weight.
        size: Dense weights per group; where fewer are kept, the others are zeros of the group.
    """

    ids: Tensor
    count: int
    size: int = 1

    @classmethod
    def of(cls, support: Support, units: Units, group: Group) -> Grouping:
        """The groups of a support."""
        ids = units.of(support.positions(), group)
        return cls(ids, units.count(group), units.size(group))

    def to(self, device: torch.device) -> Grouping:
        """The same on another device."""
        return replace(self, ids=self.ids.to(device))

    def statistic(self, values: Tensor, statistic: Statistic) -> Tensor:
        """A number per group from the kept values ``[nnz]``: ``[count]``.

        ``mean_square`` over the kept weights of the group; ``range`` is max - min, Eq. (9) as the
        authors compute it; ``abs_range`` the same of |w|, as it is printed. Ranges take in the
        zeros: else a group with one weight left would have none, however large the weight.
        """
        if statistic == "mean_square":
            sums = values.new_zeros(self.count).index_add_(0, self.ids, values.square())
            return sums / self.sizes().clamp(min=1)
        if statistic not in STATISTICS:
            raise UnknownName("statistic", str(statistic), STATISTICS)
        values = values.abs() if statistic == "abs_range" else values
        zero = values.new_zeros(self.count)
        top = zero.scatter_reduce(0, self.ids, values, "amax", include_self=False)
        low = zero.scatter_reduce(0, self.ids, values, "amin", include_self=False)
        has_zeros = self.sizes() < self.size
        top = torch.where(has_zeros, top.clamp(min=0.0), top)
        low = torch.where(has_zeros, low.clamp(max=0.0), low)
        return top - low

    def sizes(self) -> Tensor:
        """Kept weights per group: int64 ``[count]``."""
        return torch.bincount(self.ids, minlength=self.count)
