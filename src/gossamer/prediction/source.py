"""Where posterior samples come from: a method, or a bare model seen as one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from gossamer.inference import Method
from gossamer.likelihoods import Likelihood, make_likelihood
from gossamer.nn import BayesianLayer, Noise, sampling


class Source(Protocol):
    """The part of ``Method`` that predictions need."""

    @property
    def model(self) -> nn.Module:
        """See ``Method.model``."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """See ``Method.likelihood``."""
        ...

    @property
    def max_samples(self) -> int | None:
        """See ``Method.max_samples``."""
        ...

    @property
    def samples_by_noise(self) -> bool:
        """See ``Method.samples_by_noise``."""
        ...

    def sample(self, index: int, *, seed: int, noise: Noise) -> AbstractContextManager[nn.Module]:
        """See ``Method.sample``."""
        ...


@dataclass(frozen=True)
class Network:
    """A bare model as a source of posterior samples."""

    model: nn.Module
    likelihood: Likelihood
    samples_by_noise: bool = True

    @property
    def max_samples(self) -> int | None:
        """One without Bayesian layers."""
        return None if any(isinstance(m, BayesianLayer) for m in self.model.modules()) else 1

    def sample(self, index: int, *, seed: int, noise: Noise) -> AbstractContextManager[nn.Module]:
        """The draw that ``seed`` fixes."""
        return sampling(self.model, seed=seed, noise=noise)


def source_of(given: nn.Module | Method, likelihood: str | Likelihood) -> Source:
    """A method as it is; a module with its likelihood."""
    return Network(given, make_likelihood(likelihood)) if isinstance(given, nn.Module) else given
