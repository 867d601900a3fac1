"""When a chain has been thrown out: it explains its targets worse than a constant answer would.

The first large steps of a cycle may leave everything that was learnt, for a cycle or for good. No
state of such a cycle is a sample of the posterior, whatever its step size has become by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.inference.batch import Batch
from gossamer.inference.group import Group
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

MARGIN = 1.0
"""Nats per target above a constant's NLL. A healthy sample of a network that finds nothing at all
lies about (parameters that matter)/(2N) above it, which is below one half.

Where a given noise is far too small, a constant's squared errors alone are many nats, and a chain
that begins has more: there the errors must be twice the constant's.
"""


class Watch:
    """Compares the second half of a cycle with the best constant answer to the same targets.

    Args:
        likelihood: One without labels or normal noise has no such answer, and nothing is watched.
        group: The processes that train together.
    """

    def __init__(self, likelihood: Likelihood, group: Group) -> None:
        self.likelihood, self.group = likelihood, group
        self.forget()

    def forget(self) -> None:
        """Begin a cycle."""
        self._nll = 0.0
        self._weight = 0.0
        self._moments = torch.zeros(0, dtype=torch.float64)

    def note(self, batch: Batch, nll: float) -> None:
        """Take the targets of a step and its mean NLL, each row by its weight."""
        found = self._moments_of(batch)
        if found is None:
            return
        rows = len(batch.x)
        self._nll += nll * rows
        self._weight += rows if batch.weight is None else float(batch.weight.sum())
        longest = max(len(found), len(self._moments))
        self._moments = _padded(self._moments, longest) + _padded(found, longest)

    def verdict(self) -> str | None:
        """Why the cycle is lost, in words; ``None`` for one that is sound."""
        if self.group.size > 1:
            numbers = torch.tensor([self._nll, self._weight], dtype=torch.float64)
            joined = self.group.sum_(torch.cat([numbers, self._moments]))
            nll, weight, moments = float(joined[0]), float(joined[1]), joined[2:]
        else:
            nll, weight, moments = self._nll, self._weight, self._moments
        if not weight > 0.0:
            return None
        constant, margin = self._constant(moments / weight)
        if nll / weight <= constant + margin:
            return None
        return f"mean NLL {nll / weight:.4g}, where a constant answer has {constant:.4g}"

    def state_dict(self) -> dict[str, Any]:
        """What was noted in this cycle."""
        return {"nll": self._nll, "weight": self._weight, "moments": self._moments.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was noted."""
        self._nll, self._weight = float(state["nll"]), float(state["weight"])
        self._moments = state["moments"].to("cpu", torch.float64).clone()

    def _moments_of(self, batch: Batch) -> Tensor | None:
        """Weighted sums over a batch: of every class, or of targets and their squares."""
        y = batch.y.detach().cpu()
        weight = torch.ones(len(y), dtype=torch.float64)
        if batch.weight is not None:
            weight = batch.weight.detach().cpu().double()
        if isinstance(self.likelihood, Categorical) and y.dim() == 1:
            return torch.bincount(y, weights=weight)
        if isinstance(self.likelihood, Bernoulli) and y.numel() == len(y):
            ones = float((y.reshape(-1).double() * weight).sum())
            return torch.tensor([float(weight.sum()) - ones, ones], dtype=torch.float64)
        if isinstance(self.likelihood, Gaussian):
            values = y.reshape(len(y), -1).double()
            by = weight[:, None]
            return torch.cat([(values * by).sum(0), (values.square() * by).sum(0)])
        return None

    def _constant(self, moments: Tensor) -> tuple[float, float]:
        """NLL per row of the best constant answer, and how far a sound chain may lie above it."""
        if not isinstance(self.likelihood, Gaussian):
            return float(-torch.special.xlogy(moments, moments).sum()), MARGIN
        mean, square = moments.chunk(2)
        variance = (square - mean.square()).clamp(min=1e-12)
        noise = self.likelihood.noise_std
        own = variance if isinstance(noise, str) else torch.full_like(variance, noise**2)
        errors = 0.5 * variance / own
        each = errors + 0.5 * (own.log() + math.log(2.0 * math.pi))
        return float(each.sum()), float(errors.clamp(min=MARGIN).sum())


def _padded(sums: Tensor, size: int) -> Tensor:
    return torch.cat([sums, sums.new_zeros(size - len(sums))])
