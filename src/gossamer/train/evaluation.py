"""Metrics and curves of a method on a part of the data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor

from gossamer.data import DataSet, choose_shifts
from gossamer.errors import InvalidData, UnknownName
from gossamer.metrics import (
    ClassificationMetrics,
    RegressionMetrics,
    average_precision,
    mae,
    mean_interval_width,
    r2,
    roc_auc,
)
from gossamer.nn import Noise
from gossamer.prediction import (
    ClassPrediction,
    HasPosterior,
    Posterior,
    Prediction,
    posterior_of,
)
from gossamer.prediction.finish.left_out import judged
from gossamer.prediction.mixing import Mixture
from gossamer.prediction.table import LEVEL
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
        began = time.perf_counter()
        prediction = predict(x)
        if place == 0:
            seconds = time.perf_counter() - began
        answers = Answers(prediction, y, dataset.preparation)
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
            # Beside the metrics: those are the same at every call, a time is not.
            curves = {**answer_curves(answers, outside), "predict_seconds": seconds}
    own_figures, own_curves = unmeasured(posterior, dataset, seed=seed)
    return {**metrics, **own_figures}, {**curves, **own_curves}


def unmeasured(
    method: HasPosterior | Posterior, dataset: DataSet, *, seed: int = 0, **ignored: Any
) -> tuple[Metrics, Curves]:
    """What ``evaluate`` tells of a posterior itself, where there is no part to measure it on."""
    posterior = posterior_of(method)
    metrics: Metrics = {**posterior.size, **posterior.finish_figures}
    with posterior.draws.sample(0, seed=seed, noise="weight") as network:
        return metrics, weight_curves(network)


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


def validate_left_out(
    method: HasPosterior | Posterior, examples: Examples, *, seed: int
) -> Metrics:
    """The same figures of the training rows, each by the members that left it out.

    Rows count by their weights.
    """
    posterior, examples = posterior_of(method), examples.evened()
    assert isinstance(posterior, Mixture)
    assert examples.left_out is not None
    found = judged(posterior, (examples.x, examples.y), examples.left_out, seed=seed)
    figures = Answers(found.prediction, examples.y.cpu(), examples.preparation).main_figures()
    return {key: value for key, value in figures.items() if key != "coverage"}


def validation_of(
    examples: Examples, *, num_samples: int, seed: int
) -> Callable[[HasPosterior | Posterior], Metrics] | None:
    """How a fit is validated: by its validation part, else by rows that members left out.

    ``None`` where there is neither.
    """
    if examples.validation is not None:
        return partial(validate, examples=examples, num_samples=num_samples, seed=seed)
    if examples.left_out is not None:
        return partial(validate_left_out, examples=examples, seed=seed)
    return None


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
        probs, y = answers.prediction.probs, answers.y
        classes = ClassificationMetrics()
        classes.update(probs, y)
        found: dict[str, float | None] = {
            **classes.compute(),
            "roc_auc": roc_auc(probs, y),
            "average_precision": average_precision(probs, y),
        }
    else:
        means, _, target = answers.mixture
        if answers.is_normal:
            real = RegressionMetrics()
            real.update(*answers.mixture)
            found = {**real.compute(), "coverage": answers.coverage()}
        else:
            crps = float(answers.original.crps(target).mean())
            found = {**answers.main_figures(), "crps": crps}
        found["mae"] = mae(means.mean(0), target)
        found["r2"] = r2(means.mean(0), target)
        found["width"] = mean_interval_width(*answers.original.interval(LEVEL))
        found["interval_level"] = LEVEL
    # What means nothing here (targets that are all alike) has no figure.
    return {key: value for key, value in found.items() if value is not None}
