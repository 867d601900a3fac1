"""What Algorithms 2 and 3 of cvadam2023 share: the settings of their sampler."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from torch import nn

from gossamer.errors import InvalidValue
from gossamer.inference.chain import ChainConfig, chain_groups
from gossamer.inference.langevin import CVSGHMC
from gossamer.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class PreconditionedConfig(ChainConfig):
    """Settings of preconditioned SGHMC; ``lr`` is Δt².

    Attributes:
        temperature: 1 for the posterior; ``None`` with a ``noise_scale``.
        noise_scale: k in units of 1/√N, as the authors set it: 1 is their k = 1/√N.
        betas: (β₁, β₂): what is kept of the velocity, and the weight of the gradient.
        tau_lr: η, the step on logit τ.
    """

    label_lr: ClassVar[float] = 0.05
    real_lr: ClassVar[float] = 0.003

    temperature: float | None = 1.0  # type: ignore[assignment]
    noise_scale: float | None = None
    betas: tuple[float, float] = (0.9, 1.0)
    tau_lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise_scale", "tau_lr"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if (self.temperature is None) == (self.noise_scale is None):
            raise InvalidValue(
                "temperature, noise_scale",
                (self.temperature, self.noise_scale),
                "exactly one must be given",
                "set the other to none",
            )


AUTHORS: dict[str, Any] = {
    "temperature": None,
    "noise_scale": 1.0,
    "betas": (0.1, 1.0),
    "tau_lr": 0.1,
    "decay_biases": True,
}
"""The sampler of the cvadam2023 authors; docs/samplers.md says at what temperature it samples."""


def preconditioned(
    config: PreconditionedConfig, model: nn.Module, likelihood: Likelihood, num_data: int
) -> CVSGHMC:
    """The sampler over the parameters of model and likelihood."""
    scale = None if config.noise_scale is None else config.noise_scale / sqrt(num_data)
    return CVSGHMC(
        chain_groups(config, model, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
        temperature=config.temperature,
        noise_scale=scale,
        betas=config.betas,
        tau_lr=config.tau_lr,
    )
