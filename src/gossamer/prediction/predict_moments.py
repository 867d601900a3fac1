"""A prediction without sampling the network: one pass of means and variances."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference import Method
from gossamer.likelihoods import Likelihood
from gossamer.prediction.assemble import assemble, join
from gossamer.prediction.moments import Moments
from gossamer.prediction.passes import ROW_BLOCK, passes_of, rows_meet_in
from gossamer.prediction.predict import evaluating
from gossamer.prediction.prediction import Prediction
from gossamer.prediction.propagate import propagate, record
from gossamer.prediction.source import source_of

POINTS = 256
"""Fixed points that stand for the Gaussian of the outputs.

Probabilities of ten classes are then right to 0.003 for logits with standard deviations up to 1, to
0.01 up to 3; the usual probit formula is off by 0.1 and 0.5.
"""

_MOST_VALUES = 1 << 22
"""Outputs at all points that exist at a time, unless one row has more."""


def predict_moments(
    source: nn.Module | Method,
    x: Tensor,
    *,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = False,
) -> Prediction:
    """The predictive distribution of every row of ``x``, approximately and in one pass.

    Every activation is carried as a Gaussian, independent of the others: its mean and variance go
    through linear layers, convolutions, BatchNorm, average pooling and sums exactly, through ReLU
    exactly for a Gaussian, through max pooling by Clark's formula. So it approximates
    ``predict(..., noise="local")`` with many samples. Probabilities and labels are near those;
    epistemic uncertainty is too small in deep networks, whose activations are correlated:
    docs/prediction.md says by how much.

    Outputs m, v become a prediction through ``POINTS`` fixed points of N(m, v) (a Sobol
    sequence, standardised): nothing is random, and for a Gaussian likelihood mean and standard
    deviation are exactly m and √v.

    Args:
        source: A method with a Gaussian posterior, or a converted model.
        x: Inputs ``[B, ...]``, on the model's device.
        likelihood: For a bare model, as in ``predict``.
        keep_samples: For classes: keep the probabilities at the fixed points.

    Raises:
        InvalidValue: The network holds something without a rule; the message names it.

    Example:
        >>> pred = predict_moments(bnn, x)  # doctest: +SKIP
        >>> pred.probs, pred.entropy, pred.mutual_information  # doctest: +SKIP
    """
    if x.dim() < 1 or x.shape[0] == 0:
        raise InvalidData("x", tuple(x.shape), "must have at least one row")
    origin = source_of(source, likelihood)
    if not origin.samples_by_noise:
        raise InvalidValue(
            "source", type(source).__name__, "has no Gaussian posterior", "use predict"
        )
    parts = []
    with torch.no_grad(), evaluating(origin.model):
        recorded, meet = record(origin.model), rows_meet_in(origin.model)
        for rows in (p for b in torch.split(x, ROW_BLOCK) for p in passes_of(b, rows_meet=meet)):
            for outputs in _outputs(propagate(recorded, rows)):
                part = assemble(origin.likelihood, outputs)
                parts.append(part if keep_samples else join([part], keep_samples=False))
    return join(parts, keep_samples=keep_samples)


def _outputs(found: Moments | Tensor) -> Iterator[Tensor]:
    """``[points, rows, ...]`` of the outputs' Gaussians, some rows at a time."""
    if isinstance(found, Tensor):
        yield found.unsqueeze(0)
        return
    columns = found.mean.shape[1] if found.mean.dim() > 1 else 1
    points = normal_points(POINTS, columns).to(found.mean)
    points = points.view(POINTS, *(1,) * (found.mean.dim() > 1), columns)
    points = points.view(*points.shape, *(1,) * (found.mean.dim() - 2))
    per_row = POINTS * found.mean[0].numel()
    at_once = max(1, _MOST_VALUES // max(1, per_row))
    std = found.variance.clamp(min=0.0).sqrt()
    for mean, spread in zip(
        torch.split(found.mean, at_once), torch.split(std, at_once), strict=True
    ):
        yield mean + spread * points


@lru_cache(maxsize=16)
def normal_points(count: int, columns: int) -> Tensor:
    """float64 ``[count, columns]``: evenly spread normals, each column of mean 0 and variance 1."""
    engine = torch.quasirandom.SobolEngine(columns, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    uniform = engine.draw(count, dtype=torch.float64)
    points = torch.special.ndtri(uniform.clamp(0.5 / count, 1.0 - 0.5 / count))
    centred: Tensor = points - points.mean(0)
    return centred / centred.std(0, correction=0)
