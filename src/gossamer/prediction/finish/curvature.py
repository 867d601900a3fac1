"""The Kronecker-factored Gaussian of a last layer for classes, from held-out rows.

With features φ and probabilities p of every held-out row and sample, and N training rows::

    A = mean φφᵀ,  B = N · mean(diag p - ppᵀ),  precision of the weights = A ⊗ B + τ
    τ |W|² = Σ a_i b_c/(a_i b_c + τ)                  (MacKay: the well-determined weights)

a and b are the eigenvalues of A and B.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Bernoulli
from gossamer.prediction.finish.gather import Sampling
from gossamer.prediction.finish.heads import ClassHead, Features
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.posterior import Posterior

MOST_FEATURES = 8192
"""Features of a last layer: their second moments are a square matrix."""


@torch.no_grad()
def class_head(
    posterior: Posterior, x: InputRows, num_data: int, rank: int, sampling: Sampling
) -> ClassHead:
    """The last layer of a posterior that is no mixture, at scale 1.

    Args:
        posterior: With a likelihood of classes.
        x: Held-out inputs ``[n, ...]``.
        num_data: N.
        rank: Directions of A that are kept apart.
        sampling: Over whose samples A and B are means: they share one Gaussian.
    """
    layer, blocks = sampling.features(posterior, x)
    binary = isinstance(posterior.likelihood, Bernoulli)
    second, curve, count = torch.zeros(()), torch.zeros(()), 0
    for logits, features, _ in blocks:
        require_narrow(features.shape[2])
        probs = logits.sigmoid() if binary else logits.softmax(2)
        flat, chances = features.flatten(0, 1), probs.flatten(0, 1)
        second = second.to(flat) + flat.T @ flat
        if binary:
            curve = curve.to(flat) + (chances * (1.0 - chances)).sum(0).diag()
        else:
            curve = curve.to(flat) + chances.sum(0).diag() - chances.T @ chances
        count += len(flat)
    if not bool(torch.isfinite(second).all() and torch.isfinite(curve).all()):
        raise InvalidData("features of held-out rows", None, "must be finite", "check the weights")
    read, level, rest, others = largest(layer, second / count, rank)
    curvature, rotation = torch.linalg.eigh(curve * (num_data / count))
    rotation = rotation.contiguous()  # as a file gives it back: products round by the layout
    curvature = curvature.clamp(min=0.0)
    prior = prior_precision(
        torch.cat([level, level.new_full((others,), rest)]),
        curvature,
        sampling.weight_norm(posterior, layer),
    )
    dtype = next(posterior.draws.network.parameters()).dtype
    return ClassHead(
        read.moved(lambda t: t.to(dtype)), rotation.to(dtype), curvature.to(dtype), prior, 1.0
    )


def largest(layer: str, second: Tensor, rank: int) -> tuple[Features, Tensor, float, int]:
    """The eigenvectors of the ``rank`` largest eigenvalues, and one mean level for the others.

    Returns:
        The features, their levels, the level of the others, and how many those are.
    """
    values, vectors = torch.linalg.eigh(second)
    values = values.clamp(min=0.0)
    kept = min(rank, len(values))
    level, basis = values[len(values) - kept :], vectors[:, len(values) - kept :]
    others = values[: len(values) - kept]
    rest = float(others.mean()) if len(others) else 0.0
    return Features(layer, basis.contiguous(), level, rest), level, rest, len(others)


def prior_precision(level: Tensor, curvature: Tensor, norm: float) -> float:
    """The τ > 0 with τ · norm = Σ a b/(a b + τ), by bisection: the left rises, the right falls.

    Args:
        level: a, ``[F + 1]``.
        curvature: b, ``[C]``.
        norm: |W|².

    Raises:
        InvalidData: Nothing is determined, or the weights are all 0.
    """
    products = (level[:, None] * curvature).flatten()
    products = products[products > 0]
    if not len(products) or not norm > 0.0:
        raise InvalidData(
            "last layer",
            norm,
            "has weights of 0, or leaves no doubt on any held-out row",
            "hold out other rows, or use gossamer.tempered",
        )
    low = math.log(float(products.min())) - 60.0
    high = math.log(max(float(products.max()), len(products) / norm)) + 60.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        tau = math.exp(middle)
        short = tau * norm < float((products / (products + tau)).sum())
        low, high = (middle, high) if short else (low, middle)
    return math.exp(0.5 * (low + high))


def require_narrow(features: int) -> None:
    """Raise for a last layer that reads too much."""
    if features > MOST_FEATURES:
        raise InvalidValue(
            "features of the last layer",
            features,
            f"must be at most {MOST_FEATURES}: their second moments are a square matrix",
            "use gossamer.tempered",
        )
