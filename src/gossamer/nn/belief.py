"""What a Bayesian layer believes of its weights before any data, and the KL to that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gossamer.core.priors import EmpiricalGaussian, Gaussian, Prior
from gossamer.core.support import Support
from gossamer.nn.absent import AbsentWeights
from gossamer.ops import gaussian


class Believed(AbsentWeights):
    """The part of a Bayesian layer that knows its prior.

    Attributes:
        prior: Of every weight of the layer, about 0 or about ``prior_mean``.
        prior_mean: ``[numel]``, or ``None``; see ``centre_prior``.
    """

    prior: Prior
    prior_mean: Tensor | None
    weight_mean: nn.Parameter
    weight_raw_std: nn.Parameter

    if TYPE_CHECKING:  # of the layer

        @property
        def support(self) -> Support:
            """Positions of the kept weights."""

        @property
        def weight_std(self) -> Tensor:
            """Standard deviations ``[nnz]``."""

    @property
    def marginal_std(self) -> Tensor:
        """Standard deviations ``[nnz]`` with what every position has."""
        absent = self.absent()
        if absent is None:
            return self.weight_std
        return torch.hypot(self.weight_std, absent.std_at(self.support.positions()))

    def centre_prior(self, weight: Tensor) -> None:
        """Give every weight, kept or absent, a prior mean of its own: that of a pretrained network.

        Args:
            weight: Of the shape of the dense weight. It is stored whole, in the layer's state: a
                weight that enters the support later is believed in as much.
        """
        self.prior_mean = weight.detach().reshape(-1).to(self.weight_mean).clone()

    def _off_prior(self) -> Tensor:
        """How far the means lie from those of the prior, ``[nnz]``."""
        if self.prior_mean is None:
            return self.weight_mean
        return self.weight_mean - self.prior_mean[self.support.positions()]

    @property
    def prior_std(self) -> float | None:
        """Standard deviation of a Gaussian prior, fitted or fixed; ``None`` for any other."""
        prior, mean, raw = self.prior, self._off_prior(), self.weight_raw_std
        if isinstance(prior, EmpiricalGaussian):
            if gaussian.is_fused(mean, raw) and not self.factors:
                return prior.fitted_std(gaussian.second_moment(mean, raw), mean.numel())
            square = mean.detach().double().square() + self.marginal_std.detach().double().square()
            return prior.fitted_std(float(square.sum()), mean.numel())
        return prior.std if isinstance(prior, Gaussian) else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the prior lies; the scale of an empirical one; a variance of absent weights."""
        found = [] if self.prior_mean is None else ["the prior's means are pretrained weights"]
        if isinstance(self.prior, EmpiricalGaussian):
            found.append(f"prior std {self.prior_std:.4g}, empirical")
        if self.factors:
            found.append("absent weights have a variance: a draw of θ is dense")
        return tuple(found)

    def kl_divergence(self) -> Tensor:
        """Σ KL(N(mean, std²) || prior) over the kept weights, in nats: 0-d.

        And that of the absent ones to a prior of their own, where they have a variance.
        """
        prior, mean, raw = self.prior, self._off_prior(), self.weight_raw_std
        absent = self.absent()
        if absent is not None:
            kept = prior.kl(gaussian.at_least_float32(mean), self.marginal_std).sum()
            return kept + absent.kl_off(self.support.positions(), self.absent_prior_std)
        if gaussian.is_fused(mean, raw):
            if isinstance(prior, Gaussian):
                return gaussian.kl_sum(mean, raw, prior.std)
            # A compiled graph would keep the scale of its first call.
            if isinstance(prior, EmpiricalGaussian) and not torch.compiler.is_compiling():
                # As a constant: to first order the KL does not change with it.
                scale = prior.fitted_std(gaussian.second_moment(mean, raw), mean.numel())
                return gaussian.kl_sum(mean, raw, scale)
        return prior.kl(gaussian.at_least_float32(mean), self.weight_std).sum()
