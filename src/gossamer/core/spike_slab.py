"""The spike-and-slab group prior of EM-MCMC: which groups get which precision, which are zeroed.

Slab precision δ₁ (small), spike precision δ₀ (large). The E step gives a group the spike where its
mean square is below λ₁; the M step is weight decay at the group's precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log, sqrt

import torch
from torch import Tensor

from gossamer.core.groups import Grouping, Statistic
from gossamer.errors import InvalidValue

SPIKE_OVER_SLAB = 20.0
"""δ₀/δ₁ unless told: the authors' 0.01 over 0.0005."""
SPIKE_SHARE = 0.1
"""λ₁ over the slab's variance unless told; the authors' are 0.02 to 0.1 of it."""
PRUNE_SHARE = 0.01
"""λ₂ over the slab's variance unless told; the authors' are 0.002 to 0.005 of it."""


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


@dataclass(frozen=True, eq=False)
class Candidates:
    """The groups of a layer, in an order that holds across layers.

    Attributes:
        statistic: Of the layer's hard mask: ``[groups]``.
        square: The same in units of a weight's square: ``[groups]``.
        weights: Kept weights: int64 ``[groups]``; groups without one take no part.
        size: Dense weights per group.
    """

    statistic: Tensor
    square: Tensor
    weights: Tensor
    size: int

    @classmethod
    def of(cls, values: Tensor, grouping: Grouping, statistic: Statistic) -> Candidates:
        """The groups of kept values ``[nnz]``."""
        found = grouping.statistic(values, statistic).cpu()
        square = found.double() if statistic == "mean_square" else found.double().square()
        return cls(found, square, grouping.sizes().cpu(), grouping.size)

    @cached_property
    def scores(self) -> Tensor:
        """What a layer would lose with a group, per weight: float64 ``[groups]``.

        Lost is the group's share of the squares of itself and of all that are as large or larger:
        1 for the largest, about 1/k for the k-th. That is the score of LAMP (Lee et al., ICLR 2021)
        for groups; over their size, because groups of different layers cost differently.
        """
        square = torch.where(self.weights > 0, self.square, 0.0)
        ordered, order = square.sort(descending=True, stable=True)
        sums = ordered.cumsum(0)
        # Of groups that tie the sum of the last one, so that they have one score.
        last = torch.searchsorted(-ordered, -ordered, right=True) - 1
        share = ordered / sums[last].clamp(min=torch.finfo(sums.dtype).tiny)
        return torch.empty_like(share).scatter_(0, order, share / self.size)

    def leaving(self, score: float) -> Tensor:
        """Which groups leave up to a score: bool ``[groups]``; one of the largest never does."""
        leaves = (self.weights > 0) & (self.scores <= score)
        leaves[torch.where(self.weights > 0, self.square, -1.0).argmax()] = False
        return leaves

    def threshold(self, score: float) -> float:
        """The λ₂ for them: above all that leave; infinity where one of the largest leaves too."""
        leaves = self.leaving(score)
        if not bool(leaves.any()):
            return 0.0
        above = self.statistic[(self.weights > 0) & (self.statistic > self.statistic[leaves].max())]
        return float(above.min()) if above.numel() else inf


def thresholds_for(layers: Sequence[Candidates], removed: int) -> list[float]:
    """A λ₂ per layer at which at least ``removed`` weights of all layers together are gone.

    Groups of all layers leave in the order of their scores, with ties all of them; a layer keeps
    one of its largest, so that fewer are gone where nothing else is left. 0 where nothing has to
    leave.
    """
    if removed <= 0 or not layers:
        return [0.0] * len(layers)
    free = [layer.leaving(inf) for layer in layers]
    scores = torch.cat([layer.scores[may] for layer, may in zip(layers, free, strict=True)])
    weights = torch.cat([layer.weights[may] for layer, may in zip(layers, free, strict=True)])
    if not len(scores):
        return [0.0] * len(layers)
    ordered, order = scores.sort(stable=True)
    gone = weights[order].cumsum(0)
    last = min(int(torch.searchsorted(gone, removed)), len(gone) - 1)
    return [layer.threshold(float(ordered[last])) for layer in layers]


@dataclass(frozen=True)
class SpikeAndSlab:
    """The prior of one layer.

    Attributes:
        slab: δ₁/N.
        spike: δ₀/N.
        spike_threshold: λ₁.
        prune_threshold: λ₂ for a statistic in units of a weight's square.
        range_threshold: λ₂ for one in units of a weight.
    """

    slab: float
    spike: float
    spike_threshold: float
    prune_threshold: float
    range_threshold: float


def spike_and_slab(
    slab: float,
    *,
    lr: float,
    num_data: int,
    spike_decay: float | None,
    spike_threshold: float | None,
    prune_threshold: float | None,
) -> SpikeAndSlab:
    """The prior of a layer from what was set, and from the slab where nothing was.

    Args:
        slab: δ₁/N, the weight decay of the layer.
        lr: Step size: a spike that is too narrow for it would not be followed.
        num_data: N.
        spike_decay: δ₀/N; ``None``: SPIKE_OVER_SLAB times the slab's, or what a step can follow.
        spike_threshold: λ₁; ``None``: SPIKE_SHARE of the slab's variance.
        prune_threshold: λ₂, in the units of the statistic; ``None``: PRUNE_SHARE of the slab's
            variance, or of its root.

    Raises:
        InvalidValue: The spike is wider than the slab, or there is no slab to go by.
    """
    if spike_decay is None:
        followed = 1.0 / lr if lr > 0.0 else inf
        spike_decay = max(slab, min(SPIKE_OVER_SLAB * slab, followed))
    require_narrower(spike_decay, slab)
    if slab == 0.0 and None in (spike_threshold, prune_threshold):
        raise InvalidValue(
            "weight_decay",
            slab,
            "is no prior to take thresholds from",
            "set spike_threshold and prune_threshold",
        )
    variance = inf if slab == 0.0 else 1.0 / (slab * num_data)
    return SpikeAndSlab(
        slab,
        spike_decay,
        SPIKE_SHARE * variance if spike_threshold is None else spike_threshold,
        prune_threshold if prune_threshold is not None else PRUNE_SHARE * variance,
        prune_threshold if prune_threshold is not None else sqrt(PRUNE_SHARE * variance),
    )


def require_narrower(spike: float, slab: float) -> None:
    """Raise unless the spike's precision is at least the slab's."""
    if spike < slab:
        raise InvalidValue(
            "spike_decay", spike, f"must be at least weight_decay = {slab:.4g}, the slab's"
        )
