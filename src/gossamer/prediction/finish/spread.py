"""``Spread``: how wide a real prediction is, by the noise and by what its networks differ by.

Networks that were trained on the same rows say the same where rows are many and differ where they
are few, so their disagreement tells *where* a prediction is poor. How much it counts, and how much
noise there is beside it, rows tell that some of the networks never saw.

Few networks tell their disagreement badly: that of four is off by a factor of two. Fitted as if it
were exact, it would make all predictions too wide, for residuals are large where it is small by
chance. So it is read through a law of variances (``gossamer.core.disagreement``), and a prediction
is an even mixture of normal distributions around one mean, one for each variance that the
disagreement may have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.core.disagreement import VarianceLaw, fit_law
from gossamer.errors import InvalidData
from gossamer.prediction.prediction import RealPrediction

_LEAST = 1e-6
"""Smallest deviation that a fit gives, in units of the target's own: rows without any error."""

_PRIOR_STD = 1.5
"""Of the log of both factors: some dozen rows outweigh it."""

_PARTS = 16
"""Normal distributions of a prediction."""


@dataclass(frozen=True, eq=False)
class Spread:
    """The variance of a prediction: ``level² + factor² · disagreement``, column by column.

    Attributes:
        level: Noise std of each target column, ``[D]``.
        factor: Of the std between the networks' means, ``[D]``.
        laws: By which the disagreement of each column is read, D of them; ``None`` where it is
            taken as it is.
    """

    level: Tensor
    factor: Tensor
    laws: tuple[VarianceLaw | None, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("level", self.level), ("factor", self.factor)):
            if values.dim() != 1 or len(values) != len(self.level):
                raise InvalidData(name, tuple(values.shape), "must be one number per target column")
            if not bool((torch.isfinite(values) & (values >= 0.0)).all()):
                raise InvalidData(name, None, "must be finite and not negative")
        if not self.laws:
            object.__setattr__(self, "laws", (None,) * len(self.level))
        if len(self.laws) != len(self.level):
            raise InvalidData("laws", len(self.laws), f"must be {len(self.level)}, one per column")

    def of(self, prediction: RealPrediction) -> RealPrediction:
        """The prediction with this spread, around its mean."""
        samples = prediction.samples
        between = samples.var(0) if len(samples) > 1 else torch.zeros_like(prediction.mean)
        found = self.around(prediction, between, len(samples) - 1)
        apart = samples - prediction.mean
        scale = found.epistemic / samples.std(0, correction=0)
        return replace(found, departures=apart * scale.nan_to_num(0.0, 0.0, 0.0))

    def around(self, prediction: RealPrediction, between: Tensor, degrees: int) -> RealPrediction:
        """The same for a disagreement that is told.

        Args:
            prediction: Whose mean it is around.
            between: Unbiased variance between the networks' means, of the shape of ``mean``.
            degrees: Networks less one.
        """
        mean = prediction.mean
        level, factor = (
            (held[0] if mean.dim() == 1 else held).to(mean) for held in (self.level, self.factor)
        )
        disagreement = self._read(between, degrees).to(mean)
        noise = (level.square() + factor.square() * disagreement).sqrt()
        return replace(
            prediction,
            samples=mean.expand_as(noise),
            noise=noise,
            epistemic=factor * disagreement.mean(0).sqrt(),
            aleatoric=level.expand_as(mean),
        )

    def _read(self, between: Tensor, degrees: int) -> Tensor:
        """Variances that the disagreement may have, ``[parts, B]`` or ``[parts, B, D]``."""
        columns = between.reshape(len(between), -1).unbind(1)
        found = [
            column.expand(_PARTS, -1)
            if law is None or degrees < 1
            else law.given(column, degrees, _PARTS).to(column)
            for column, law in zip(columns, self.laws, strict=True)
        ]
        return torch.stack(found, -1).view(_PARTS, *between.shape)

    def scaled(self, factor: Tensor) -> Spread:
        """The same, every deviation ``factor`` ``[D]`` times as large."""
        return Spread(self.level * factor, self.factor * factor, self.laws)


def fit_spread(residual: Tensor, disagreement: Tensor, degrees: int | None = None) -> Spread:
    """The spread under which residuals are most probable.

    Maximum a posteriori over the logs of level and factor, by L-BFGS from two starts; the
    prior is a wide Gaussian around the residuals' own std for the level and around 1 for the
    factor. A residual is an even mixture of normal ones, one for each variance that its
    disagreement may have by the law that all rows tell.

    Args:
        residual: Targets minus means, of rows that the networks never saw, ``[n, D]``.
        disagreement: Unbiased variance between the networks' means in the same rows, ``[n, D]``.
        degrees: Networks less one; ``None`` takes the disagreement as it is.

    Returns:
        One level and one factor per column, float64.

    Example:
        >>> noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
        >>> between = torch.linspace(0.1, 4.0, 400)[:, None]
        >>> found = fit_spread((0.5 + 2.0 * between).sqrt() * noise, between)
        >>> bool((found.level**2 - 0.5).abs() < 0.4), bool((found.factor**2 - 2.0).abs() < 0.5)
        (True, True)
    """
    if residual.dim() != 2 or residual.shape != disagreement.shape or len(residual) < 2:
        raise InvalidData(
            "residual",
            tuple(residual.shape),
            f"must be [n, D] with two rows or more, as disagreement {tuple(disagreement.shape)}",
        )
    squares, between = residual.double().square(), disagreement.double()
    columns = range(residual.shape[1])
    laws = tuple(None if degrees is None else fit_law(between[:, d], degrees) for d in columns)
    pairs = []
    for d, law in zip(columns, laws, strict=True):
        variances = between[None, :, d]
        if law is not None and degrees is not None:
            variances = law.given(between[:, d], degrees, _PARTS)
        pairs.append(_fit(squares[:, d], variances))
    level, factor = torch.stack(pairs, 1)
    return Spread(level, factor, laws)


def _fit(squares: Tensor, variances: Tensor) -> Tensor:
    """Level and factor of one column, ``[2]``; the variances of a row are even parts ``[P, n]``."""
    typical = max(float(squares.mean().sqrt()), _LEAST)
    if not bool((variances > 0.0).any()):
        return torch.tensor([typical, 0.0], dtype=torch.float64)

    def loss(logs: Tensor) -> Tensor:
        level, factor = logs.exp().unbind()
        variance = (level * typical).square() + factor.square() * variances + _LEAST**2
        parts = -0.5 * (squares / variance + variance.log())
        fit: Tensor = -torch.logsumexp(parts, 0).sum()
        return fit + 0.5 * (logs / _PRIOR_STD).square().sum()

    found = [_minimum(loss, torch.tensor(start)) for start in ((0.0, -1.0), (-1.0, 0.0))]
    best: Tensor = min(found, key=lambda logs: float(loss(logs)))
    units = torch.tensor([typical, 1.0], dtype=torch.float64)
    return best.exp() * units


def _minimum(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    logs = start.double().clone().requires_grad_(True)
    search = torch.optim.LBFGS(
        [logs],
        max_iter=200,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        search.zero_grad()
        value = loss(logs)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        search.step(closure)  # type: ignore[no-untyped-call]
    return logs.detach()
