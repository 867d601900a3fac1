"""Selective prediction: accuracy when only the most confident rows are answered."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.metrics._validation import check_same_shape, check_vector


class SelectiveCurve(NamedTuple):
    """Accuracy against coverage, from the most confident row to all rows.

    Attributes:
        coverage: [B], float64, i/B.
        accuracy: [B], float64, accuracy of the i most confident rows.
    """

    coverage: Tensor
    accuracy: Tensor


def selective_curve(confidence: Tensor, correct: Tensor) -> SelectiveCurve:
    """Accuracy of the i most confident rows, for every i.

    Among equal confidences no order is better than another: the curve is the mean over all their
    orders, so it does not depend on the order of rows.

    Args:
        confidence: [B]; higher is answered first. Pass −entropy for an uncertainty.
        correct: [B], bool or 0/1.

    Example:
        >>> curve = selective_curve(torch.tensor([0.9, 0.6]), torch.tensor([True, False]))
        >>> curve.coverage.tolist(), curve.accuracy.tolist()
        ([0.5, 1.0], [1.0, 0.5])
    """
    values = check_vector("confidence", confidence)
    hit = check_vector("correct", correct.double() if _is_bool(correct) else correct)
    check_same_shape("correct", correct, "confidence", confidence)
    if not bool(((hit == 0) | (hit == 1)).all()):
        raise InvalidData("correct", None, "must hold only 0 and 1", "pass predicted == target")
    ordered, order = (-values).sort()
    # Rows of equal confidence share the place of their first one; each counts as their mean.
    first = torch.searchsorted(ordered, ordered)
    hits = torch.zeros_like(hit).scatter_add(0, first, hit[order])
    size = torch.zeros_like(hit).scatter_add(0, first, torch.ones_like(hit))
    answered = torch.arange(1, values.numel() + 1, dtype=torch.float64)
    accuracy = (hits[first] / size[first]).cumsum(dim=0) / answered
    return SelectiveCurve(coverage=answered / values.numel(), accuracy=accuracy)


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """Area under the risk-coverage curve: mean over i of the error rate of the i most confident.

    Geifman and El-Yaniv (2017); lower is better, and a perfect ranking of a model with error rate r
    still has about r + (1 − r) log(1 − r).

    Args:
        confidence: [B].
        correct: [B], bool or 0/1.

    Example:
        >>> aurc(torch.tensor([0.9, 0.6]), torch.tensor([True, False]))
        0.25
    """
    return float((1 - selective_curve(confidence, correct).accuracy).mean())


def _is_bool(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool
