"""What a step tells of its batch that torch would tell badly, or nobody: kinds, scale, the end."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor, nn

from gossamer.errors import InvalidData
from gossamer.likelihoods import Gaussian, Likelihood, StudentT

_FAR, _NARROW = 20.0, 0.02
"""Targets in units of a standard deviation of 1: how far off and how narrow may pass unsaid."""


def require_kind(batch: Any, model: nn.Module) -> None:
    """Raise where inputs or targets are no tensors, or inputs not of the network's precision.

    Raises:
        InvalidData: With the call that mends it.
    """
    for name in ("x", "y"):
        value = getattr(batch, name)
        if not isinstance(value, Tensor):
            hint = "torch.as_tensor(x).float() for inputs, torch.as_tensor(y) for targets"
            raise InvalidData(name, type(value).__name__, "must be a tensor", hint)
    if not batch.x.is_floating_point():
        return
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(dtypes) == 1 and batch.x.dtype not in dtypes:
        (wanted,) = dtypes
        raise InvalidData(
            "x",
            batch.x.dtype,
            f"must have the network's precision, {wanted}",
            f"use x.to({wanted}), or network.to({batch.x.dtype}) before it is built in",
        )


def remark_on_scale(likelihood: Likelihood, target: Tensor) -> None:
    """Warn where real targets are far from the unit scale that a learnt noise and priors expect."""
    learns = (isinstance(likelihood, Gaussian) and isinstance(likelihood.noise_std, str)) or (
        isinstance(likelihood, StudentT) and isinstance(likelihood.scale, str)
    )
    if not learns or target.numel() < 2:
        return
    values = target.detach().double()
    mean, std = float(values.mean()), float(values.std())
    if not (math.isfinite(mean) and math.isfinite(std)):
        return
    if max(abs(mean), std) <= _FAR and (std >= _NARROW or std == 0.0):
        return
    warnings.warn(
        f"targets of mean {mean:.3g} and standard deviation {std:.3g} are far from 0 and 1, which "
        "the network's start, its prior and the noise are made for: standardise them, or let "
        "gossamer.sklearn or gossamer.data.from_arrays do it",
        stacklevel=5,
    )


def remark_on_end(steps: int, total: int, name: str) -> None:
    """Warn, once, where a step is taken beyond the run that schedules were made for."""
    if steps == total:
        warnings.warn(
            f"step {steps + 1} of a {name} run of total_steps={total}: its schedules are at their "
            "end (the learning rate, the swaps); build it with as many steps as you take",
            stacklevel=4,
        )
