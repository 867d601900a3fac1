"""Own passes for addition criteria 2 and 3 of Sec. 3.3.2: at the means, or several draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from gossamer.core.addition import AdditionRule
from gossamer.nn import Weight, at_mean
from gossamer.ops import Growth


def rank_by_passes(
    model: nn.Module,
    armed: list[Weight],
    rule: AdditionRule,
    closure: Callable[[], Tensor],
    num_draws: int,
) -> None:
    """Differentiate ``closure()`` ``num_draws`` times and rank the averaged gradients.

    Neither ``.grad`` nor BatchNorm statistics change.

    Args:
        model: The model that ``closure`` runs.
        armed: Weights whose ``growth`` keeps a dense gradient; it is filled here.
        rule: The criterion.
        closure: Computes the loss of a mini-batch.
        num_draws: Number of passes.
    """
    if not armed:
        return
    sums = [torch.zeros_like(_growth(weight).dense) for weight in armed]
    leading = [weight.values for weight in armed]
    for _ in range(num_draws):
        for weight in armed:
            _growth(weight).new_pass()
        with frozen_batchnorm(model), at_mean(model) if rule.at_mean else nullcontext():
            torch.autograd.grad(closure(), leading, allow_unused=True)
        for weight, summed in zip(armed, sums, strict=True):
            summed.add_(rule.contribution(_growth(weight).summed))
    for weight, summed in zip(armed, sums, strict=True):
        growth, indices = _growth(weight), weight.layer.indices
        assert indices is not None
        if growth.is_filled:
            growth.rank(summed.abs_() / num_draws, indices)


@contextmanager
def frozen_batchnorm(model: nn.Module) -> Iterator[None]:
    """Running statistics stay as they are: normalisation works as usual but leaves no trace."""
    norms = [
        (m, m.momentum)
        for m in model.modules()
        if isinstance(m, _NormBase) and m.training and m.track_running_stats
    ]
    try:
        for norm, _ in norms:
            # BatchNorm counts its batches unless told not to track; InstanceNorm updates whatever
            # it is told, but with momentum 0 to the old value.
            if isinstance(norm, _BatchNorm):
                norm.track_running_stats = False
            else:
                norm.momentum = 0.0
        yield
    finally:
        for norm, momentum in norms:
            norm.track_running_stats = True
            norm.momentum = momentum


def _growth(weight: Weight) -> Growth:
    growth = weight.layer.growth
    assert growth is not None
    return growth
