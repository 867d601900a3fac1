"""The support: the set of kept weights of one tensor, with exact integer size.

A support is a sorted vector of flat indices into the dense weight, or *full*, in which case no
index is stored at all. It is a value: set operations return new supports and nothing here changes a
tensor in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from gossamer.errors import InvalidValue

_INT32_LIMIT = 2**31


def index_dtype(numel: int) -> torch.dtype:
    """The integer type of flat indices: int32 below 2^31 elements, else int64."""
    return torch.int32 if numel < _INT32_LIMIT else torch.int64


@dataclass(frozen=True, eq=False)
class Support:
    """The kept positions of a weight of a given shape.

    Args:
        shape: Dense shape of the weight.
        indices: Sorted distinct flat positions ``[nnz]`` (int32, or int64 from 2^31 elements on),
            or ``None`` for all of them.

    Example:
        >>> s = Support.from_positions(torch.tensor([5, 1]), (2, 3))
        >>> s.nnz, s.sparsity, s.positions().tolist()
        (2, 0.6666666666666667, [1, 5])
    """

    shape: tuple[int, ...]
    indices: Tensor | None

    @classmethod
    def full(cls, shape: Sequence[int]) -> Support:
        """All positions kept; no index is stored."""
        return cls(tuple(shape), None)

    @classmethod
    def from_positions(cls, positions: Tensor, shape: Sequence[int]) -> Support:
        """Support of the given flat positions in any order.

        Raises on repeats and on positions outside the weight.
        """
        shape = tuple(shape)
        numel = prod(shape)
        ordered = positions.to(torch.int64).sort().values
        check_indices(ordered, numel, "support")
        if ordered.numel() == numel:
            return cls.full(shape)
        return cls(shape, ordered.to(index_dtype(numel)))

    @classmethod
    def random(
        cls, shape: Sequence[int], nnz: int, generator: torch.Generator | None = None
    ) -> Support:
        """``nnz`` positions drawn uniformly without replacement."""
        _check_nnz(nnz, prod(shape))
        return cls.from_positions(sample_distinct(prod(shape), nnz, generator), shape)

    @classmethod
    def largest(cls, scores: Tensor, nnz: int) -> Support:
        """The ``nnz`` positions of the largest scores; ties go to the lower position."""
        _check_nnz(nnz, scores.numel())
        order = scores.detach().flatten().sort(descending=True, stable=True).indices
        return cls.from_positions(order[:nnz].cpu(), scores.shape)

    @property
    def numel(self) -> int:
        """Number of positions of the dense weight."""
        return prod(self.shape)

    @property
    def nnz(self) -> int:
        """Number of kept positions."""
        return self.numel if self.indices is None else self.indices.numel()

    @property
    def is_full(self) -> bool:
        """Whether every position is kept."""
        return self.indices is None

    @property
    def density(self) -> float:
        """Share kept."""
        return self.nnz / self.numel

    @property
    def sparsity(self) -> float:
        """Share removed."""
        return 1.0 - self.density

    def positions(self) -> Tensor:
        """The kept flat positions as int64 ``[nnz]``, sorted."""
        if self.indices is None:
            return torch.arange(self.numel)
        return self.indices.to(torch.int64)

    def slots(self, positions: Tensor) -> Tensor:
        """For each flat position its place in the value vector, or -1 where it is not kept."""
        mine = self.positions().to(positions.device)
        if mine.numel() == 0:
            return torch.full_like(positions, -1)
        found = torch.searchsorted(mine, positions).clamp_(max=mine.numel() - 1)
        return torch.where(mine[found] == positions, found, -1)

    def contains(self, positions: Tensor) -> Tensor:
        """Boolean mask: which of the flat positions are kept."""
        return self.slots(positions) >= 0

    def union(self, other: Support) -> Support:
        """Positions kept by either."""
        self._check_same_shape(other)
        both = torch.unique(torch.cat([self.positions(), other.positions()]))
        return Support.from_positions(both, self.shape)

    def intersection(self, other: Support) -> Support:
        """Positions kept by both."""
        self._check_same_shape(other)
        mine = self.positions()
        return Support.from_positions(mine[other.contains(mine)], self.shape)

    def difference(self, other: Support) -> Support:
        """Positions kept here and not by the other."""
        self._check_same_shape(other)
        mine = self.positions()
        return Support.from_positions(mine[~other.contains(mine)], self.shape)

    def sample_outside(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` distinct positions off the support, uniform, in memory O(nnz + count).

        Int64, sorted.
        """
        free = self.numel - self.nnz
        if not 0 <= count <= free:
            raise InvalidValue(
                "count", count, f"must lie in [0, {free}], the positions off the support"
            )
        rank = sample_distinct(free, count, generator).sort().values
        if self.nnz == 0 or count == 0:
            return rank
        # The number of free positions before kept position i is positions[i] - i; the inverse of
        # that map turns ranks into positions.
        mine = self.positions().cpu()
        before = mine - torch.arange(mine.numel())
        return rank + torch.searchsorted(before, rank, right=True)

    def same_as(self, other: Support) -> bool:
        """Whether both keep the same positions of the same shape."""
        return self.shape == other.shape and torch.equal(
            self.positions().cpu(), other.positions().cpu()
        )

    def _check_same_shape(self, other: Support) -> None:
        if self.shape != other.shape:
            raise InvalidValue("support shape", other.shape, f"must equal {self.shape}")


def check_indices(indices: Tensor, numel: int, name: str) -> None:
    """Raise unless ``indices`` is a sorted vector of distinct positions in ``[0, numel)``."""
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise InvalidValue(name, indices.dtype, "positions must be integers")
    if indices.dim() != 1:
        raise InvalidValue(name, tuple(indices.shape), "must be a vector of flat positions")
    if indices.numel() == 0:
        return
    low, high = int(indices[0]), int(indices[-1])
    if low < 0 or high >= numel:
        outside = low if low < 0 else high
        raise InvalidValue(name, outside, f"positions must lie in [0, {numel})")
    wide = indices.to(torch.int64)
    if not bool((wide[1:] > wide[:-1]).all()):
        raise InvalidValue(name, None, "positions must be sorted and distinct")


def sample_distinct(n: int, k: int, generator: torch.Generator | None = None) -> Tensor:
    """``k`` distinct integers of ``[0, n)``, uniform over subsets, in no particular order.

    Memory O(k) when ``k`` is far below ``n``.
    """
    if 4 * k >= n:
        return torch.randperm(n, generator=generator)[:k]
    drawn = torch.empty(0, dtype=torch.int64)
    while drawn.numel() < k:
        more = torch.randint(n, (k + k // 2 + 8,), generator=generator)
        drawn = torch.unique(torch.cat([drawn, more]))
    # unique() sorts, so a uniform subset of what was drawn must be chosen by a permutation, not by
    # taking the first ones.
    return drawn[torch.randperm(drawn.numel(), generator=generator)[:k]]


def _check_nnz(nnz: int, numel: int) -> None:
    if not 1 <= nnz <= numel:
        raise InvalidValue("nnz", nnz, f"must lie in [1, {numel}]", "lower the sparsity")
