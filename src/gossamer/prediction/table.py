"""Predictions as columns that a reader understands: label names, original units."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gossamer.data import Preparation
from gossamer.errors import InvalidData
from gossamer.prediction.prediction import ClassPrediction, Prediction, RealPrediction

LEVEL = 0.9
"""Mass of the interval unless told."""

Columns = Mapping[str, list[str] | list[float]]


def answer_columns(
    prediction: Prediction, preparation: Preparation, level: float | None = None
) -> Columns:
    """The columns of an answer, one value per row of the input.

    Args:
        prediction: Of B rows.
        preparation: Of the run that predicted.
        level: Mass of the interval, 0.9 unless told; of the set of labels, which is there if it is
            told.

    Returns:
        For classes ``label``, ``prob_<name>`` for every class, ``entropy``, ``mutual_information``
        and ``energy`` in nats, and the set of labels, ``set_90``, with `` | `` between them; for
        values, in original units, ``mean``, ``std``, ``epistemic``,
        ``aleatoric``, and the interval, its level in per cent in its names: ``lower_90`` and
        ``upper_90`` (each with ``_0``, ``_1``, … where the target has several dimensions).
    """
    if isinstance(prediction, ClassPrediction):
        return _classes(prediction, preparation, level)
    return _values(prediction, preparation, LEVEL if level is None else level)


def interval_names(level: float) -> tuple[str, str]:
    """What the ends of an interval are called.

    Example:
        >>> interval_names(0.9), interval_names(0.975)
        (('lower_90', 'upper_90'), ('lower_97.5', 'upper_97.5'))
    """
    return f"lower_{_percent(level)}", f"upper_{_percent(level)}"


def _percent(level: float) -> str:
    return f"{100 * level:.10g}"


def _classes(prediction: ClassPrediction, preparation: Preparation, level: float | None) -> Columns:
    if prediction.probs.dim() != 2:
        raise InvalidData(
            "probabilities of the prediction",
            tuple(prediction.probs.shape),
            "must be [B, C]: a table has one answer per row",
            "use predict, which answers for every position",
        )
    names = preparation.label_names or []
    columns: dict[str, list[str] | list[float]] = {
        "label": [names[index] for index in prediction.label.tolist()]
    }
    for index, name in enumerate(names):
        columns[f"prob_{name}"] = prediction.probs[:, index].tolist()
    columns["entropy"] = prediction.entropy.tolist()
    columns["mutual_information"] = prediction.mutual_information.tolist()
    columns["energy"] = prediction.energy.tolist()
    if level is not None:
        columns[f"set_{_percent(level)}"] = [
            " | ".join(name for name, is_in in zip(names, row, strict=True) if is_in)
            for row in prediction.label_set(level).tolist()
        ]
    return columns


def _values(prediction: RealPrediction, preparation: Preparation, level: float) -> Columns:
    lower, upper = prediction.interval(level)
    below, above = interval_names(level)
    # In float64: a large mean beside a small scale would swallow the digits of float32.
    found = {
        "mean": preparation.target_to_original(prediction.mean.double()),
        "std": preparation.scale_to_original(prediction.std.double()),
        "epistemic": preparation.scale_to_original(prediction.epistemic.double()),
        "aleatoric": preparation.scale_to_original(prediction.aleatoric.double()),
        below: preparation.target_to_original(lower.double()),
        above: preparation.target_to_original(upper.double()),
    }
    columns: dict[str, list[str] | list[float]] = {}
    for name, values in found.items():
        for suffix, column in _by_dimension(values):
            columns[name + suffix] = column.tolist()
    return columns


def _by_dimension(values: Tensor) -> list[tuple[str, Tensor]]:
    if values.dim() == 1:
        return [("", values)]
    return [(f"_{index}", column) for index, column in enumerate(values.unbind(1))]
