"""Whether chosen columns predict held-out rows as well as all of them do, by ridge regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from threadpoolctl import threadpool_limits

from gossamer.selection.features import main_effects
from gossamer.selection.spike_slab import Array

Choose = Callable[[Array, Array], NDArray[np.int64]]
Winner = Literal["chosen", "all"]

_PENALTIES = np.logspace(-2, 5, 15)


def compare(
    x: Array, outputs: Array, choose: Choose, folds: int, generator: np.random.Generator
) -> tuple[Winner, str, dict[str, float]]:
    """Chosen or all columns, by the error on rows that neither choice nor fit has seen.

    Args:
        x: Inputs [n, p].
        outputs: Targets [n, d], of variance 1.
        choose: From a table and its outputs to columns.
        folds: Parts.
        generator: Of the parts.

    Returns:
        The winner, a sentence, and the mean squared errors of ``all``, ``chosen`` and ``none``.
    """
    order = generator.permutation(len(x))
    errors = {name: np.zeros(len(x)) for name in ("all", "chosen", "none")}
    for held in np.array_split(order, folds):
        fit = np.setdiff1d(order, held)
        columns = choose(x[fit], outputs[fit])
        none = outputs[fit].mean(0)
        errors["none"][held] = ((outputs[held] - none) ** 2).mean(1)
        errors["all"][held] = _ridge_errors(x, outputs, fit, held)
        if len(columns):
            # Curves as well: a column may have been chosen for one.
            features, _ = main_effects(x[:, columns])
            errors["chosen"][held] = _ridge_errors(features, outputs, fit, held)
        else:
            errors["chosen"][held] = errors["none"][held]
    losses = {name: float(error.mean()) for name, error in errors.items()}
    winner = winner_of(errors["chosen"] - errors["all"], more_columns=x.shape[1] > len(x))
    words = f"held-out error {losses['chosen']:.3g} of the target's variance on chosen columns, "
    words += f"{losses['all']:.3g} on all"
    return winner, words, losses


def winner_of(difference: Array, *, more_columns: bool) -> Winner:
    """Who has the smaller error, from the chosen columns' errors less those of all, [n].

    Where the mean is within a standard error of 0, all columns win if they are no more than the
    rows, because a network copes with those and a choice may lose what only it would use; the
    chosen win if columns are more than rows, where a network of all overfits.
    """
    margin = float(difference.std(ddof=1) / np.sqrt(len(difference)))
    if more_columns:
        return "all" if difference.mean() > margin else "chosen"
    return "chosen" if difference.mean() < -margin else "all"


def _ridge_errors(
    x: Array, outputs: Array, fit: NDArray[np.int64], held: NDArray[np.int64]
) -> Array:
    centre, spread = x[fit].mean(0), x[fit].std(0)
    scaled = (x - centre) / np.where(spread > 0.0, spread, 1.0)
    with threadpool_limits(1):  # as in spike_slab
        model = RidgeCV(_PENALTIES).fit(scaled[fit], outputs[fit])
        predicted = model.predict(scaled[held]).reshape(len(held), -1)
    found: Array = ((outputs[held] - predicted) ** 2).mean(1)
    return found
