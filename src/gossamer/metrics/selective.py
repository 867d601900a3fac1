"""Selective prediction: what a model still gets wrong when it answers only where it is surest.

A loss is any number per row: 0 and 1 for a right and a wrong label, a squared error. The risk at a
coverage is the mean loss of the rows that are answered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.metrics._validation import check_same_shape, check_vector


class RiskCoverageCurve(NamedTuple):
    """Risk against coverage, from the most confident row to all rows.

    Attributes:
        coverage: [B], float64, i/B.
        risk: [B], float64, mean loss of the i most confident rows.
    """

    coverage: Tensor
    risk: Tensor


class SelectiveCurve(NamedTuple):
    """Accuracy against coverage, from the most confident row to all rows.

    Attributes:
        coverage: [B], float64, i/B.
        accuracy: [B], float64, accuracy of the i most confident rows.
    """

    coverage: Tensor
    accuracy: Tensor


def risk_coverage_curve(confidence: Tensor, loss: Tensor) -> RiskCoverageCurve:
    """Mean loss of the i most confident rows, for every i.

    Among equal confidences no order is better than another: the curve is the mean over all their
    orders, so it does not depend on the order of rows.

    Args:
        confidence: [B]; higher is answered first. Pass −entropy, −std for an uncertainty.
        loss: [B], any real number; 1 where a label is wrong and 0 where it is right.

    Example:
        >>> curve = risk_coverage_curve(torch.tensor([0.6, 0.9]), torch.tensor([4.0, 1.0]))
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.5, 1.0], [1.0, 2.5])
    """
    values = check_vector("confidence", confidence)
    if _is_bool(loss):
        raise InvalidData(
            "loss dtype",
            "torch.bool",
            "must be a loss per row, higher where the answer is worse",
            "pass (predicted != target).double()",
        )
    losses = check_vector("loss", loss)
    check_same_shape("loss", loss, "confidence", confidence)
    ordered, order = (-values).sort()
    # Rows of equal confidence share the place of their first one; each counts as their mean.
    first = torch.searchsorted(ordered, ordered)
    total = torch.zeros_like(losses).scatter_add(0, first, losses[order])
    size = torch.zeros_like(losses).scatter_add(0, first, torch.ones_like(losses))
    answered = torch.arange(1, values.numel() + 1, dtype=torch.float64)
    risk = (total[first] / size[first]).cumsum(dim=0) / answered
    return RiskCoverageCurve(coverage=answered / values.numel(), risk=risk)


def selective_curve(confidence: Tensor, correct: Tensor) -> SelectiveCurve:
    """Accuracy of the i most confident rows, for every i: 1 − risk for the loss of labels.

    Args:
        confidence: [B]; higher is answered first. Pass −entropy for an uncertainty.
        correct: [B], bool or 0/1.

    Example:
        >>> curve = selective_curve(torch.tensor([0.9, 0.6]), torch.tensor([True, False]))
        >>> curve.coverage.tolist(), curve.accuracy.tolist()
        ([0.5, 1.0], [1.0, 0.5])
    """
    hit = check_vector("correct", correct.double() if _is_bool(correct) else correct)
    check_same_shape("correct", correct, "confidence", confidence)
    if not bool(((hit == 0) | (hit == 1)).all()):
        raise InvalidData("correct", None, "must hold only 0 and 1", "pass predicted == target")
    coverage, risk = risk_coverage_curve(confidence, 1 - hit)
    return SelectiveCurve(coverage, 1 - risk)


def aurc(confidence: Tensor, loss: Tensor) -> float:
    """Area under the risk-coverage curve: mean over i of the mean loss of the i most confident.

    Geifman and El-Yaniv (2017); lower is better, and a perfect ranking of a classifier with error
    rate r still has about r + (1 − r) log(1 − r), see :func:`excess_aurc`. Others take trapezoids
    from coverage 1/B to 1 and divide by 1 − 1/B: that leaves half of the first and of the last risk
    out, a difference of O(1/B).

    Args:
        confidence: [B]; higher is answered first.
        loss: [B], see :func:`risk_coverage_curve`.

    Example:
        >>> aurc(torch.tensor([0.9, 0.6]), torch.tensor([0.0, 1.0]))
        0.25
    """
    return float(risk_coverage_curve(confidence, loss).risk.mean())


def excess_aurc(confidence: Tensor, loss: Tensor) -> float:
    """What :func:`aurc` has above that of the best order, which answers the least loss first.

    E-AURC of Geifman, Uziel and El-Yaniv (2019), who approximate the best order's area by
    r + (1 − r) log(1 − r); here it is the area of these very losses. 0 for a perfect ranking,
    however good or bad the answers are.

    Args:
        confidence: [B]; higher is answered first.
        loss: [B], see :func:`risk_coverage_curve`.

    Example:
        >>> excess_aurc(torch.tensor([0.6, 0.9]), torch.tensor([0.0, 1.0]))  # 0.75 − 0.25
        0.5
    """
    # No order is better than the best one; rounding may say so.
    return max(0.0, aurc(confidence, loss) - aurc(-check_vector("loss", loss), loss))


def _is_bool(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool
