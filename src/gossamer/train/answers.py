"""A prediction beside the truth: what evaluation asks of it, in original units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from gossamer.data import Preparation
from gossamer.metrics import (
    accuracy,
    ece,
    gaussian_mixture_coverage,
    gaussian_mixture_nll,
    nll,
    rmse,
)
from gossamer.prediction import ClassPrediction, Prediction, RealPrediction

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
        y: Their targets, as they were prepared.
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
        if ready is None:
            return Mixture(found.samples.double(), found.noise.double(), self.y.double())
        return Mixture(
            ready.target_to_original(found.samples.double()),
            ready.scale_to_original(found.noise.double()),
            ready.target_to_original(self.y.double()),
        )

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
            means, stds, _ = self.mixture
            epistemic = means.var(0, correction=0)
            found = {"std": -by_row(epistemic + stds.square().mean(0))}
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
            "nll": gaussian_mixture_nll(*self.mixture),
            "coverage": gaussian_mixture_coverage(*self.mixture),
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
