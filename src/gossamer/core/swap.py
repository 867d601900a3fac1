"""One swap: which positions leave, which enter, and how vectors over the support follow.

Lines 9-11 of Algorithm 1 of li2024ssvi, planned over all layers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gossamer.core.support import Support
from gossamer.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class LayerScores:
    """What a swap has to decide by in one layer.

    Attributes:
        support: The present support.
        removal: ``[nnz]``, lowest leave (Sec. 3.3.1).
        own: ``[nnz]``, addition scores at the kept positions (Sec. 3.3.2), used for those that are
            removed.
        candidates: int64 ``[k]``, distinct positions off the support.
        scores: ``[k]``, their addition scores, highest enter.
        leaving: Number of weights to remove, at most ``nnz``.
    """

    support: Support
    removal: Tensor
    own: Tensor
    candidates: Tensor
    scores: Tensor
    leaving: int

    @property
    def most_entering(self) -> int:
        """How many weights could enter: candidates and the removed ones."""
        return self.leaving + self.candidates.numel()


class Budget(Protocol):
    """How many weights enter each layer, of as many as leave all of them.

    Attributes:
        reach: Candidates that a layer should offer, as a multiple of those that leave it.
    """

    reach: int

    def entering(self, layers: Sequence[LayerScores]) -> Sequence[int]:
        """A number per layer, at most its ``most_entering``; their sum is that of ``leaving``."""
        ...


class FixedBudget:
    """Every layer keeps its number of weights, as in both papers."""

    reach = 1

    def entering(self, layers: Sequence[LayerScores]) -> Sequence[int]:
        """As many as leave."""
        return [layer.leaving for layer in layers]


@dataclass(frozen=True, eq=False)
class SwapPlan:
    """The outcome of removal and addition in one layer.

    Attributes:
        support: The new support.
        source: int64 ``[nnz]``: for each new slot the old slot whose value it takes, or -1 for a
            fresh weight.
        removed: int64, sorted positions that left.
        added: int64, sorted positions that entered; as many as ``removed`` under a fixed budget.
    """

    support: Support
    source: Tensor
    removed: Tensor
    added: Tensor


@dataclass(frozen=True)
class LayerSwap:
    """Counts of one layer's swap.

    Weights kept in all, and how many left and entered: as many under a fixed budget.
    """

    nnz: int
    removed: int
    added: int


@dataclass(frozen=True)
class SwapInfo:
    """What a swap did.

    Attributes:
        step: Optimiser steps done.
        fraction: r_t, the share of each layer's weights that was up for removal.
        layers: By layer name. A layer that no backward pass reached is not in it.
    """

    step: int
    fraction: float
    layers: dict[str, LayerSwap]

    @property
    def removed(self) -> int:
        """Weights that left, of all layers together."""
        return sum(layer.removed for layer in self.layers.values())

    @property
    def added(self) -> int:
        """Weights that entered, of all layers together."""
        return sum(layer.added for layer in self.layers.values())


def plan_swaps(layers: Sequence[LayerScores], budget: Budget) -> list[SwapPlan]:
    """One plan per layer; the number of kept weights of all of them together stays exact.

    Raises:
        InvalidValue: The budget gives away more or fewer weights than leave, or more to a layer
            than it can take, or all of a layer's.
    """
    entering = list(budget.entering(layers))
    leaving = sum(layer.leaving for layer in layers)
    if len(entering) != len(layers) or sum(entering) != leaving:
        raise InvalidValue(
            "budget", sum(entering), f"must give all {len(layers)} layers {leaving} weights in all"
        )
    for number, (layer, enters) in enumerate(zip(layers, entering, strict=True)):
        left = layer.support.nnz - layer.leaving
        if not max(0, 1 - left) <= enters <= layer.most_entering:
            rule = f"must let {max(0, 1 - left)} to {layer.most_entering} weights enter"
            raise InvalidValue(f"budget of layer {number}", enters, rule)
    return [plan_swap(layer, enters) for layer, enters in zip(layers, entering, strict=True)]


def plan_swap(layer: LayerScores, entering: int | None = None) -> SwapPlan:
    """Remove the ``leaving`` lowest, then fill up with the best of candidates and removed.

    A removed weight that wins its place back at once is simply kept: it appears in neither
    ``removed`` nor ``added``. Ties are broken in favour of staying, then of the lower position, so
    the outcome does not depend on a sorting algorithm.

    Args:
        layer: The scores.
        entering: How many enter; as many as leave if ``None``.
    """
    support, count = layer.support, layer.leaving
    if not 0 <= count <= support.nnz:
        raise InvalidValue("leaving", count, f"must lie in [0, nnz = {support.nnz}]")
    positions = support.positions().to(layer.removal.device)
    leaving = layer.removal.sort(stable=True).indices[:count].sort().values
    kept = torch.ones(support.nnz, dtype=torch.bool, device=positions.device)
    kept[leaving] = False

    candidates, by_position = layer.candidates.sort()
    pool = torch.cat([positions[leaving], candidates])
    scores = torch.cat([layer.own[leaving], layer.scores[by_position]])
    winners = scores.sort(descending=True, stable=True).indices
    chosen = pool[winners[: count if entering is None else entering]]

    new_positions, _ = torch.cat([positions[kept], chosen]).sort()
    source = support.slots(new_positions.cpu()).to(positions.device)
    fresh = source < 0
    stayed = torch.zeros(support.nnz, dtype=torch.bool, device=positions.device)
    stayed[source[~fresh]] = True
    new_support = Support.from_positions(new_positions.cpu(), support.shape)
    return SwapPlan(new_support, source, positions[~stayed], new_positions[fresh])


def follow(vector: Tensor, source: Tensor, fresh: Tensor | float) -> Tensor:
    """A vector over the old support carried to the new one.

    Slots of fresh weights take the value ``fresh``.
    """
    carried = vector[source.clamp(min=0)]
    return torch.where(
        source >= 0, carried, torch.as_tensor(fresh, dtype=vector.dtype, device=vector.device)
    )
