"""Calibrated real targets: mean + std · z, with z from the residuals of held-out rows.

z_i = (y_i - mean_i)/std_i are the standardised residuals of n held-out rows. Two readings:

- *symmetric*: the interval of coverage c is mean ± std · |z|_(k), k = ⌈(n + 1)c⌉.
- *signed*: quantile p is mean + std · z_(k), k = ⌈(n + 1)p⌉ above the middle and, counted from the
  other end, below it. Each tail has its own guarantee (a conformal predictive system), which asks
  for about twice the rows.

In both ``interval(c)`` is ``quantile((1 - c)/2)`` to ``quantile((1 + c)/2)``, as without
calibration. Symmetric quantiles promise the pair, not each of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from gossamer.errors import InvalidData, UnknownName
from gossamer.prediction.conformal.rank import exact, ordered_scores, place_of

KINDS = ("symmetric", "signed")


def standardised(mean: Tensor, std: Tensor, target: Tensor) -> Tensor:
    """(y - mean)/std in float64, of the shape of ``mean``.

    Args:
        mean: ``[n]`` or ``[n, D]``.
        std: Same shape.
        target: Same shape, or ``[n, 1]`` for ``[n]``.

    Raises:
        InvalidData: Shapes differ, or a std is not positive.
    """
    if mean.shape != target.shape and mean.shape != target.squeeze(-1).shape:
        rule = f"must fit the prediction's shape {tuple(mean.shape)}"
        raise InvalidData("target shape", tuple(target.shape), rule)
    if std.shape != mean.shape:
        raise InvalidData("std shape", tuple(std.shape), f"must be {tuple(mean.shape)}")
    if not bool((std > 0).all()):
        raise InvalidData("std", float(std.min()), "must be positive", "give the model some noise")
    return (target.reshape(mean.shape).double() - mean.double()) / std.double()


@dataclass(frozen=True, eq=False)
class RealCalibration:
    """What held-out rows say of intervals, in units of the predicted std.

    Attributes:
        scores: float64 ``[n]`` or ``[n, D]``, ordered: |z| (symmetric) or z (signed).
        symmetric: Which of them.
    """

    scores: Tensor
    symmetric: bool

    @classmethod
    def of(cls, z: Tensor, kind: str = "symmetric") -> RealCalibration:
        """From standardised residuals.

        Args:
            z: ``[n]`` or ``[n, D]``; one column is dropped.
            kind: ``symmetric`` or ``signed``.

        Raises:
            UnknownName: There is no such kind.
            InvalidData: A residual is not finite, or there is none.

        Example:
            >>> held_out = RealCalibration.of(torch.tensor([-2.0, 0.5, 1.0]))
            >>> low, high = held_out.interval(torch.tensor([10.0]), torch.tensor([2.0]), 0.5)
            >>> float(low), float(high)
            (8.0, 12.0)
        """
        if kind not in KINDS:
            raise UnknownName("score", str(kind), KINDS)
        z = z.double()
        z = z.squeeze(-1) if z.dim() == 2 and z.shape[1] == 1 else z
        return cls(ordered_scores(z.abs() if kind == "symmetric" else z), kind == "symmetric")

    @property
    def rows(self) -> int:
        """Held-out rows n."""
        return len(self.scores)

    @property
    def kind(self) -> str:
        """``symmetric`` or ``signed``."""
        return KINDS[0] if self.symmetric else KINDS[1]

    def require(self, coverage: float) -> None:
        """Raise unless there are rows enough for an interval of that coverage."""
        self._z((1 + exact(coverage)) / 2)

    def require_fit(self, mean: Tensor) -> None:
        """Raise unless predictions ``mean`` have the columns of the scores."""
        if mean.shape[1:] != self.scores.shape[1:]:
            raise InvalidData(
                "shape of the prediction",
                tuple(mean.shape),
                f"must fit calibration scores of shape {tuple(self.scores.shape)}",
                "give scores [n] for one target, [n, D] for D",
            )

    def interval(self, mean: Tensor, std: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """Lower and upper, of the shape and dtype of ``mean``.

        Raises:
            InvalidValue: There are too few rows for that coverage.
        """
        upper = (1 + exact(coverage)) / 2
        return self.quantile(mean, std, 1 - upper), self.quantile(mean, std, upper)

    def quantile(self, mean: Tensor, std: Tensor, probability: float | Fraction) -> Tensor:
        """The value mean + std · z of that probability, of the shape and dtype of ``mean``.

        Raises:
            InvalidValue: There are too few rows for it.
        """
        z = self._z(exact(probability, "probability"))
        return (mean.double() + std.double() * z).to(mean.dtype)

    def cdf(self, z: Tensor, tie: float | Tensor = 0.5) -> Tensor:
        """The distribution function at standardised values.

        It is (#{scores below} + tie · (#{scores equal} + 1))/(n + 1). With ``tie`` uniform on
        (0, 1) it is uniform for a new row in the signed reading. In the symmetric one it is that of
        |z|, half of it on each side.

        Args:
            z: ``[B]`` or ``[B, D]``.
            tie: The share of the step that a value stands on, one or of the shape of ``z``.

        Returns:
            float64, of the shape of ``z``.
        """
        value = z.double().abs() if self.symmetric else z.double()
        columns = value.reshape(len(value), -1).T.contiguous()
        scores = self.scores.reshape(self.rows, -1).T.contiguous()
        below = torch.searchsorted(scores, columns)
        up_to = torch.searchsorted(scores, columns, right=True)
        part = tie.reshape(len(value), -1).T if isinstance(tie, Tensor) else tie
        share = (below + (up_to - below + 1) * part) / (self.rows + 1)
        share = share.to(torch.float64).T.reshape(value.shape)
        # At the mean itself every |z| is larger: the middle, without the half of a step.
        return 0.5 + 0.5 * z.double().sign() * share if self.symmetric else share

    def moved(self, move: Callable[[Tensor], Tensor]) -> RealCalibration:
        """The same over another tensor."""
        return replace(self, scores=move(self.scores))

    def _z(self, probability: Fraction) -> Tensor:
        """Of quantile ``probability``: one number, or ``[D]``."""
        half = Fraction(1, 2)
        if self.symmetric:
            if probability == half:
                return torch.zeros_like(self.scores[0])
            found = self.scores[place_of(self.rows, abs(2 * probability - 1))]
            return found if probability > half else -found
        if probability >= half:
            return self.scores[place_of(self.rows, probability, both_tails=True)]
        # As many scores are below it as are above the quantile of 1 - probability.
        return self.scores[-1 - place_of(self.rows, 1 - probability, both_tails=True)]
