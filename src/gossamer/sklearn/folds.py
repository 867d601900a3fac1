"""Small tables of classes: every row judges once, by a network that did not learn from it.

A tenth of 150 rows is too few to choose anything by, and too many to lose. So no row is held out:
five more fits, each without a fifth of the rows, give every row an honest answer. These choose the
temperature and decide the sets of labels; the fit that predicts learns from all rows. It errs a
little less than those that judged, so its sets are a little wide; a guarantee it has none
(docs/conformal.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gossamer.data.prepare import Task
from gossamer.likelihoods import Categorical
from gossamer.prediction import ClassPrediction, Posterior
from gossamer.prediction.conformal.classes import ClassCalibration, LabelScore
from gossamer.prediction.conformal.rank import rows_needed
from gossamer.prediction.conformal.report import LEVELS
from gossamer.prediction.finish.choice import best_temperature
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finish.loss import LabelLoss
from gossamer.sklearn.rows import RawRows
from gossamer.train import Examples
from gossamer.train.finishing import LEAST_SCORES

FOLDS = 5
MOST_ROWS = 200
"""From so many rows on a tenth of them is enough to choose and to calibrate by."""


def is_folded(task: Task, rows: RawRows) -> bool:
    """Whether rows of a task are so few that they judge in folds; copies and weights are one."""
    counting = len(rows) if rows.weight is None else int(np.count_nonzero(rows.weight))
    if task != "classification" or counting >= MOST_ROWS:
        return False
    return LEAST_SCORES <= len(rows.counted()) < MOST_ROWS


def by_folds(
    posterior: Posterior,
    examples: Examples,
    refit: Callable[[Examples, int], Posterior],
    *,
    num_samples: int,
    seed: int,
) -> tuple[Posterior, dict[float, float]]:
    """The posterior with a temperature and sets of labels that all its rows decided.

    Args:
        posterior: Of a fit on all examples.
        examples: These; no part of them validates.
        refit: A fit on some of them, from the examples and the number of the fold.
        num_samples: Posterior samples of a prediction.
        seed: Deals the rows and fixes all noise.

    Returns:
        It, finished; and by level the share of rows in the set that the rows of other folds decide.
    """
    fold, y = _dealt(examples, seed), examples.y.long().cpu()
    rows = [(fold == number).nonzero().squeeze(1) for number in range(FOLDS)]
    judges = []
    for number, left_out in enumerate(rows):
        kept = (fold != number).nonzero().squeeze(1)
        judges.append((refit(examples.at(kept), number), left_out))

    def answers(finish: Finish) -> Tensor:
        found = torch.empty(len(y), 0, dtype=torch.float64)
        for judge, left_out in judges:
            inputs = examples.x[left_out].to(judge.device)
            told = judge.finished(finish).predict(inputs, num_samples, seed=seed)
            assert isinstance(told, ClassPrediction)
            if not found.shape[1]:
                found = told.probs.new_empty(len(y), told.probs.shape[1], dtype=torch.float64)
            found[left_out] = told.probs.double().cpu()
        return found

    # Rows count by their weights: as many of them, each as often as that.
    even = replace(examples, x=torch.arange(len(y)), y=y).evened().x
    least = torch.finfo(torch.float64).tiny
    plain = answers(Finish())[even].clamp(min=least).log()
    # Log-probabilities are logits up to a constant per row, which a softmax does not see.
    temperature = best_temperature(LabelLoss(Categorical(), [(Finish(), plain[None])], y[even]))
    probs = answers(Finish(temperature=temperature))[even]
    score = LabelScore()
    finish = replace(
        posterior.finish,
        temperature=temperature,
        calibration=ClassCalibration.of(probs, y[even], score),
    )
    return posterior.finished(finish), _coverage(probs, y[even], fold[even], score)


def _dealt(examples: Examples, seed: int) -> Tensor:
    """The fold of every row, int64 [N]; equal rows are in one fold, classes in all alike."""
    left_out = examples.dealt(FOLDS, 1, seed).left_out
    assert left_out is not None
    return left_out[:, 0]


def _coverage(probs: Tensor, y: Tensor, fold: Tensor, score: LabelScore) -> dict[float, float]:
    """By level: the share of rows whose label is in the set that other folds decide."""
    found = {}
    for level in LEVELS:
        held = []
        for number in range(FOLDS):
            own = fold == number
            if int((~own).sum()) < rows_needed(level):
                continue
            others = ClassCalibration.of(probs[~own], y[~own], score)
            # With the most probable label, as ``label_set`` has them.
            likeliest = probs[own].argmax(1, keepdim=True)
            sets = others.sets(probs[own], level).scatter(1, likeliest, True)
            held.append(sets.gather(1, y[own][:, None])[:, 0])
        if held:
            found[level] = float(torch.cat(held).double().mean())
    return found
