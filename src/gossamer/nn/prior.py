"""Scale of prior and initial posterior per layer.

The choice is explained, with its measurements, in docs/defaults.md.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.priors import EmpiricalGaussian, Gaussian, Prior
from gossamer.errors import InvalidValue
from gossamer.ops import Layout

PriorStd = float | Literal["scaled", "empirical"]
PosteriorStd = float | tuple[float, float] | Literal["scaled"]

PRIOR_GAIN = 1.0
"""Prior std in units of 1/√(kept inputs per output).

Outputs of a prior draw have the scale of the inputs.
"""

EMPIRICAL_FLOOR = 1e-3
"""Least std of an empirical prior, as a share of the scaled one.

Far below the initial posterior's: a layer that comes down to it is off.
"""

POSTERIOR_SHARE = 0.3
"""Initial posterior std as a share of the prior std."""


def resolve_prior_std(prior_std: PriorStd, layout: Layout, density: float) -> float:
    """The prior std of one layer.

    ``"scaled"``: PRIOR_GAIN / √(inputs per output · density), so that the prior over functions does
    not change with width or sparsity. An ``"empirical"`` prior has none of its own; its initial
    posterior and its floor are shares of the scaled one.
    """
    require_prior_std(prior_std)
    if prior_std in ("scaled", "empirical"):
        return PRIOR_GAIN / sqrt(max(layout.inputs_per_output * density, 1.0))
    return float(prior_std)


def require_prior_std(prior_std: PriorStd) -> None:
    """Raise unless it is a word that is known, or a width."""
    if prior_std not in ("scaled", "empirical") and not _is_positive(prior_std):
        raise InvalidValue(
            "prior_std", prior_std, "must be positive and finite, 'scaled' or 'empirical'"
        )


def make_prior(prior_std: PriorStd, width: float) -> Prior:
    """The Gaussian prior of one layer; ``width`` is what ``resolve_prior_std`` found."""
    if prior_std == "empirical":
        return EmpiricalGaussian(EMPIRICAL_FLOOR * width)
    return Gaussian(width)


def initial_std(
    posterior_std: PosteriorStd,
    prior_std: float,
    mean: Tensor,
    generator: torch.Generator | None,
    share: float = POSTERIOR_SHARE,
) -> Tensor:
    """Initial posterior std ``[nnz]`` of one layer; ``share`` is that of ``"scaled"``."""
    if not _is_positive(share):
        raise InvalidValue("posterior_share", share, "must be positive and finite")
    if posterior_std == "scaled":
        return torch.full_like(mean, share * prior_std)
    if isinstance(posterior_std, tuple) and len(posterior_std) == 2:
        centre, spread = posterior_std
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float32)
        # |N| can come arbitrarily close to 0, where its softplus pre-image leaves float32.
        drawn = (centre + spread * noise).abs().clamp_(min=1e-8)
        return drawn.to(mean)
    if not isinstance(posterior_std, float | int) or not _is_positive(posterior_std):
        raise InvalidValue(
            "posterior_std", posterior_std, "must be positive, (mean, spread) or 'scaled'"
        )
    return torch.full_like(mean, float(posterior_std))


def _is_positive(value: object) -> bool:
    return isinstance(value, float | int) and 0.0 < value < inf
