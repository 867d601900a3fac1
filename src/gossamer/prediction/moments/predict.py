"""A prediction without sampling the network: one pass of means and variances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor

from gossamer.prediction.combine import join
from gossamer.prediction.draws import NoiseDraws
from gossamer.prediction.finite import blame, require_finite_answer
from gossamer.prediction.moments.form import Moments
from gossamer.prediction.moments.propagate import propagate, record
from gossamer.prediction.passes import ROW_BLOCK, passes_of, rows_meet_in
from gossamer.prediction.prediction import Prediction

POINTS = 256
"""Fixed points that stand for the Gaussian of the outputs.

Probabilities of ten classes are then right to 0.003 for logits with standard deviations up to 1, to
0.01 up to 3; the usual probit formula is off by 0.1 and 0.5.
"""

_MOST_VALUES = 1 << 22
"""Outputs at all points that exist at a time, unless one row has more."""


def moments_of(
    draws: NoiseDraws,
    read: Callable[[Tensor], Prediction],
    x: Tensor,
    *,
    keep_samples: bool,
    class_dim: int | None = None,
) -> Prediction:
    """See ``Posterior.predict_moments``, which asks for it.

    Args:
        draws: Of a network whose layers' noise is all that samples differ by.
        read: From outputs ``[S, B, ...]`` to a prediction.
        x: Inputs ``[B, ...]``.
        keep_samples: For classes: keep the probabilities at the fixed points.
        class_dim: The axis of the outputs over which points differ; 1 if ``None``.
    """
    parts = []
    with torch.no_grad(), draws.borrow() as network:
        recorded, meet = record(network), rows_meet_in(network)
        first = 0
        for rows in _passes(x, meet):
            for outputs in _outputs(propagate(recorded, rows), class_dim or 1):
                part = read(outputs)
                require_finite_answer(part, first, partial(blame, network, rows))
                parts.append(part if keep_samples else join([part], keep_samples=False))
                first += outputs.shape[1]
    return join(parts, keep_samples=keep_samples)


def _passes(x: Tensor, meet: bool) -> Iterator[Tensor]:
    for block in torch.split(x, ROW_BLOCK):
        for rows in passes_of(block, rows_meet=meet):
            assert isinstance(rows, Tensor)
            yield rows


def _outputs(found: Moments | Tensor, class_dim: int) -> Iterator[Tensor]:
    """``[points, rows, ...]`` of the outputs' Gaussians, some rows at a time.

    Along ``class_dim`` every place has points of its own; positions beside it share them.
    """
    if isinstance(found, Tensor):
        yield found.unsqueeze(0)
        return
    axis = class_dim % found.mean.dim()
    if axis > 1:
        moved = Moments(found.mean.movedim(axis, 1), found.variance.movedim(axis, 1))
        yield from (points.movedim(2, axis + 1) for points in _outputs(moved, 1))
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
