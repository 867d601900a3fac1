"""What a column may do to a target on its own: a line, a bend, a wave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from gossamer.selection.spike_slab import Array, Groups, standardised

FEWEST_VALUES = 6
"""A column with fewer distinct values has its line alone: its curves would be the line again."""


def main_effects(x: Array) -> tuple[Array, Groups]:
    """Three features per column: itself, and the even and odd curves of its normal scores.

    A column's curves are z² - 1 and z³ - 3z of its normal scores z, so that no outlier can carry
    them; each is made orthogonal to the features before it. A target that depends on x² or |x|
    alone, and not on x, is then linear in a feature.

    Args:
        x: A table [n, p].

    Returns:
        Features [n, 3p] of mean 0 and variance 1, zeros where a column has none; and the column of
        each, int64 [3p].
    """
    line = standardised(x)
    scores = ndtri((rankdata(x, axis=0) - 0.5) / len(x))
    curved = _distinct(x) >= FEWEST_VALUES
    even = _apart(np.where(curved, scores**2 - 1.0, 0.0), [line])
    odd = _apart(np.where(curved, scores**3 - 3.0 * scores, 0.0), [line, even])
    groups = np.tile(np.arange(x.shape[1], dtype=np.int64), 3)
    return np.concatenate([line, even, odd], axis=1), groups


def _apart(feature: Array, earlier: list[Array]) -> Array:
    """What of a feature the earlier ones of its column do not say, of variance 1 or 0."""
    found = feature - feature.mean(0)
    before = np.sqrt((found**2).mean(0))
    for other in earlier:
        found = found - other * (found * other).mean(0)
    after = np.sqrt((found**2).mean(0))
    said = after <= 0.05 * before  # all but a rest that is mostly rounding or one row
    whole: Array = np.where(said, 0.0, found / np.where(said, 1.0, after))
    return whole


def _distinct(x: Array) -> NDArray[np.int64]:
    ordered = np.sort(x, axis=0)
    found: NDArray[np.int64] = 1 + (np.diff(ordered, axis=0) > 0).sum(0)
    return found
