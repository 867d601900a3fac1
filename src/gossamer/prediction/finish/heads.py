"""Gaussian last layers: closed forms on the features that the last linear layer reads.

φ = [h; 1] are the features of a row with a one for the bias. Nothing is random: a Gaussian over
outputs becomes a prediction through fixed points (``normal_points``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gossamer.likelihoods import Likelihood
from gossamer.prediction.combine import combine, real_prediction
from gossamer.prediction.finish.finish import widened
from gossamer.prediction.finish.layer import outputs_and_features
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.moments.predict import normal_points
from gossamer.prediction.outputs import PLAIN, Call
from gossamer.prediction.prediction import Prediction

POINTS, LEAST_POINTS = 64, 8
"""Points of the outputs' Gaussian over all samples of a posterior together, and for each at least.
"""


@dataclass(frozen=True, eq=False)
class Features:
    """The second moments of features: their largest directions, and one level for all others.

    Attributes:
        layer: Name of the last linear layer in the network.
        basis: ``[F + 1, r]``, orthonormal.
        level: ``[r]``, mean of (basisᵀφ)².
        rest: The mean of φ² per direction outside of the basis.
    """

    layer: str
    basis: Tensor
    level: Tensor
    rest: float

    def run(
        self, network: nn.Module, rows: InputRows, forward: Call = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """The network's outputs ``[B, C]`` and the features ``[B, F + 1]``."""
        return outputs_and_features(network, self.layer, rows, forward)

    def variance(self, features: Tensor, curvature: Tensor, prior: float | Tensor) -> Tensor:
        """Σᵢ (basisᵀφ)ᵢ²/(levelᵢ·b + τ), the rest at its own level: ``[B, C]``.

        Args:
            features: ``[B, F + 1]``.
            curvature: b, ``[C]``.
            prior: τ, one or ``[C]``.
        """
        along = features @ self.basis
        precision = self.level[:, None] * curvature + prior
        inside = along.square() @ precision.reciprocal()
        if self.basis.shape[0] == self.basis.shape[1]:
            return inside
        # Not |φ|² less its part inside: a small difference of large numbers.
        outside = (features - along @ self.basis.T).square().sum(1)
        return inside + outside[:, None] / (self.rest * curvature + prior)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Features:
        """The same over other tensors."""
        return replace(self, basis=move(self.basis), level=move(self.level))


@dataclass(frozen=True, eq=False)
class ClassHead:
    """Logits ~ N(Wφ, c·Q diag(s²) Qᵀ), s²_c = φᵀ(A b_c + τ)⁻¹φ: a Kronecker-factored Gaussian on W.

    Attributes:
        features: A, the second moments of held-out features.
        rotation: Q, ``[C, C]``: eigenvectors of N·mean(diag p - ppᵀ).
        curvature: b, its eigenvalues ``[C]``.
        prior: τ.
        scale: c.
    """

    features: Features
    rotation: Tensor
    curvature: Tensor
    prior: float
    scale: float

    def run(self, network: nn.Module, rows: InputRows, forward: Call = PLAIN) -> Tensor:
        """Logits and unscaled deviations s, ``[B, 2C]``."""
        logits, features = self.features.run(network, rows, forward)
        variance = self.features.variance(features.to(self.curvature), self.curvature, self.prior)
        return torch.cat([logits, variance.sqrt().to(logits)], 1)

    def read(self, likelihood: Likelihood, outputs: Tensor, temperature: float) -> Prediction:
        """See ``Head.read``."""
        return combine(likelihood, self.spread(outputs) / temperature)

    def spread(self, outputs: Tensor) -> Tensor:
        """Logits at the fixed points, ``[S · points, B, C]``: every sample has points of its own.

        At scale 0 all points are one, and the samples are as they were.

        Args:
            outputs: ``[S, B, 2C]``.
        """
        logits, deviations = outputs.chunk(2, dim=2)
        if self.scale == 0.0:
            return logits
        count, samples = points_of(len(outputs)), len(outputs)
        points = normal_points(count * samples, logits.shape[2]).to(outputs) * self.scale**0.5
        # Every S-th point of an even sequence: each sample's share is even too.
        shares = points.view(count, samples, 1, -1).transpose(0, 1)
        moves = (deviations.unsqueeze(1) * shares) @ self.rotation.to(outputs).T
        spread: Tensor = (logits.unsqueeze(1) + moves).flatten(0, 1)
        return spread

    def moved(self, move: Callable[[Tensor], Tensor]) -> ClassHead:
        """See ``Head.moved``."""
        return replace(
            self,
            features=self.features.moved(move),
            rotation=move(self.rotation),
            curvature=move(self.curvature),
        )


@dataclass(frozen=True, eq=False)
class RealHead:
    """Bayesian linear regression on the features: N(wφ, φᵀ(ΦᵀΦ/σ² + τ)⁻¹φ), noise σ.

    Attributes:
        features: ΦᵀΦ/n of the rows of the regression, in full.
        mean: ``[D, F + 1]``: posterior mean of the weights, or of what is added to the network's.
        adds: Whether ``mean`` is added to the network's own weights.
        curvature: n/σ², ``[D]``.
        prior: τ, ``[D]``.
        noise: σ, ``[D]``.
    """

    features: Features
    mean: Tensor
    adds: bool
    curvature: Tensor
    prior: Tensor
    noise: Tensor

    @property
    def scale(self) -> float:
        """1: the closed form is the posterior."""
        return 1.0

    def run(self, network: nn.Module, rows: InputRows, forward: Call = PLAIN) -> Tensor:
        """Means and deviations, ``[B, 2D]``."""
        outputs, found = self.features.run(network, rows, forward)
        features = found.to(self.mean)
        variance = self.features.variance(features, self.curvature, self.prior)
        means = features @ self.mean.T
        means = outputs.to(means) + means if self.adds else means
        return torch.cat([means, variance.sqrt()], 1)

    def read(self, likelihood: Likelihood, outputs: Tensor, temperature: float) -> Prediction:
        """See ``Head.read``; the likelihood's own noise is not used."""
        means, deviations = outputs.chunk(2, dim=2)
        # The same points for every sample: mean and variance are then exact.
        points = normal_points(points_of(len(outputs)), means.shape[2]).to(outputs)
        samples = (means.unsqueeze(1) + deviations.unsqueeze(1) * points[:, None]).flatten(0, 1)
        found = real_prediction(samples, self.noise.to(outputs).expand_as(samples))
        return found if temperature == 1.0 else widened(found, temperature)

    def moved(self, move: Callable[[Tensor], Tensor]) -> RealHead:
        """See ``Head.moved``."""
        return replace(
            self,
            features=self.features.moved(move),
            mean=move(self.mean),
            curvature=move(self.curvature),
            prior=move(self.prior),
            noise=move(self.noise),
        )


def points_of(samples: int) -> int:
    """Points for each of so many samples."""
    return max(LEAST_POINTS, POINTS // samples)
