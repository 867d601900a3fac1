"""A prediction beside the truth: what evaluation asks of it, in original units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from gossamer.data import Preparation
from gossamer.metrics import (
    accuracy,
    ece,
    gaussian_mixture_coverage,
    gaussian_mixture_nll,
    interval_coverage,
    nll,
    rmse,
)
from gossamer.prediction import ClassPrediction, Prediction, RealPrediction
from gossamer.prediction.combine import real_prediction
from gossamer.prediction.table import LEVEL

_BETWEEN_SAMPLES = ("mutual_information", "epistemic")


class Mixture(NamedTuple):
    """A real prediction and its target in original units and float64.

    Attributes:
        means: Of every sample, [S, B] or [S, B, D].
        stds: Noise of every sample, same shape.
        target: [B] or [B, D].
    """

    means: Tensor
    stds: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)
class Answers:
    """What was predicted for some rows, and what was true. Everything is on the CPU.

    Attributes:
        prediction: Of B rows.
        y: Their targets [B], [B, 1] or [B, D], as they were prepared.
        preparation: How targets become original units; ``None`` where they are.
    """

    prediction: Prediction
    y: Tensor
    preparation: Preparation | None

    @cached_property
    def mixture(self) -> Mixture:
        """Of a real prediction."""
        found, ready = self.prediction, self.preparation
        assert isinstance(found, RealPrediction)
        # One column may come as [B, 1]; the prediction of one column is [B].
        y = self.y.double()
        target = y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y
        if ready is None:
            return Mixture(found.samples.double(), found.noise.double(), target)
        return Mixture(
            ready.target_to_original(found.samples.double()),
            ready.scale_to_original(found.noise.double()),
            ready.target_to_original(target),
        )

    @cached_property
    def original(self) -> RealPrediction:
        """A real prediction in original units and float64, with all that its noise is."""
        found = self.prediction
        assert isinstance(found, RealPrediction)
        means, stds, _ = self.mixture
        shape = None if found.shape is None else found.shape.double()
        original = real_prediction(means, stds, counts=found.counts, shape=shape)
        if found.departures is not None:  # the samples are the mean: they do not tell the parts
            original = replace(
                original,
                epistemic=self._in_units(found.epistemic),
                aleatoric=self._in_units(found.aleatoric),
            )
        # Scores are in units of the std, whatever that is measured in.
        return replace(original, calibration=found.calibration)

    def _in_units(self, scale: Tensor) -> Tensor:
        ready = self.preparation
        return scale.double() if ready is None else ready.scale_to_original(scale.double())

    @property
    def is_normal(self) -> bool:
        """Whether a real prediction is a mixture of normal distributions."""
        found = self.prediction
        return isinstance(found, RealPrediction) and not found.counts and found.shape is None

    def coverage(self, level: float = LEVEL) -> float:
        """Share of real targets in the central interval; its ends belong to it."""
        if isinstance(self.prediction, RealPrediction) and self.prediction.calibration is not None:
            lower, upper = self.original.interval(level)
            return interval_coverage(lower, upper, self.mixture.target)
        if self.is_normal:
            return gaussian_mixture_coverage(*self.mixture, level)
        if isinstance(self.prediction, RealPrediction) and self.prediction.counts:
            lower, upper = self.original.interval(level)
            return interval_coverage(lower, upper, self.mixture.target)
        distance = (self.original.cdf(self.mixture.target) - 0.5).abs()
        return float((distance <= level / 2).double().mean())

    @cached_property
    def loss(self) -> Tensor:
        """float64 [B]: 1 for a wrong label; the squared error, mean over a target's columns."""
        if isinstance(self.prediction, ClassPrediction):
            return (self.prediction.label != self.y).double()
        means, _, target = self.mixture
        return by_row((means.mean(0) - target).square())

    @cached_property
    def confidences(self) -> dict[str, Tensor]:
        """What answers can be chosen by, [B] each and higher where surer; the first is customary.

        For classes the probability of the label and minus each score of ``uncertainties``; for real
        targets minus the predicted variance, and minus its epistemic part. Variances order rows as
        standard deviations do, and their mean over a target's columns is what the loss should be.
        What tells no input from another, because there is one sample, is left out.
        """
        if isinstance(self.prediction, ClassPrediction):
            found = {"confidence": self.prediction.confidence}
            scores = uncertainties(self.prediction)
        else:
            epistemic = self.original.epistemic.square()
            found = {"std": -by_row(epistemic + self.original.aleatoric.square())}
            scores = {"epistemic": by_row(epistemic)}
        return found | {name: -s for name, s in scores.items() if tells(name, s)}

    def main_figures(self) -> dict[str, float]:
        """Quality, likelihood and honesty in one figure each."""
        if isinstance(self.prediction, ClassPrediction):
            probs, y = self.prediction.probs, self.y
            return {"accuracy": accuracy(probs, y), "nll": nll(probs, y), "ece": ece(probs, y)}
        means, _, target = self.mixture
        return {
            "rmse": rmse(means.mean(0), target),
            "nll": gaussian_mixture_nll(*self.mixture)
            if self.is_normal
            else -float(self.original.log_prob(target).mean()),
            "coverage": self.coverage(),
        }


def uncertainties(prediction: Prediction) -> dict[str, Tensor]:
    """Scores by which an input may be called unusual, [B] each, higher where more so.

    Entropy, mutual information and energy of classes; predicted and epistemic standard deviation of
    real targets, mean over a target's columns. The first is customary.
    """
    if isinstance(prediction, ClassPrediction):
        return {
            "entropy": prediction.entropy,
            "mutual_information": prediction.mutual_information,
            "energy": prediction.energy,
        }
    return {"std": by_row(prediction.std), "epistemic": by_row(prediction.epistemic)}


def tells(name: str, *scores: Tensor) -> bool:
    """Whether a score says anything: what samples differ by is 0 everywhere where there is one."""
    return name not in _BETWEEN_SAMPLES or any(bool(score.any()) for score in scores)


def by_row(values: Tensor) -> Tensor:
    """[B, ...] as one value per row."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values
