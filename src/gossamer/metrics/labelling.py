"""How well class probabilities order rows, whatever the threshold; and who is taken for whom.

Two classes are one question, whether a row is of the second; several are one question for each
class against the rest, averaged over the classes with equal weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.metrics._validation import check_probs
from gossamer.metrics.ranking import auroc


def roc_auc(probs: Tensor, target: Tensor) -> float | None:
    """Area under the ROC curve: how often a row of the class has more of it than another row.

    Args:
        probs: [B, C].
        target: [B], labels.

    Returns:
        Of the second of two classes; of more, the mean over the classes that some rows have and
        some have not. ``None`` where there is no such class.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
        >>> roc_auc(probs, torch.tensor([0, 0, 1, 1]))
        0.75
    """
    found = [auroc(others, own) for others, own in _questions(probs, target)]
    return sum(found) / len(found) if found else None


def average_precision(probs: Tensor, target: Tensor) -> float | None:
    """Mean precision at the rank of every row of the class: what counts where it is rare.

    Σ (R_n − R_{n−1}) P_n over all thresholds, without interpolation. A constant has the class's
    share.

    Args:
        probs: [B, C].
        target: [B], labels.

    Returns:
        As for :func:`roc_auc`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
        >>> round(average_precision(probs, torch.tensor([0, 0, 1, 1])), 4)
        0.8333
    """
    found = [_average_precision(others, own) for others, own in _questions(probs, target)]
    return sum(found) / len(found) if found else None


def confusion_matrix(probs: Tensor, target: Tensor) -> Tensor:
    """Rows by their true class (down) and the class that they are given (across): int64 [C, C].

    Args:
        probs: [B, C].
        target: [B], labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
        >>> confusion_matrix(probs, torch.tensor([0, 0, 1])).tolist()
        [[1, 1], [1, 0]]
    """
    probs, target = check_probs(probs, target)
    classes = probs.shape[1]
    pairs = target * classes + probs.argmax(dim=1)
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def _questions(probs: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Scores of the rows that are not, and that are, of each class that is asked for."""
    probs, target = check_probs(probs, target)
    asked = [1] if probs.shape[1] == 2 else range(probs.shape[1])
    found = []
    for label in asked:
        own = target == label
        if bool(own.any()) and not bool(own.all()):
            found.append((probs[~own, label], probs[own, label]))
    return found


def _average_precision(others: Tensor, own: Tensor) -> float:
    scores = torch.cat([others, own]).double()
    positive = torch.cat([torch.zeros(len(others)), torch.ones(len(own))]).double()
    order = scores.argsort(descending=True)
    scores, hits = scores[order], positive[order].cumsum(0)
    # Rows of one score pass a threshold together: the last of them counts for all.
    last = torch.ones(len(scores), dtype=torch.bool)
    last[:-1] = scores[1:] != scores[:-1]
    found = hits[last]
    precision = found / (torch.arange(1, len(scores) + 1).double()[last])
    gained = torch.diff(found, prepend=torch.zeros(1, dtype=torch.float64))
    return float((gained * precision).sum() / len(own))
