"""The prior of a chain: one weight decay for all, or one per layer that follows its width."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from torch import nn

from gossamer.errors import InvalidValue
from gossamer.nn import weight_groups
from gossamer.nn.prior import resolve_prior_std

SPIKE_OVER_SLAB = 20.0
"""δ₀/δ₁ unless told: the authors' 0.01 over 0.0005."""
SPIKE_SHARE = 0.1
"""λ₁ over the slab's variance unless told; the authors' are 0.02 to 0.1 of it."""
PRUNE_SHARE = 0.01
"""λ₂ over the slab's variance unless told; the authors' are 0.002 to 0.005 of it."""


def with_scaled_prior(
    groups: list[dict[str, Any]], model: nn.Module, num_data: int
) -> list[dict[str, Any]]:
    """Parameter groups in which every layer's weights have the prior of variational inference.

    That is N(0, 1/(kept inputs per output)), docs/defaults.md, so that δ/N is the kept inputs per
    output over the number of data. Weights of other modules have a standard normal prior.

    Args:
        groups: As ``parameter_groups`` makes them.
        model: Sparse layers.
        num_data: N.

    Raises:
        InvalidValue: A layer's prior is too narrow for the step size.
    """
    decays = {}
    for layer in (group.first for group in weight_groups(model)):
        std = resolve_prior_std("scaled", layer.layout, layer.nnz / layer.layout.numel)
        decays[id(layer.leading())] = 1.0 / (num_data * std**2)
    found = []
    for group in groups:
        if group["name"] != "weights":
            found.append(group)
            continue
        for parameter in group["params"]:
            decay = decays.get(id(parameter), 1.0 / num_data)
            if decay * group["lr"] > 1.0:
                raise InvalidValue(
                    "lr",
                    group["lr"],
                    f"is too large a step for a prior of δ/N = {decay:.3g}, the scaled one of a "
                    f"layer of {parameter.numel()} weights for {num_data} examples",
                    f"set lr below {1.0 / decay:.2g}, or weight_decay",
                )
            found.append({**group, "params": [parameter], "weight_decay": decay})
    return found


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
    settings: dict[str, Any],
    *,
    spike_decay: float | None,
    spike_threshold: float | None,
    prune_threshold: float | None,
) -> SpikeAndSlab:
    """The prior of a layer from what was set, and from the slab where nothing was.

    Args:
        settings: The optimiser's group of the layer; ``weight_decay`` is the slab's.
        spike_decay: δ₀/N; ``None``: SPIKE_OVER_SLAB times the slab's, or what a step can follow.
        spike_threshold: λ₁; ``None``: SPIKE_SHARE of the slab's variance.
        prune_threshold: λ₂, in the units of the statistic; ``None``: PRUNE_SHARE of the slab's
            variance, or of its root.

    Raises:
        InvalidValue: The spike is wider than the slab, or there is no slab to go by.
    """
    slab, lr = float(settings["weight_decay"]), float(settings["lr"])
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
    variance = inf if slab == 0.0 else 1.0 / (slab * float(settings["num_data"]))
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
