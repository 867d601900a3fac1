"""What a prediction holds: the average over posterior samples, and its uncertainty in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.core import families
from gossamer.errors import InvalidData, InvalidValue
from gossamer.prediction.conformal.classes import ClassCalibration, most_probable
from gossamer.prediction.conformal.rank import exact
from gossamer.prediction.conformal.real import RealCalibration

_BISECTIONS = 60
_SAFETY = 30
"""How often the bracket of a quantile may double: 10 stds hold no quantile of a heavy tail."""
_MOST_COUNTS = 4096
"""Counts that a CRPS adds up one by one; of a longer range it takes so many, evenly spaced."""
_BLOCK = 1 << 21
"""Values ``[counts, S, rows]`` at a time."""


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
        calibration: What held-out rows say of ``label_set``, or ``None``.
    """

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor
    energy: Tensor
    samples: Tensor | None
    class_dim: int = 1
    calibration: ClassCalibration | None = None

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

    def label_set(
        self,
        coverage: float = 0.9,
        *,
        generator: torch.Generator | None = None,
        may_be_empty: bool = False,
    ) -> Tensor:
        """Labels among which the true one is: bool, of the shape of ``probs``.

        After ``gossamer.prediction.calibrated`` at least ``coverage`` of new rows have their label
        in their set (docs/conformal.md says when). Without it, they are the fewest labels that hold
        that much probability: the model's own belief.

        Args:
            coverage: In (0, 1).
            generator: For randomised calibrations, and only for them.
            may_be_empty: Leave a set empty where no label fits; otherwise it holds the most
                probable label, which only raises coverage.

        Raises:
            InvalidValue: There were too few held-out rows for that coverage.
        """
        if self.calibration is not None:
            found = self.calibration.sets(self.probs, coverage, generator)
        elif generator is not None:
            raise InvalidValue("generator", None, "is for randomised calibrations")
        else:
            return most_probable(self.probs, coverage, self.class_dim)
        if not may_be_empty:
            found = found.scatter(1, self.label[:, None], True)
        return found


@dataclass(frozen=True, eq=False)
class RealPrediction:
    """A real (or count) target: a mixture over S posterior samples.

    Attributes:
        mean: ``[B]`` or ``[B, D]``.
        epistemic: Std of the sample means: what more data would remove.
        aleatoric: Root mean square of the samples' noise std.
        samples: ``[S, B]`` or ``[S, B, D]``: the mean of each part of the mixture, a posterior
            sample each; the mean itself where left-out rows say how wide it is (one normal
            distribution: ``gossamer.prediction.finish.left_out``).
        noise: Std of each part, same shape.
        counts: Whether targets are counts: the samples are then their rates.
        calibration: What held-out rows say of ``interval``, ``quantile`` and ``cdf``, or ``None``:
            then they are the mixture's own. All else is the mixture's in either case.
        shape: What a sample's distribution has beside mean and std, of the shape of ``samples``:
            degrees of freedom of Student's t, the dispersion α of counts of variance μ + α μ².
            ``None`` where it is normal, or, for counts, Poisson.
        departures: ``[M, B]`` or ``[M, B, D]``: how far the answers of M networks lie from the mean
            in all rows at once, each row scaled to ``epistemic``; ``None`` where ``samples`` tell
            it. A draw for several rows takes one of them.
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    samples: Tensor
    noise: Tensor
    counts: bool = False
    calibration: RealCalibration | None = None
    shape: Tensor | None = None
    departures: Tensor | None = None

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mixture: epistemic and aleatoric together."""
        return (self.epistemic.square() + self.aleatoric.square()).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central interval of the mixture that holds ``level`` of its mass.

        Lower and upper, each of the shape of ``mean``.

        For counts the ends are whole numbers, so it holds at least that much.

        After ``gossamer.prediction.calibrated`` it is conformal: it holds at least ``level`` of new
        targets, whatever the mixture believes (docs/conformal.md says when).

        Raises:
            InvalidValue: ``level`` is outside (0, 1), or there were too few held-out rows for it.
        """
        if not 0.0 < level < 1.0:
            raise InvalidValue("level", level, "must lie in (0, 1)")
        if self.calibration is not None:
            return self.calibration.interval(self.mean, self.std, level)
        tail = 0.5 * (1.0 - level)
        return self.quantile(tail), self.quantile(1.0 - tail)

    def quantile(self, probability: float) -> Tensor:
        """The mixture's quantile by bisection on its distribution function.

        After calibration it is that of held-out rows: mean + std · z.
        """
        if not 0.0 < probability < 1.0:
            raise InvalidValue("probability", probability, "must lie in (0, 1)")
        if self.calibration is not None:
            wanted = exact(probability, "probability")
            return self.calibration.quantile(self.mean, self.std, wanted)
        samples, noise = self.samples.double(), self.noise.double()
        # A mixture's quantile lies between the smallest and largest of its components' quantiles;
        # ten std covers those of light tails.
        low = (samples - 10.0 * noise).amin(0)
        high = (samples + 10.0 * noise).amax(0) + float(self.counts)
        if self.counts:
            low, high = torch.full_like(low, -1.0), high.ceil()
        if self.shape is not None:
            low, high = self._bracketed(low, high, probability)
        cdf = self._cdf
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            middle = middle.floor() if self.counts else middle
            below = cdf(middle) < probability
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high.to(self.mean.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a target up to ``value``: float64, of the shape of ``mean``.

        After calibration it is that of held-out rows, a staircase of n + 1 even steps.

        Args:
            value: Of the shape of ``mean``.
        """
        value = self._targets(value)
        if self.calibration is not None:
            return self.calibration.cdf((value - self.mean.double()) / self.std.double())
        return self._cdf(value)

    def to_scale(self, location: float, scale: float) -> RealPrediction:
        """The prediction of location + scale · target.

        Back to original units. Real targets only.
        """
        if self.counts:
            raise InvalidValue("prediction", "counts", "cannot be shifted or scaled")
        if not scale > 0.0:
            raise InvalidValue("scale", scale, "must be positive")
        # Scores are in units of the std, so that a calibration stays what it is.
        return replace(
            self,
            mean=location + scale * self.mean,
            epistemic=scale * self.epistemic,
            aleatoric=scale * self.aleatoric,
            samples=location + scale * self.samples,
            noise=scale * self.noise,
            shape=self.shape,
            departures=None if self.departures is None else scale * self.departures,
        )

    def log_prob(self, target: Tensor) -> Tensor:
        """Log-density of the mixture at targets, or log-probability of counts: float64 ``[B]``.

        Where a target has several columns they share the draw: the mixture is of their products.

        Args:
            target: ``[B]`` or ``[B, D]``, as ``mean`` is.

        Example:
            >>> import gossamer, torch
            >>> x = torch.zeros(3, 2)
            >>> found = gossamer.predict(torch.nn.Linear(2, 1), x, likelihood="gaussian")
            >>> found.log_prob(found.mean).shape
            torch.Size([3])
        """
        value = self._targets(target)
        mean, std = self.samples.double(), self.noise.double()
        shape = None if self.shape is None else self.shape.double()
        if self.counts:
            wrong = (value < 0.0) | (value != value.round())
            if bool(wrong.any()):
                raise InvalidData("target", float(value[wrong][0]), "must be a whole number ≥ 0")
            each = (
                families.poisson_log_prob(value, mean)
                if shape is None
                else families.negative_binomial_log_prob(value, mean.log(), shape)
            )
        elif shape is None:
            each = families.normal_log_prob(value, mean, std)
        else:
            each = families.student_log_prob(value, mean, std, shape)
        rows = each.flatten(2).sum(2) if each.dim() > 2 else each
        return rows.logsumexp(0) - torch.tensor(float(len(rows)), dtype=torch.float64).log()

    def crps(self, target: Tensor) -> Tensor:
        """Continuous ranked probability score of each column, in the target's units: float64.

        ∫ (F(x) − 1{x ≥ y})² dx, lower is better: in closed form for normal noise, by quadrature
        for Student's t, as a sum for counts.

        Args:
            target: ``[B]`` or ``[B, D]``, as ``mean`` is.
        """
        value = self._targets(target)
        mean, std = (part.double().flatten(1) for part in (self.samples, self.noise))
        flat = value.flatten()
        if self.counts:
            found = self._count_crps(flat)
        elif self.shape is not None:
            shape = self.shape.double().flatten(1)
            found = families.student_mixture_crps(flat, mean, std, shape)
        else:
            found = families.normal_mixture_crps(flat, mean, std)
        return found.reshape(value.shape)

    def _count_crps(self, target: Tensor) -> Tensor:
        """Of flat targets: Σ_k (F(k) − 1{k ≥ y})², over the counts that are not sure."""
        flat = replace(
            self,
            mean=self.mean.flatten(),
            samples=self.samples.flatten(1),
            noise=self.noise.flatten(1),
            shape=None if self.shape is None else self.shape.flatten(1),
            calibration=None,
        )
        far = 1e-9
        low = torch.minimum(flat.quantile(far).double(), target).floor()
        high = torch.maximum(flat.quantile(1.0 - far).double(), target).ceil()
        found = torch.empty_like(target)
        at_once = max(1, _BLOCK // (_MOST_COUNTS * len(self.samples)))
        for first in range(0, len(target), at_once):
            rows = slice(first, first + at_once)
            part = replace(
                flat,
                mean=flat.mean[rows],
                samples=flat.samples[:, rows],
                noise=flat.noise[:, rows],
                shape=None if flat.shape is None else flat.shape[:, rows],
            )
            found[rows] = part._count_crps_between(target[rows], low[rows], high[rows])
        return found

    def _count_crps_between(self, target: Tensor, low: Tensor, high: Tensor) -> Tensor:
        longest = int((high - low).max()) + 1
        steps = min(longest, _MOST_COUNTS)
        # A long range is cut at the target, where the integrand jumps, into blocks of like length.
        if longest <= _MOST_COUNTS:
            k = low + torch.arange(steps, dtype=low.dtype, device=low.device)[:, None]
            score = (self._cdf_of(k) - (k >= target).double()).square()
            return torch.where(k <= high, score, 0.0).sum(0)
        total = torch.zeros_like(target)
        places = (torch.arange(steps // 2, dtype=low.dtype, device=low.device) + 0.5)[:, None]
        for start, end, above in ((low, target, 0.0), (target, high + 1.0, 1.0)):
            width = (end - start) / (steps // 2)
            x = start + places * width
            total += width * (self._cdf_of(x) - above).square().sum(0)
        return total

    def _cdf_of(self, values: Tensor) -> Tensor:
        """At several values ``[K, B]`` per row, of flat samples."""
        return torch.stack([self._cdf(row) for row in values])

    def _cdf(self, value: Tensor) -> Tensor:
        mean, std = self.samples.double(), self.noise.double()
        if self.shape is None:
            each = (
                families.poisson_cdf(value, mean)
                if self.counts
                else families.normal_cdf(value, mean, std)
            )
        elif self.counts:
            each = families.negative_binomial_cdf(value, mean, self.shape.double())
        else:
            each = families.student_cdf(value, mean, std, self.shape.double())
        return each.mean(0)

    def _bracketed(self, low: Tensor, high: Tensor, probability: float) -> tuple[Tensor, Tensor]:
        """A bracket that holds the quantile, by doubling."""
        for _ in range(_SAFETY):
            late, early = self._cdf(low) >= probability, self._cdf(high) < probability
            if self.counts:
                late = torch.zeros_like(late)  # nothing lies below -1
            if not bool((late | early).any()):
                break
            width = high - low
            low = torch.where(late, low - width, low)
            high = torch.where(early, high + width, high)
        return low, high

    def _targets(self, target: Tensor) -> Tensor:
        if target.shape not in (self.mean.shape, (*self.mean.shape, 1)):
            rule = f"must be the prediction's shape {tuple(self.mean.shape)}"
            raise InvalidData("target shape", tuple(target.shape), rule)
        return target.to(self.samples.device).double().reshape(self.mean.shape)


Prediction = ClassPrediction | RealPrediction
