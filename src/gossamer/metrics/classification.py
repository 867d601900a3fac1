"""Accuracy, negative log-likelihood and Brier score of class probabilities.

Inputs are predictive probabilities [B, C] (a binary problem has two columns) and integer labels
[B]. Sums run in float64, so that the mean over a large test set is exact to the printed digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.metrics._validation import check_log_probs, check_probs


def accuracy(probs: Tensor, target: Tensor) -> float:
    """Share of rows whose most probable class is the true one; ties go to the lowest class.

    Args:
        probs: [B, C].
        target: [B], labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.8, 0.2]])
        >>> accuracy(probs, torch.tensor([0, 1, 0, 0]))
        0.75
    """
    probs, target = check_probs(probs, target)
    return float((probs.argmax(dim=1) == target).double().mean())


def nll(probs: Tensor, target: Tensor) -> float:
    """Mean of −log p(true class), in nats.

    A probability is read as at least the smallest normal number of its dtype (1.2e-38 in float32
    and the half types, 2.2e-308 in float64): below it a zero means underflow, not impossibility. A
    row thus costs at most 87.3 (708.4) nats. :func:`nll_from_log_probs` has no such floor.

    Args:
        probs: [B, C].
        target: [B], labels.

    Example:
        >>> probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> round(nll(probs, torch.tensor([0, 0])), 4)  # (log 2 + log 4) / 2
        1.0397
    """
    probs, target = check_probs(probs, target)
    true = probs.gather(1, target[:, None]).clamp(min=torch.finfo(probs.dtype).tiny)
    return 0.0 - float(true.double().log().mean())  # not -0.0 for a perfect prediction


def nll_from_log_probs(log_probs: Tensor, target: Tensor) -> float:
    """Mean of −log p(true class) from log-probabilities, in nats; infinite where p is truly 0.

    Args:
        log_probs: [B, C], normalised (log_softmax, or logsumexp over samples minus log S).
        target: [B], labels.

    Example:
        >>> log_probs = torch.tensor([[0.0, -1000.0]])
        >>> nll_from_log_probs(log_probs, torch.tensor([1]))
        1000.0
    """
    log_probs, target = check_log_probs(log_probs, target)
    return 0.0 - float(log_probs.gather(1, target[:, None]).mean())


def brier(probs: Tensor, target: Tensor) -> float:
    """Brier score Σ_c (p_c − [c = true])², averaged over rows; in [0, 2].

    The sum form over all classes: for two classes it is twice the binary score of scikit-learn's
    default.

    Args:
        probs: [B, C].
        target: [B], labels.

    Example:
        >>> brier(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        0.125
    """
    probs, target = check_probs(probs, target)
    error = probs.double()
    error.scatter_add_(1, target[:, None], -torch.ones_like(error[:, :1]))
    return float(error.square().sum(dim=1).mean())
