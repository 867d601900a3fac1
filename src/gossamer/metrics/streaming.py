"""Shells that take predictions batch by batch and answer under the JSON keys.

The numbers come from the functions of this package; the shells only collect.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.metrics._validation import check_level, check_num_bins, check_probs
from gossamer.metrics.calibration import (
    adaptive_ece,
    classwise_ece,
    ece,
    marginal_calibration_error,
)
from gossamer.metrics.classification import accuracy, brier, nll
from gossamer.metrics.regression import (
    gaussian_mixture_coverage,
    gaussian_mixture_crps,
    gaussian_mixture_nll,
    rmse,
)


class ClassificationMetrics:
    """Collects class probabilities; keeps 4 C + 8 bytes per row on the CPU.

    Probabilities are kept in float32, because bins of equal mass need all of them at once.

    Args:
        num_bins: Bins of ``ece``, ``adaptive_ece`` and ``classwise_ece``.

    Example:
        >>> metrics = ClassificationMetrics()
        >>> metrics.update(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        >>> metrics.update(torch.tensor([[0.25, 0.75]]), torch.tensor([0]))
        >>> metrics.compute()["accuracy"]
        0.5
    """

    def __init__(self, num_bins: int = 15) -> None:
        check_num_bins(num_bins)
        self.num_bins = num_bins
        self._probs: list[Tensor] = []
        self._target: list[Tensor] = []

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Add a batch: ``probs`` [B, C], ``target`` [B]."""
        checked, labels = check_probs(probs, target)
        if self._probs and self._probs[0].shape[1] != checked.shape[1]:
            raise InvalidData(
                "probs.shape",
                tuple(probs.shape),
                f"must have C = {self._probs[0].shape[1]} as the batches before",
                "call reset() between data sets",
            )
        # Copies: the caller may reuse its buffers.
        self._probs.append(checked.to(torch.float32, copy=True))
        self._target.append(labels.clone())

    def compute(self) -> dict[str, float]:
        """All figures over the batches so far."""
        if not self._probs:
            raise _no_batches()
        probs, target = torch.cat(self._probs), torch.cat(self._target)
        return {
            "accuracy": accuracy(probs, target),
            "nll": nll(probs, target),
            "brier": brier(probs, target),
            "ece": ece(probs, target, self.num_bins),
            "adaptive_ece": adaptive_ece(probs, target, self.num_bins),
            "classwise_ece": classwise_ece(probs, target, self.num_bins),
            "marginal_calibration_error": marginal_calibration_error(probs, target),
        }

    def reset(self) -> None:
        """Forget all batches."""
        self._probs.clear()
        self._target.clear()


class RegressionMetrics:
    """Sums the scores of Gaussian mixtures; keeps five numbers, no predictions.

    Every figure is a mean over rows (``rmse`` before its root), so sums in float64 are enough.

    Args:
        level: Nominal probability of the central interval behind ``coverage``.

    Example:
        >>> metrics = RegressionMetrics()
        >>> metrics.update(torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([0.0, 2.0]))
        >>> metrics.compute()["coverage"]
        0.5
    """

    def __init__(self, level: float = 0.9) -> None:
        check_level(level)
        self.level = level
        self._rows = 0
        self._outputs: tuple[int, ...] | None = None
        self._sums = dict.fromkeys(("mse", "nll", "crps", "coverage"), 0.0)

    def update(self, means: Tensor, stds: Tensor, target: Tensor) -> None:
        """Add a batch: ``means`` and ``stds`` [S, B] or [S, B, D], ``target`` [B] or [B, D]."""
        scores = {
            "nll": gaussian_mixture_nll(means, stds, target),
            "crps": gaussian_mixture_crps(means, stds, target),
            "coverage": gaussian_mixture_coverage(means, stds, target, self.level),
            "mse": rmse(means.detach().cpu().double().mean(dim=0), target) ** 2,
        }
        outputs = tuple(target.shape[1:])
        if self._outputs is not None and self._outputs != outputs:
            raise InvalidData(
                "target.shape",
                tuple(target.shape),
                f"must be [B] + {self._outputs} as the batches before",
                "call reset() between data sets",
            )
        self._outputs = outputs
        self._rows += target.shape[0]
        for key, score in scores.items():
            self._sums[key] += score * target.shape[0]

    def compute(self) -> dict[str, float]:
        """All figures over the batches so far."""
        if not self._rows:
            raise _no_batches()
        means = {key: total / self._rows for key, total in self._sums.items()}
        return {
            "rmse": means["mse"] ** 0.5,
            "nll": means["nll"],
            "crps": means["crps"],
            "coverage": means["coverage"],
        }

    def reset(self) -> None:
        """Forget all batches."""
        self._rows = 0
        self._outputs = None
        self._sums = dict.fromkeys(self._sums, 0.0)


def _no_batches() -> InvalidData:
    return InvalidData("batches", 0, "must be at least 1", "call update() before compute()")
