"""What a prediction holds: the average over posterior samples, and its uncertainty in parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.errors import InvalidValue

_BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class ClassPrediction:
    """Class probabilities averaged over S posterior samples.

    Where outputs have a class per position (pixels, tokens) ``probs`` has their layout, and what is
    ``[B]`` below has one value per position: ``[B, ...]``, the class axis left out.

    Attributes:
        probs: ``[B, C]``, mean over samples.
        entropy: ``[B]``, nats, of ``probs``: the total uncertainty.
        mutual_information: ``[B]``, nats, between label and weights: the epistemic part, what more
            data would remove.
        energy: ``[B]``, nats: −mean over samples of log Σ_c exp(logit_c), larger for inputs that
            excite no class. One logit z counts as the two logits (0, z).
        samples: ``[S, B, C]`` probabilities of each sample, or ``None`` if they were not kept.
        class_dim: The axis of ``probs`` that holds the classes, counted from 0.
    """

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor
    energy: Tensor
    samples: Tensor | None
    class_dim: int = 1

    @property
    def label(self) -> Tensor:
        """Most probable class: int64 ``[B]``."""
        return self.probs.argmax(self.class_dim)

    @property
    def confidence(self) -> Tensor:
        """Probability of ``label``: ``[B]``."""
        return self.probs.amax(self.class_dim)

    @property
    def aleatoric(self) -> Tensor:
        """``[B]``, nats: mean entropy of the samples, the part that more data would not remove."""
        return self.entropy - self.mutual_information


@dataclass(frozen=True, eq=False)
class RealPrediction:
    """A real (or count) target: a mixture over S posterior samples.

    Attributes:
        mean: ``[B]`` or ``[B, D]``.
        epistemic: Std of the sample means: what more data would remove.
        aleatoric: Root mean square of the samples' noise std.
        samples: ``[S, B]`` or ``[S, B, D]``: the mean of each sample.
        noise: Noise std of each sample, same shape.
        counts: Whether the samples are Poisson rates rather than Gaussian means.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    samples: Tensor
    noise: Tensor
    counts: bool = False

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mixture: epistemic and aleatoric together."""
        return (self.epistemic.square() + self.aleatoric.square()).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central interval of the mixture that holds ``level`` of its mass.

        Lower and upper, each of the shape of ``mean``.

        For counts the ends are whole numbers, so it holds at least that much.
        """
        if not 0.0 < level < 1.0:
            raise InvalidValue("level", level, "must lie in (0, 1)")
        tail = 0.5 * (1.0 - level)
        return self.quantile(tail), self.quantile(1.0 - tail)

    def quantile(self, probability: float) -> Tensor:
        """The mixture's quantile by bisection on its distribution function."""
        if not 0.0 < probability < 1.0:
            raise InvalidValue("probability", probability, "must lie in (0, 1)")
        samples, noise = self.samples.double(), self.noise.double()
        # A mixture's quantile lies between the smallest and largest of its components' quantiles;
        # ten std covers them.
        low = (samples - 10.0 * noise).amin(0)
        high = (samples + 10.0 * noise).amax(0) + float(self.counts)
        cdf = self._count_cdf if self.counts else self._real_cdf
        if self.counts:
            low, high = torch.full_like(low, -1.0), high.ceil()
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            middle = middle.floor() if self.counts else middle
            below = cdf(middle) < probability
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high.to(self.mean.dtype)

    def to_scale(self, location: float, scale: float) -> RealPrediction:
        """The prediction of location + scale · target.

        Back to original units. Real targets only.
        """
        if self.counts:
            raise InvalidValue("prediction", "counts", "cannot be shifted or scaled")
        if not scale > 0.0:
            raise InvalidValue("scale", scale, "must be positive")
        return RealPrediction(
            mean=location + scale * self.mean,
            epistemic=scale * self.epistemic,
            aleatoric=scale * self.aleatoric,
            samples=location + scale * self.samples,
            noise=scale * self.noise,
        )

    def _real_cdf(self, value: Tensor) -> Tensor:
        z = (value - self.samples.double()) / self.noise.double()
        cdf: Tensor = torch.special.ndtr(z)
        return cdf.mean(0)

    def _count_cdf(self, value: Tensor) -> Tensor:
        rates = self.samples.double()
        inside = torch.special.gammaincc(value.clamp(min=0.0).floor().expand_as(rates) + 1.0, rates)
        return torch.where(value < 0, 0.0, inside.mean(0))


Prediction = ClassPrediction | RealPrediction
