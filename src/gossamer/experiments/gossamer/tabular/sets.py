"""The tables, and which of their rows train and which judge.

Two scales:

- ``choice``: rounds over the *training* rows of split 0, a tenth of them held out in each. Settings
  were chosen here.
- ``small``: the standard splits, all of them. It judges, with the settings that there are.

The test rows of split 0 chose nothing. Those of the other splits are among the training rows of
split 0, nine in ten of them, so they had a say in a handful of settings that all sets share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.data.registry import SOURCES
from gossamer.errors import InvalidData

Array = NDArray[np.float64]

SPLITS: dict[str, int] = {
    "yacht": 20,
    "boston": 20,
    "energy": 20,
    "concrete": 20,
    "wine_red": 20,
    "protein": 5,
}
"""Standard splits of each set, the small sets first."""

_CHOICE_SHARE = 0.1
_CHOICE_ROWS = 5000
"""Of ``choice``: share that judges, and rows of a set that take part: protein is large."""


class Table(NamedTuple):
    """A split of a table.

    Attributes:
        x: Training inputs ``[n, D]``.
        y: Training targets ``[n]``.
        x_test: Inputs that judge.
        y_test: Their targets.
    """

    x: Array
    y: Array
    x_test: Array
    y_test: Array


def table(name: str, number: int, data_dir: str | None, *, chooses: bool) -> Table:
    """Split ``number`` of a set; of its training rows alone where it chooses.

    Raises:
        InvalidData: The set has no such split.
    """
    raw = SOURCES[name].read(data_dir, 0 if chooses else number)
    x, y = np.asarray(raw.x, dtype=np.float64), np.asarray(raw.y, dtype=np.float64)
    train, test = np.asarray(raw.train), raw.test
    if chooses:
        order = np.random.default_rng(1000 + number).permutation(train)[:_CHOICE_ROWS]
        count = max(1, round(_CHOICE_SHARE * len(order)))
        train, test = order[count:], order[:count]
    if test is None:
        raise InvalidData(f"data set {name!r}", None, "has no test rows")
    test = np.asarray(test)
    return Table(x[train], y[train], x[test], y[test])
