"""Bayesian linear regression on the features of a network, prior and noise by the evidence.

For each output by itself, with targets r, features Φ ``[n, F + 1]`` and ρ = τσ²::

    w ~ N(0, 1/τ),  r = Φw + noise σ
    -2 log evidence = n log 2πσ² + Σ log(1 + λ_i/ρ) + (|r|² - Σ q_i²/(λ_i + ρ))/σ²

λ and Q are of ΦᵀΦ, q = QᵀΦᵀr. Given ρ the best σ² is (|r|² - Σ q²/(λ + ρ))/n: one number is left to
search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Gaussian
from gossamer.prediction.finish.choice import minimise_over
from gossamer.prediction.finish.curvature import largest, require_narrow
from gossamer.prediction.finish.gather import Sampling
from gossamer.prediction.finish.heads import RealHead
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.posterior import Posterior

_DECADES = 10.0
"""ρ is sought between 10^±10 of the largest λ: at the upper end w is 0, the prior's mean."""


MOST_DETERMINED = 0.25
"""Weights that the rows may determine, as a share of the rows.

With fewer rows than features the evidence may be largest where the fit goes through every target
and no noise is left: of 27 rows and 51 features that was the answer in one split of four.
"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the evidence of one output needs of the rows.

    Attributes:
        level: λ, ``[F + 1]``.
        along: q, ``[F + 1]``.
        square: |r|².
        count: n.
        noise: σ where it is given; ``None`` where the evidence chooses it.
    """

    level: Tensor
    along: Tensor
    square: float
    count: int
    noise: float | None

    def misfit(self, ratio: float) -> float:
        """|r|² - Σ q²/(λ + ρ), which is rᵀ(1 + ΦΦᵀ/ρ)⁻¹r."""
        return max(self.square - float((self.along.square() / (self.level + ratio)).sum()), 0.0)

    def std(self, ratio: float) -> float:
        """σ at ρ."""
        if self.noise is not None:
            return self.noise
        # Of a perfect fit nothing is left; noise below the rounding of the targets has no meaning.
        least = 1e-12 * self.square / self.count
        return math.sqrt(max(self.misfit(ratio) / self.count, least, 1e-300))

    def log_evidence(self, ratio: float) -> float:
        """Log p(r) at ρ."""
        variance = self.std(ratio) ** 2
        spread = float((self.level / ratio).log1p().sum())
        fit = self.misfit(ratio) / variance
        return -0.5 * (self.count * math.log(2.0 * math.pi * variance) + spread + fit)

    def best_ratio(self) -> float:
        """The ρ of the largest evidence under which rows enough are left to tell the noise by."""
        middle, reach = math.log(float(self.level.max())), _DECADES * math.log(10.0)
        low, high = middle - reach, middle + reach
        if self.determined(math.exp(low)) > MOST_DETERMINED * self.count:
            least, most = low, high
            for _ in range(60):
                half = 0.5 * (least + most)
                many = self.determined(math.exp(half)) > MOST_DETERMINED * self.count
                least, most = (half, most) if many else (least, half)
            low = most
        found = minimise_over(lambda u: -self.log_evidence(math.exp(u)), low, high, parts=40)
        return math.exp(found)

    def determined(self, ratio: float) -> float:
        """Σ λ/(λ + ρ): how many weights the rows determine."""
        return float((self.level / (self.level + ratio)).sum())


@torch.no_grad()
def real_head(
    posterior: Posterior, rows: tuple[InputRows, Tensor], sampling: Sampling, *, adds: bool
) -> RealHead:
    """The regression of a posterior that is no mixture.

    Args:
        posterior: With a Gaussian likelihood; a noise that was given as a number stays.
        rows: Inputs and targets of the regression.
        sampling: Over whose samples ΦᵀΦ and Φᵀr are means: they share one Gaussian.
        adds: Whether the prior is centred at the network's own weights, or else at 0.
    """
    likelihood = posterior.likelihood
    assert isinstance(likelihood, Gaussian)
    if likelihood.noise_std == "head":
        raise InvalidValue(
            "noise_std",
            "head",
            "gives every row a noise of its own, which the closed form does not know",
            "use gossamer.tempered",
        )
    x, y = rows
    layer, blocks = sampling.features(posterior, x)
    second, cross, square = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for outputs, features, part in blocks:
        require_narrow(features.shape[2])
        target = y[part].double()
        likelihood.log_lik(outputs[0].to(y.device), target)  # refuses another shape
        left = target.reshape(outputs.shape[1:]).expand_as(outputs)
        left = left - outputs if adds else left
        samples = len(outputs)
        flat = features.flatten(0, 1)
        second = second.to(flat) + flat.T @ flat / samples
        cross = cross.to(flat) + flat.T @ left.flatten(0, 1) / samples
        square = square.to(flat) + left.square().sum((0, 1)) / samples
    if not bool(torch.isfinite(second).all() and torch.isfinite(cross).all()):
        raise InvalidData("features of the rows", None, "must be finite", "check the weights")
    count = len(x)
    read, level, _, _ = largest(layer, second / count, second.shape[0])
    given = None if isinstance(likelihood.noise_std, str) else float(likelihood.noise_std)
    along = read.basis.T @ cross
    means, priors, noises = [], [], []
    for column in range(along.shape[1]):
        evidence = Evidence(count * level, along[:, column], float(square[column]), count, given)
        ratio = evidence.best_ratio()
        noises.append(evidence.std(ratio))
        priors.append(ratio / noises[-1] ** 2)
        means.append(read.basis @ (evidence.along / (evidence.level + ratio)))
    dtype = next(posterior.draws.network.parameters()).dtype
    noise = level.new_tensor(noises)
    return RealHead(
        read.moved(lambda t: t.to(dtype)),
        torch.stack(means).to(dtype),
        adds,
        (count / noise.square()).to(dtype),
        level.new_tensor(priors).to(dtype),
        noise.to(dtype),
    )
