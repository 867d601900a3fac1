"""Priors of a weight, as values.

A prior says two things of a weight: its log-density, which a chain needs, and the KL divergence of
a Gaussian posterior from it, which variational inference needs. Both are elementwise,
differentiable, and keep the dtype of their input. A class with these two methods is a prior; it
need not come from here. What a prior cannot say it refuses, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, log, pi, sqrt
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gossamer.core.gaussian import kl_to_prior
from gossamer.errors import InvalidValue, UnknownName


@runtime_checkable
class Prior(Protocol):
    """What is believed of a weight before any data."""

    def log_density(self, weight: Tensor) -> Tensor:
        """Log p(θ) of each element, in nats; shape and dtype of ``weight``."""
        ...

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """KL(N(mean, std²) || p) of each element, in nats; never negative."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """N(0, std²), the prior of both papers. The native engine has its KL in one pass.

    Args:
        std: Standard deviation, finite and > 0.

    Example:
        >>> float(Gaussian(1.0).kl(torch.tensor(0.0), torch.tensor(1.0)))
        0.0
    """

    std: float

    def __post_init__(self) -> None:
        _require_positive("prior_std", self.std)

    def log_density(self, weight: Tensor) -> Tensor:
        """-½ (θ/std)² - log std - ½ log 2π."""
        return -0.5 * (weight / self.std).square() - (log(self.std) + 0.5 * log(2.0 * pi))

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """½ (t - 1 - log t) + ½ (mean / std)² with t the ratio of the variances."""
        return kl_to_prior(mean, std, self.std)


@dataclass(frozen=True)
class Laplace:
    """exp(-|θ|/scale) / (2 scale): an L1 penalty of 1/scale in a chain.

    Args:
        scale: Mean of |θ|, finite and > 0; the standard deviation is √2 times that.
    """

    scale: float

    def __post_init__(self) -> None:
        _require_positive("scale", self.scale)

    def log_density(self, weight: Tensor) -> Tensor:
        """-|θ|/scale - log(2 scale)."""
        return -weight.abs() / self.scale - log(2.0 * self.scale)

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """log(2 scale) + E|θ|/scale minus the entropy ½ log(2πe std²) of the posterior.

        E|θ| = std √(2/π) e^(-r²/2) + mean erf(r/√2) with r = mean/std.
        """
        r = mean / std
        mean_abs = std * sqrt(2.0 / pi) * torch.exp(-0.5 * r.square()) + mean * torch.erf(
            r / sqrt(2.0)
        )
        entropy = std.log() + 0.5 * (log(2.0 * pi) + 1.0)
        return log(2.0 * self.scale) + mean_abs / self.scale - entropy


PRIORS: dict[str, type[Any]] = {"gaussian": Gaussian, "laplace": Laplace}
"""Priors that a file can name."""


def prior_to_json(prior: Prior) -> dict[str, Any]:
    """A prior as JSON values.

    Raises:
        InvalidValue: It is none of ``PRIORS``: a file must not name code of somebody else.
    """
    for name, kind in PRIORS.items():
        if isinstance(prior, Gaussian | Laplace) and type(prior) is kind:
            return {"kind": name, **asdict(prior)}
    raise InvalidValue(
        "prior", type(prior).__name__, "cannot be saved", f"use one of {', '.join(PRIORS)}"
    )


def prior_from_json(values: Mapping[str, Any]) -> Prior:
    """The prior of ``prior_to_json``."""
    settings = dict(values)
    kind = str(settings.pop("kind", None))
    if kind not in PRIORS:
        raise UnknownName("prior", kind, list(PRIORS))
    found: Prior = PRIORS[kind](**settings)
    return found


def _require_positive(name: str, value: float) -> None:
    if not 0.0 < value < inf:
        raise InvalidValue(name, value, "must be finite and > 0")
