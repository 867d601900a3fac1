"""How well a score tells out-of-distribution rows from in-distribution ones.

A score is any number per row that is higher for rows which look more out of distribution: entropy,
mutual information, 1 − confidence.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gossamer.errors import UnknownName
from gossamer.metrics._validation import check_vector

Positive = Literal["out", "in"]


def auroc(in_scores: Tensor, out_scores: Tensor) -> float:
    """Probability that an out-of-distribution row scores higher than an in-distribution one.

    Ties count one half. The value is the same whichever side is called positive.

    Args:
        in_scores: [N], scores of in-distribution rows.
        out_scores: [M], scores of out-of-distribution rows.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9]))
        0.75
    """
    negatives, positives = _by_role(in_scores, out_scores, "out")
    # Mann and Whitney's count of pairs, in whole numbers: torchmetrics sums in float32, which does
    # not hold the pairs of two sets of some thousand rows.
    ordered = negatives.sort().values
    below, to = (torch.searchsorted(ordered, positives, right=right) for right in (False, True))
    return int((below + to).sum()) / (2 * len(negatives) * len(positives))


def aupr(in_scores: Tensor, out_scores: Tensor, *, positive: Positive = "out") -> float:
    """Area under the precision-recall curve, as average precision (no interpolation).

    Args:
        in_scores: [N].
        out_scores: [M].
        positive: Which rows are to be retrieved. ``"out"`` (the literature's AUPR-out) ranks high
            scores first; ``"in"`` (AUPR-in) ranks low scores first. A random score gives about the
            share of positive rows, so compare only at equal N and M.

    Example:
        >>> round(aupr(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9])), 4)
        0.8333
    """
    from torchmetrics.functional.classification import binary_average_precision

    negatives, positives = _by_role(in_scores, out_scores, positive)
    ranks, labels = _ranked(negatives, positives)
    return float(binary_average_precision(ranks, labels))


def fpr95(in_scores: Tensor, out_scores: Tensor, *, positive: Positive = "out") -> float:
    """False positive rate at the strictest threshold that finds 95 % of the positive rows.

    Args:
        in_scores: [N].
        out_scores: [M].
        positive: ``"out"``: share of in-distribution rows flagged when 95 % of the others are.
            ``"in"`` (as in the ODIN paper): share of out-of-distribution rows accepted when 95 % of
            the in-distribution ones are.

    Example:
        >>> fpr95(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9]))
        0.5
    """
    negatives, positives = _by_role(in_scores, out_scores, positive)
    needed = -(-19 * positives.numel() // 20)  # ceil of 95 % in integers: 19/20 must not round up
    threshold = positives.sort(descending=True).values[needed - 1]
    return float((negatives >= threshold).double().mean())


def ood_metrics(
    in_scores: Tensor, out_scores: Tensor, *, positive: Positive = "out"
) -> dict[str, float]:
    """The three detection figures under their JSON keys.

    Args:
        in_scores: [N], scores of in-distribution rows.
        out_scores: [M], scores of out-of-distribution rows; higher means more out of distribution.
        positive: The positive class of ``aupr`` and ``fpr95``; ``auroc`` does not depend on it.

    Example:
        >>> ood_metrics(torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9]))
        {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    return {
        "auroc": auroc(in_scores, out_scores),
        "aupr": aupr(in_scores, out_scores, positive=positive),
        "fpr95": fpr95(in_scores, out_scores, positive=positive),
    }


def _by_role(in_scores: Tensor, out_scores: Tensor, positive: str) -> tuple[Tensor, Tensor]:
    """Negative and positive scores, oriented so that positives should be higher."""
    low, high = check_vector("in_scores", in_scores), check_vector("out_scores", out_scores)
    if positive == "out":
        return low, high
    if positive == "in":
        return -high, -low
    raise UnknownName("positive", positive, ["in", "out"])


def _ranked(negatives: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks in [0, 1), equal for ties, and labels.

    torchmetrics passes scores outside [0, 1] through a sigmoid, which ties all scores it saturates;
    ranks keep the order and are left alone.
    """
    scores = torch.cat([negatives, positives])
    ranks = torch.searchsorted(scores.sort().values, scores)
    labels = torch.cat(
        [
            torch.zeros(negatives.numel(), dtype=torch.int64),
            torch.ones(positives.numel(), dtype=torch.int64),
        ]
    )
    return ranks.double() / scores.numel(), labels
