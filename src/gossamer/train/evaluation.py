"""Metrics and curves of a method on a part of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor

from gossamer.data import DataSet, choose_shifts
from gossamer.errors import InvalidData, UnknownName
from gossamer.metrics import ClassificationMetrics, RegressionMetrics
from gossamer.nn import Noise
from gossamer.prediction import (
    ClassPrediction,
    HasPosterior,
    Posterior,
    Prediction,
    posterior_of,
)
from gossamer.train.answers import Answers, uncertainties
from gossamer.train.curves import Curves, answer_curves, weight_curves
from gossamer.train.examples import Examples, Pair
from gossamer.train.shifted import shift_figures
from gossamer.train.uncertainty import check_ood_names, decomposition, detection, selection

VALIDATION_SAMPLES = 3
"""Posterior samples per validation: enough to follow the NLL, a few per cent of an epoch's cost."""

Metrics = dict[str, float | int | None]


def evaluate(
    method: HasPosterior | Posterior,
    dataset: DataSet,
    *,
    part: Literal["test", "val"] = "test",
    num_samples: int = 5,
    noise: str = "weight",
    seed: int = 0,
    ood: Mapping[str, Tensor] | None = None,
    shift: Sequence[str] = (),
) -> tuple[Metrics, Curves]:
    """All metrics of a method, and the arrays that a report draws.

    Args:
        method: A trained method, or its posterior.
        dataset: Data prepared as in training.
        part: Which part: ``"test"`` or ``"val"``.
        num_samples: Posterior samples per prediction.
        noise: ``"weight"``, ``"local"``, or ``"both"``: then the metrics under weight noise carry
            the plain keys and those under local noise end in ``_local``. Curves are of the first.
        seed: Of the prediction's noise, and of what ``shift`` draws.
        ood: Out-of-distribution inputs by name. The figures of the first carry the plain keys
            ``auroc``, ``aupr``, ``fpr95`` (by entropy, or predicted std) and ``auroc_`` with the
            name of another score; those of the others end in ``_`` and the name.
        shift: Corruptions of the part's inputs to measure too, names of ``gossamer.data.SHIFTS`` or
            ``"all"``: ``shift_rotation_3_accuracy`` and so on, means as ``shift_accuracy``.

    Returns:
        Metrics by their JSON keys, regression in original units, with ``temperature`` and
        ``last_layer_scale`` where the posterior has them; and curves by name.

    Raises:
        InvalidData: The data set has no such part.
        InvalidValue: A further out-of-distribution set has the name of a score, or a corruption
            does not fit the inputs.
    """
    if noise not in ("weight", "local", "both"):
        raise UnknownName("noise", noise, ("weight", "local", "both"))
    if part not in ("test", "val"):
        raise UnknownName("part", part, ("test", "val"))
    check_ood_names(ood or {})
    shifts = choose_shifts(shift, dataset.preparation)
    x, y = _part(dataset, part)
    modes: tuple[Noise, ...] = ("weight", "local") if noise == "both" else (noise,)  # type: ignore[assignment]
    metrics: Metrics = {}
    curves: Curves = {}
    posterior = posterior_of(method)
    for place, mode in enumerate(modes):
        suffix = "" if place == 0 else f"_{mode}"
        predict = partial(_predict, posterior, num_samples=num_samples, noise=mode, seed=seed)
        answers = Answers(predict(x), y, dataset.preparation)
        outside = {name: uncertainties(predict(inputs)) for name, inputs in (ood or {}).items()}
        found = {
            **_quality(answers),
            **selection(answers),
            **decomposition(answers),
            **detection(uncertainties(answers.prediction), outside),
            **shift_figures(shifts, (x, y), dataset, predict, seed=seed),
        }
        metrics.update({key + suffix: value for key, value in found.items()})
        if place == 0:
            curves = answer_curves(answers, outside)
    metrics.update(posterior.size)
    metrics.update(posterior.finish_figures)
    with posterior.draws.sample(0, seed=seed, noise="weight") as network:
        curves.update(weight_curves(network))
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
    figures = Answers(prediction, y.cpu(), examples.preparation).main_figures()
    return {key: value for key, value in figures.items() if key != "coverage"}


def _part(dataset: DataSet, part: str) -> Pair:
    """Inputs and targets; the data set says how to get a part that it has not."""
    if part == "val":
        return dataset.x_val, dataset.y_val
    return dataset.x_test, dataset.y_test


def _predict(
    posterior: Posterior, x: Tensor, num_samples: int, noise: Noise, seed: int
) -> Prediction:
    """Made where the posterior is; on the CPU from then on, where metrics are computed."""
    if not isinstance(x, Tensor):
        raise InvalidData(
            "inputs",
            type(x).__name__,
            "must be a tensor: data sets hold one input per row",
            "use predict and gossamer.metrics",
        )
    inputs = x.to(posterior.device)
    found = posterior.predict(inputs, num_samples, noise=noise, seed=seed, keep_samples=False)
    if isinstance(found, ClassPrediction) and found.probs.dim() != 2:
        raise InvalidData(
            "probabilities of the prediction",
            tuple(found.probs.shape),
            "must be [B, C]: metrics are of one label per row",
            "use predict, and gossamer.metrics on the positions that count",
        )
    values: Any = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in vars(found).items()}
    return type(found)(**values)


def _quality(answers: Answers) -> dict[str, float]:
    if isinstance(answers.prediction, ClassPrediction):
        classes = ClassificationMetrics()
        classes.update(answers.prediction.probs, answers.y)
        return classes.compute()
    real = RegressionMetrics()
    real.update(*answers.mixture)
    return real.compute()
