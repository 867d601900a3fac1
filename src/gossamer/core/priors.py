"""Priors of a weight, as values.

A prior says two things of a weight: its log-density, which a chain needs, and the KL divergence of
a Gaussian posterior from it, which variational inference needs. Both are elementwise (but for the
scale of ``EmpiricalGaussian``), differentiable, and keep the dtype of their input. A class with
these two methods is a prior; it need not come from here. What a prior cannot say it refuses, by
name.
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
class EmpiricalGaussian:
    """N(0, s²) with the s of the weights themselves, the s² that maximises the ELBO.

    d/ds² Σ KL(N(mean, std²) || N(0, s²)) vanishes at s² = mean of (mean² + std²) over the weights
    of a layer, and the KL of the layer is then ½ Σ log(s²/std²). s is a function of the posterior:
    there is nothing to learn, to save or to move with the weights.

    That KL does not change where a whole layer shrinks, means and standard deviations alike. So
    nothing would hold a layer that the data need no more: its std would run towards 0, where log
    std has no value. Below ``floor`` s stays there, and the KL is that of ``Gaussian(floor)``,
    which pulls std up to ``floor``.

    Args:
        floor: The least s, at least 1e-15 (its square is a float32 number still).

    Example:
        >>> mean, std = torch.tensor([3.0, 0.0]), torch.tensor([1.0, 2.0])
        >>> s2 = (9.0 + 1.0 + 0.0 + 4.0) / 2
        >>> wanted = 0.5 * (torch.tensor(s2) / std.square()).log().sum()
        >>> bool((EmpiricalGaussian().kl(mean, std).sum() - wanted).abs() < 1e-6)
        True
    """

    floor: float = 1e-4

    def __post_init__(self) -> None:
        if not 1e-15 <= self.floor < inf:
            raise InvalidValue("floor", self.floor, "must be finite and at least 1e-15")

    def log_density(self, weight: Tensor) -> Tensor:
        """Refused: as s follows the weights, the density of all at 0 would have no bound."""
        raise InvalidValue(
            "prior",
            type(self).__name__,
            "has no density: its width is that of a Gaussian posterior",
            "use Gaussian or Laplace for a chain",
        )

    def fitted_std(self, second_moment: float, count: int) -> float:
        """The s of ``count`` weights whose mean² + std² sum to ``second_moment``."""
        return self.floor if count == 0 else max(sqrt(second_moment / count), self.floor)

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """That of each element to N(0, s²), with the s of all elements; only the sum is a KL.

        s is part of the graph. The sum's derivative by s is 0 (that is what s was chosen for), so
        that its first derivatives are those of a constant s, but the second ones are not.
        """
        square = (mean.square() + std.square()).mean().clamp(min=self.floor**2)
        return kl_to_prior(mean, std, square.sqrt())


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


PRIORS: dict[str, type[Any]] = {
    "gaussian": Gaussian,
    "empirical": EmpiricalGaussian,
    "laplace": Laplace,
}
"""Priors that a file can name."""


def prior_to_json(prior: Prior) -> dict[str, Any]:
    """A prior as JSON values.

    Raises:
        InvalidValue: It is none of ``PRIORS``: a file must not name code of somebody else.
    """
    for name, kind in PRIORS.items():
        if isinstance(prior, Gaussian | EmpiricalGaussian | Laplace) and type(prior) is kind:
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
