"""How a variance is read that a few networks tell: shrunk by what all rows say of it.

The variance of T networks' answers to a row is a noisy estimate b of their true variance s²: b is
s² χ²_d / d with d = T - 1. Where rows tell how s² varies among them, the estimate of one row can
borrow from the others (Smyth 2004): s² has a scaled inverse χ² law of ν degrees of freedom and
scale s₀², and given b again one, of ν + d and (ν s₀² + d b) / (ν + d).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import InvalidData

_MOST_DF, _LEAST_DF = 1000.0, 0.02
"""Of the law: rows whose variances differ by no more than chance have the first."""


@dataclass(frozen=True)
class VarianceLaw:
    """A scaled inverse χ² law of a variance.

    Attributes:
        df: ν, degrees of freedom: what the law counts for beside d of an estimate.
        scale: s₀², of the variances.
    """

    df: float
    scale: float

    def __post_init__(self) -> None:
        for name, value in (("df", self.df), ("scale", self.scale)):
            if not 0.0 < value < float("inf"):
                raise InvalidData(f"{name} of a variance", value, "must be positive and finite")

    def given(self, estimate: Tensor, degrees: int, count: int) -> Tensor:
        """Values of the variance given an estimate, each as probable as the others.

        Args:
            estimate: Sample variances b ``[...]``.
            degrees: d of them.
            count: How many values: quantiles in the middle of so many even parts.

        Returns:
            float64 ``[count, ...]``, largest last.

        Example:
            >>> law = VarianceLaw(df=4.0, scale=1.0)
            >>> law.given(torch.tensor([0.0, 2.0]), degrees=4, count=3).round(decimals=2).tolist()
            [[0.34, 1.03], [0.54, 1.63], [0.94, 2.82]]
        """
        from scipy.special import gammaincinv  # slow to import; few programs get here

        shape = 0.5 * (self.df + degrees)
        rate = 0.5 * (self.df * self.scale + degrees * estimate.detach().cpu().double())
        places = (np.arange(count) + 0.5) / count
        # Of an inverse gamma law: its quantile p is rate over the quantile 1 - p of a gamma law.
        quantiles = torch.from_numpy(gammaincinv(shape, 1.0 - places))
        found = rate / quantiles.view(-1, *(1,) * rate.dim())
        return found.to(estimate.device)


def fit_law(estimates: Tensor, degrees: int) -> VarianceLaw | None:
    """The law of the variances whose estimates these are, by the moments of their logarithms.

    log b has the mean log s₀² + ψ(d/2) - log(d/2) - ψ(ν/2) + log(ν/2) and the variance
    ψ'(d/2) + ψ'(ν/2).

    Args:
        estimates: Sample variances b ``[n]``; those that are 0 are left aside.
        degrees: d of each.

    Returns:
        ``None`` where fewer than two estimates are above 0.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> true = 2.0 * 6.0 / generator.chisquare(6.0, size=20_000)
        >>> seen = torch.from_numpy(true * generator.chisquare(3.0, size=20_000) / 3.0)
        >>> law = fit_law(seen, 3)
        >>> abs(law.df - 6.0) < 0.4, abs(law.scale - 2.0) < 0.05
        (True, True)
    """
    from scipy.optimize import brentq  # slow to import; few programs get here
    from scipy.special import digamma, polygamma

    positive = estimates[estimates > 0.0].double().cpu()
    if len(positive) < 2:
        return None
    half = 0.5 * degrees
    logs = positive.log().numpy() - digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) - polygamma(1, half))
    if excess <= float(polygamma(1, 0.5 * _MOST_DF)):
        df = _MOST_DF
    elif excess >= float(polygamma(1, 0.5 * _LEAST_DF)):
        df = _LEAST_DF
    else:
        df = 2.0 * brentq(
            lambda x: float(polygamma(1, x)) - excess, 0.5 * _LEAST_DF, 0.5 * _MOST_DF
        )
    scale = float(np.exp(logs.mean() + digamma(0.5 * df) - np.log(0.5 * df)))
    if not 0.0 < scale < float("inf"):
        return None
    return VarianceLaw(df, scale)
