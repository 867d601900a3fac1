"""The arrays that a report draws: of the answers, and of the weights behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.metrics import confusion_matrix, reliability_curve, risk_coverage_curve
from gossamer.nn import summary, weights_of
from gossamer.prediction import RealPrediction
from gossamer.train.answers import Answers

_HISTOGRAM_BINS = 40
_CURVE_POINTS = 200
_LEVELS = [round(0.05 * i, 2) for i in range(1, 20)]

Curves = dict[str, Any]


def answer_curves(answers: Answers, outside: Mapping[str, Mapping[str, Tensor]]) -> Curves:
    """Calibration, selective prediction and entropies as JSON values.

    Args:
        answers: Of the part.
        outside: Uncertainties of other sets by their names; the first is drawn.
    """
    prediction, selective = answers.prediction, _selective(answers)
    if isinstance(prediction, RealPrediction):
        observed = [answers.coverage(level) for level in _LEVELS]
        return {
            "intervals": {"nominal": _LEVELS, "observed": observed},
            "selective": selective,
        }
    correct = prediction.label == answers.y
    edges = torch.linspace(
        0.0, math.log(prediction.probs.shape[1]), _HISTOGRAM_BINS + 1, dtype=torch.float64
    )
    first = next(iter(outside.values()), None)
    return {
        "confusion": {
            "labels": _names(answers, prediction.probs.shape[1]),
            "counts": confusion_matrix(prediction.probs, answers.y).tolist(),
        },
        "reliability": reliability_curve(prediction.probs, answers.y).to_json(),
        "entropy": {
            "edges": edges.tolist(),
            "right": _counts(prediction.entropy[correct], edges),
            "wrong": _counts(prediction.entropy[~correct], edges),
            "ood": None if first is None else _counts(first["entropy"], edges),
        },
        "selective": {**selective, "accuracy": [1.0 - risk for risk in selective["risk"]]},
    }


def _names(answers: Answers, classes: int) -> list[str]:
    ready = answers.preparation
    names = None if ready is None else ready.label_names
    return names or [str(label) for label in range(classes)]


def weight_curves(network: nn.Module) -> Curves:
    """Sizes of the layers, and histograms of means and standard deviations of the weights."""
    layers = [
        {"name": r.name, "shape": list(r.shape), "nnz": r.nnz, "sparsity": r.sparsity}
        for r in summary(network).rows
    ]
    weights = weights_of(network)
    if not weights:
        return {"layers": layers}
    means = torch.cat([weight.values.detach().cpu().double().flatten() for weight in weights])
    histograms = {"mean_hist": _histogram(means)}
    found = [weight.layer.weight_std for weight in weights]
    stds = [std.detach().cpu().double().flatten() for std in found if std is not None]
    if stds:
        # The report shows σ on a logarithmic axis: bins of equal ratio.
        logs = _histogram(torch.cat(stds).log())
        histograms["std_hist"] = {**logs, "edges": [math.exp(edge) for edge in logs["edges"]]}
    return {"layers": layers, "weights": histograms}


def _selective(answers: Answers) -> dict[str, list[float]]:
    """Risk by the customary confidence, and that of the best order, at some coverages."""
    confidence = next(iter(answers.confidences.values()))
    curve = risk_coverage_curve(confidence, answers.loss)
    best = risk_coverage_curve(-answers.loss, answers.loss)
    count = len(answers.loss)
    places = torch.linspace(0, count - 1, min(_CURVE_POINTS, count)).round().long()
    return {
        "coverage": curve.coverage[places].tolist(),
        "risk": curve.risk[places].tolist(),
        "best_risk": best.risk[places].tolist(),
    }


def _histogram(values: Tensor) -> dict[str, list[float] | list[int]]:
    low, high = float(values.min()), float(values.max())
    if low == high:  # a histogram needs a width
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, _HISTOGRAM_BINS + 1, dtype=torch.float64)
    return {"edges": edges.tolist(), "counts": _counts(values, edges)}


def _counts(values: Tensor, edges: Tensor) -> list[int]:
    """Values per bin; what rounding puts beyond the outer edges belongs to the outer bins."""
    bins = torch.bucketize(values.double(), edges[1:-1])
    return [int(count) for count in torch.bincount(bins, minlength=len(edges) - 1)]
