"""The spike-and-slab group prior of EM-MCMC: which groups get which precision, which are zeroed.

Slab precision δ₁ (small), spike precision δ₀ (large). The E step gives a group the spike where its
mean square is below λ₁; the M step is weight decay at the group's precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import torch
from torch import Tensor

from gossamer.core.groups import Grouping, Statistic
from gossamer.errors import InvalidValue


def spike_threshold(slab: float, spike: float, size: int, spike_share: float) -> float:
    """λ₁ = [log(δ₀/δ₁) + (2/|G|) log(p/(1-p))]/(δ₀-δ₁): below it the spike is the likelier.

    Args:
        slab: δ₁ > 0.
        spike: δ₀ > δ₁.
        size: |G|, weights in the group.
        spike_share: p in (0, 1), prior probability of the spike.

    Returns:
        The mean square of the group at which both are equally likely; negative where the spike
        never is.
    """
    if not 0.0 < slab < spike:
        raise InvalidValue("slab, spike", (slab, spike), "need 0 < slab < spike")
    if not 0.0 < spike_share < 1.0:
        raise InvalidValue("spike_share", spike_share, "must lie in (0, 1)")
    if size < 1:
        raise InvalidValue("size", size, "must be at least 1")
    odds = log(spike_share) - log(1.0 - spike_share)
    return (log(spike) - log(slab) + 2.0 / size * odds) / (spike - slab)


def soft_mask(values: Tensor, grouping: Grouping, threshold: float) -> Tensor:
    """The E step: bool ``[nnz]``, true where a weight's group gets the spike (mean square < λ₁)."""
    return (grouping.statistic(values, "mean_square") < threshold)[grouping.ids]


def hard_mask(values: Tensor, grouping: Grouping, statistic: Statistic, threshold: float) -> Tensor:
    """Bool ``[nnz]``, true where a weight's group is zeroed: its statistic is below λ₂.

    Eq. (9) with ``range`` for the channels of a convolution, Eq. (10) with ``mean_square`` for the
    input units of a linear layer.
    """
    return (grouping.statistic(values, statistic) < threshold)[grouping.ids]


def threshold_for(values: Tensor, grouping: Grouping, statistic: Statistic, removed: int) -> float:
    """The λ₂ at which ``hard_mask`` zeroes groups until at least ``removed`` weights are gone.

    Groups leave in the order of their statistic; with ties all of them leave. 0 where nothing has
    to leave, infinity where everything must.
    """
    if removed <= 0:
        return 0.0
    if removed >= values.numel():
        return inf
    sizes = grouping.sizes()
    alive = sizes.nonzero().squeeze(1)
    ordered, order = grouping.statistic(values, statistic)[alive].sort(stable=True)
    gone = sizes[alive][order].cumsum(0)
    last = int(torch.searchsorted(gone, removed))
    # The next statistic that differs: what ties with the last group that leaves goes with it.
    above = ordered[ordered > ordered[last]]
    return float(above[0]) if above.numel() else inf


@dataclass(frozen=True, eq=False)
class Rank:
    """The groups of a layer in an order that holds across layers.

    Attributes:
        statistic: Of the layer's hard mask: ``[groups]``.
        size: What groups of different layers are compared by; rises with the statistic.
        weights: Kept weights: int64 ``[groups]``; groups without one take no part.
    """

    statistic: Tensor
    size: Tensor
    weights: Tensor

    @property
    def is_free(self) -> Tensor:
        """Which groups may leave: all but the largest of the layer and what ties with it."""
        is_alive = self.weights > 0
        largest = torch.where(is_alive, self.size, -inf).max()
        return is_alive & (self.size < largest)

    def threshold(self, size: float) -> float:
        """The λ₂ that zeroes the free groups up to a size: the least statistic that stays."""
        leaves = self.is_free & (self.size <= size)
        stays = self.statistic[(self.weights > 0) & ~leaves]
        return float(stays.min()) if stays.numel() else 0.0


def thresholds_for(layers: Sequence[Rank], removed: int) -> list[float]:
    """A λ₂ per layer at which at least ``removed`` weights of all layers together are gone.

    Groups of all layers leave in the order of their sizes, with ties all of them; the largest of a
    layer never does, so that fewer are gone where everything else is. 0 where nothing has to leave.
    """
    sizes = torch.cat([layer.size[layer.is_free].cpu() for layer in layers])
    weights = torch.cat([layer.weights[layer.is_free].cpu() for layer in layers])
    if removed <= 0 or not len(sizes):
        return [0.0] * len(layers)
    ordered, order = sizes.sort(stable=True)
    gone = weights[order].cumsum(0)
    last = min(int(torch.searchsorted(gone, removed)), len(gone) - 1)
    return [layer.threshold(float(ordered[last])) for layer in layers]
