"""The main figures on corrupted inputs: how they change as the inputs move away."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from gossamer.data import SEVERITIES, DataSet, InputScale, shifted
from gossamer.prediction import Prediction
from gossamer.train.answers import Answers
from gossamer.train.examples import Pair


def shift_figures(
    names: Sequence[str],
    part: Pair,
    dataset: DataSet,
    predict: Callable[[Tensor], Prediction],
    *,
    seed: int,
) -> dict[str, float]:
    """Figures at every severity of some corruptions, and their means.

    One corrupted copy of the inputs exists at a time.

    Args:
        names: Of corruptions, as ``gossamer.data.choose_shifts`` gives them.
        part: Inputs and targets.
        dataset: That they are of.
        predict: The prediction for some inputs.
        seed: Of the noise.

    Returns:
        ``shift_NAME_SEVERITY_`` with ``accuracy``, ``nll`` and ``ece``, or ``rmse``, ``nll`` and
        ``coverage``; ``shift_`` with each of these is the mean over corruptions and severities.
    """
    if not names:
        return {}
    x, y = part
    scale = InputScale.of(dataset)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        for severity in SEVERITIES:
            inputs = shifted(x, name, severity, scale, seed=seed)
            figures = Answers(predict(inputs), y, dataset.preparation).main_figures()
            found[f"shift_{name}_{severity}"] = figures
    keys = next(iter(found.values()))
    means = {f"shift_{key}": sum(f[key] for f in found.values()) / len(found) for key in keys}
    return means | {f"{at}_{key}": v for at, figures in found.items() for key, v in figures.items()}
