"""Metrics and curves of a method on a part of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.data import DataSet, Preparation
from gossamer.errors import InvalidData, UnknownName
from gossamer.metrics import (
    ClassificationMetrics,
    RegressionMetrics,
    accuracy,
    ece,
    gaussian_mixture_coverage,
    gaussian_mixture_nll,
    nll,
    ood_metrics,
    reliability_curve,
    rmse,
    selective_curve,
)
from gossamer.nn import Noise, summary, weights_of
from gossamer.prediction import (
    ClassPrediction,
    HasPosterior,
    Posterior,
    Prediction,
    RealPrediction,
    posterior_of,
)
from gossamer.train.examples import Examples, Pair

_HISTOGRAM_BINS = 40
_CURVE_POINTS = 200
_LEVELS = [round(0.05 * i, 2) for i in range(1, 20)]

VALIDATION_SAMPLES = 3
"""Posterior samples per validation: enough to follow the NLL, a few per cent of an epoch's cost."""

Metrics = dict[str, float | int | None]
Curves = dict[str, Any]


def evaluate(
    method: HasPosterior | Posterior,
    dataset: DataSet,
    *,
    part: Literal["test", "val"] = "test",
    num_samples: int = 5,
    noise: str = "weight",
    seed: int = 0,
    ood: Mapping[str, Tensor] | None = None,
) -> tuple[Metrics, Curves]:
    """All metrics of a method, and the arrays that a report draws.

    Args:
        method: A trained method, or its posterior.
        dataset: Data prepared as in training.
        part: Which part: ``"test"`` or ``"val"``.
        num_samples: Posterior samples per prediction.
        noise: ``"weight"``, ``"local"``, or ``"both"``: then the metrics under weight noise carry
            the plain keys and those under local noise end in ``_local``. Curves are of the first.
        seed: Of the prediction's noise.
        ood: Out-of-distribution inputs by name. The figures of the first carry the plain keys
            ``auroc``, ``aupr``, ``fpr95``; those of the others end in ``_`` and the name.

    Returns:
        Metrics by their JSON keys, regression in original units; and curves by name.

    Raises:
        InvalidData: The data set has no such part.
    """
    if noise not in ("weight", "local", "both"):
        raise UnknownName("noise", noise, ("weight", "local", "both"))
    if part not in ("test", "val"):
        raise UnknownName("part", part, ("test", "val"))
    x, y = _part(dataset, part)
    modes: tuple[Noise, ...] = ("weight", "local") if noise == "both" else (noise,)  # type: ignore[assignment]
    metrics: Metrics = {}
    curves: Curves = {}
    posterior = posterior_of(method)
    for place, mode in enumerate(modes):
        suffix = "" if place == 0 else f"_{mode}"
        prediction = _predict(posterior, x, num_samples, mode, seed)
        outside = {
            name: _uncertainty(_predict(posterior, inputs, num_samples, mode, seed))
            for name, inputs in (ood or {}).items()
        }
        found = {
            **_scores(prediction, y, dataset.preparation),
            **_ood_scores(_uncertainty(prediction), outside),
        }
        metrics.update({key + suffix: value for key, value in found.items()})
        if place == 0:
            curves = _curves(prediction, y, dataset.preparation, outside)
    metrics.update(posterior.size)
    with posterior.draws.sample(0, seed=seed, noise="weight") as network:
        curves.update(_weight_curves(network))
    return metrics, curves


def validate(
    method: HasPosterior | Posterior, examples: Examples, *, num_samples: int, seed: int
) -> Metrics:
    """The few figures of the validation part that are followed during training.

    Raises:
        InvalidData: There is no validation part.
    """
    if examples.validation is None:
        raise InvalidData(
            "validation part", None, "is absent", "give one to fit, or a data set that has one"
        )
    x, y = examples.validation
    prediction = _predict(posterior_of(method), x, num_samples, "weight", seed)
    if isinstance(prediction, ClassPrediction):
        probs, y = prediction.probs, y.cpu()
        return {"accuracy": accuracy(probs, y), "nll": nll(probs, y), "ece": ece(probs, y)}
    means, stds, target = _original(prediction, y, examples.preparation)
    return {
        "rmse": rmse(means.mean(0), target),
        "nll": gaussian_mixture_nll(means, stds, target),
    }


def _part(dataset: DataSet, part: str) -> Pair:
    """Inputs and targets; the data set says how to get a part that it has not."""
    if part == "val":
        return dataset.x_val, dataset.y_val
    return dataset.x_test, dataset.y_test


def _predict(
    posterior: Posterior, x: Tensor, num_samples: int, noise: Noise, seed: int
) -> Prediction:
    """Made where the posterior is; on the CPU from then on, where metrics are computed."""
    inputs = x.to(posterior.device)
    found = posterior.predict(inputs, num_samples, noise=noise, seed=seed, keep_samples=False)
    values: Any = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in vars(found).items()}
    return type(found)(**values)


def _scores(prediction: Prediction, y: Tensor, preparation: Preparation) -> dict[str, float]:
    if isinstance(prediction, ClassPrediction):
        classes = ClassificationMetrics()
        classes.update(prediction.probs, y)
        return classes.compute()
    real = RegressionMetrics()
    real.update(*_original(prediction, y, preparation))
    return real.compute()


def _original(
    prediction: RealPrediction, y: Tensor, preparation: Preparation | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Means and stds of the mixture and the target, in original units and float64."""
    if preparation is None:
        return prediction.samples.double(), prediction.noise.double(), y.cpu().double()
    return (
        preparation.target_to_original(prediction.samples.double()),
        preparation.scale_to_original(prediction.noise.double()),
        preparation.target_to_original(y.double()),
    )


def _uncertainty(prediction: Prediction) -> Tensor:
    """The score by which an input is called out of distribution: entropy, or the predicted std."""
    if isinstance(prediction, ClassPrediction):
        return prediction.entropy
    return prediction.std.flatten(1).mean(1) if prediction.std.dim() > 1 else prediction.std


def _ood_scores(inside: Tensor, outside: Mapping[str, Tensor]) -> dict[str, float]:
    scores: dict[str, float] = {}
    for place, (name, values) in enumerate(outside.items()):
        suffix = "" if place == 0 else f"_{name}"
        scores.update({k + suffix: v for k, v in ood_metrics(inside, values).items()})
    return scores


def _curves(
    prediction: Prediction, y: Tensor, preparation: Preparation, outside: Mapping[str, Tensor]
) -> Curves:
    if isinstance(prediction, RealPrediction):
        means, stds, target = _original(prediction, y, preparation)
        observed = [gaussian_mixture_coverage(means, stds, target, level) for level in _LEVELS]
        return {"intervals": {"nominal": _LEVELS, "observed": observed}}
    correct = prediction.label == y
    selective = selective_curve(prediction.confidence, correct)
    places = torch.linspace(0, len(y) - 1, min(_CURVE_POINTS, len(y))).round().long()
    edges = torch.linspace(
        0.0, math.log(prediction.probs.shape[1]), _HISTOGRAM_BINS + 1, dtype=torch.float64
    )
    first = next(iter(outside.values()), None)
    return {
        "reliability": reliability_curve(prediction.probs, y).to_json(),
        "entropy": {
            "edges": edges.tolist(),
            "right": _counts(prediction.entropy[correct], edges),
            "wrong": _counts(prediction.entropy[~correct], edges),
            "ood": None if first is None else _counts(first, edges),
        },
        "selective": {
            "coverage": selective.coverage[places].tolist(),
            "accuracy": selective.accuracy[places].tolist(),
        },
    }


def _weight_curves(network: nn.Module) -> Curves:
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
