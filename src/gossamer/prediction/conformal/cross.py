"""CV+ and jackknife+: intervals from out-of-fold predictions, for tables of few rows.

Every row has a residual of the network that did not see it, and a new point has a prediction of
every fold's network. Barber, Candès, Ramdas and Tibshirani (2021), "Predictive inference with the
jackknife+", Annals of Statistics 49, equations 2.2 and 3.1; here residuals may be in units of the
predicted std.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.prediction.conformal.rank import exact, ordered_scores, place_of
from gossamer.prediction.conformal.real import standardised

_AT_ONCE = 1 << 24
"""Ends of intervals that exist at a time, unless one point has more."""


def cv_plus(
    target: Tensor,
    fold: Tensor,
    mean: Tensor,
    new_mean: Tensor,
    coverage: float,
    *,
    std: Tensor | None = None,
    new_std: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The CV+ interval of B new points; one row per fold makes it jackknife+.

    R_i = |y_i - mean_i|/std_i. Lower is the ⌊α(n + 1)⌋-th smallest of
    new_mean[fold_i] - new_std[fold_i] · R_i, upper the ⌈(1 - α)(n + 1)⌉-th smallest of the sums.
    It holds a new target with probability ``cv_plus_guarantee`` or more, and in practice with about
    ``coverage``.

    Args:
        target: y, ``[n]``.
        fold: int64 ``[n]``, from 0 to K - 1: the fold that held row i out.
        mean: ``[n]``: prediction of row i by the network that did not see its fold.
        new_mean: ``[K, B]``: predictions of the K networks at the new points.
        coverage: 1 - α.
        std: ``[n]``, as ``mean``; 1 if left out.
        new_std: ``[K, B]``, as ``new_mean``; 1 if left out.

    Returns:
        Lower and upper, float64 ``[B]``.

    Raises:
        InvalidValue: There are too few rows for that coverage.
        InvalidData: Shapes, folds or numbers do not fit.

    Example:
        >>> y, fold = torch.arange(10.0), torch.arange(10) % 2
        >>> cv_plus(y, fold, y + 1, torch.tensor([[3.0], [4.0]]), 0.8)
        (tensor([2.], dtype=torch.float64), tensor([5.], dtype=torch.float64))
    """
    if (std is None) != (new_std is None):
        raise InvalidData("std and new_std", None, "must be given both or neither")
    _require_folds(target, fold, mean, new_mean)
    one = torch.ones_like(mean) if std is None else std
    new_one = torch.ones_like(new_mean) if new_std is None else new_std
    if new_one.shape != new_mean.shape or not bool((new_one > 0).all()):
        shape = tuple(new_mean.shape)
        raise InvalidData("new_std", tuple(new_one.shape), f"must be positive, of shape {shape}")
    residuals = standardised(mean, one, target).abs()
    place = place_of(len(residuals), exact(coverage))
    lower, upper = [], []
    at_once = max(1, _AT_ONCE // len(residuals))
    for first in range(0, new_mean.shape[1], at_once):
        columns = slice(first, first + at_once)
        centre = new_mean[fold, columns].double()
        reach = new_one[fold, columns].double() * residuals[:, None]
        # ⌊α(n + 1)⌋ from below is ⌈(1 - α)(n + 1)⌉ from above.
        lower.append(ordered_scores(centre - reach)[-1 - place])
        upper.append(ordered_scores(centre + reach)[place])
    return torch.cat(lower), torch.cat(upper)


def cv_plus_guarantee(count: int, folds: int, coverage: float) -> float:
    """What exchangeability alone promises of ``cv_plus``: 1 - 2α less a term of the folds.

    Theorem 1 for one row per fold, 1 - 2α; theorem 4 for K folds of equal size, less
    min(2(1 - 1/K)/(n/K + 1), (1 - K/n)/(K + 1)). No assumption-free bound is much above it, though
    coverage near 1 - α is what one sees.

    Args:
        count: n.
        folds: K.
        coverage: 1 - α.

    Example:
        >>> round(cv_plus_guarantee(100, 100, 0.9), 3), round(cv_plus_guarantee(100, 10, 0.9), 3)
        (0.8, 0.718)
    """
    alpha = 1 - exact(coverage)
    by_size = 2.0 * (1.0 - 1.0 / folds) / (count / folds + 1.0)
    by_number = (1.0 - folds / count) / (folds + 1.0)
    return max(0.0, float(1 - 2 * alpha) - min(by_size, by_number))


def _require_folds(target: Tensor, fold: Tensor, mean: Tensor, new_mean: Tensor) -> None:
    count = mean.numel()
    if mean.dim() != 1 or fold.shape != mean.shape or target.numel() != count:
        shapes = f"{tuple(target.shape)}, {tuple(fold.shape)}, {tuple(mean.shape)}"
        raise InvalidData("target, fold and mean", shapes, "must be [n], of the same rows")
    if new_mean.dim() != 2:
        raise InvalidData("new_mean", tuple(new_mean.shape), "must be [K, B]")
    if fold.is_floating_point() or not bool(((fold >= 0) & (fold < len(new_mean))).all()):
        rule = f"must hold whole numbers from 0 to {len(new_mean) - 1}, one network for each"
        raise InvalidData("fold", None, rule)
    if not all(math.isfinite(float(t.double().sum())) for t in (target, mean, new_mean)):
        raise InvalidData("target, mean and new_mean", None, "must be finite")
