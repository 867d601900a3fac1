"""Seeded splits of row numbers: a fixed test part, and validation cut from the training part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InvalidData, InvalidValue

RowNumbers = NDArray[np.int64]

TEST_FRACTION = 0.2
# Where the test part is cut here, it never depends on a run's seed: runs stay comparable.
_TEST_SEED = 20240


class Split(NamedTuple):
    """Row numbers of the training part and, where there is one, of the validation part."""

    train: RowNumbers
    validation: RowNumbers | None


def hold_out_test(
    num_rows: int, strata: NDArray[Any] | None, fraction: float = TEST_FRACTION
) -> tuple[RowNumbers, RowNumbers]:
    """Cuts the fixed test part from a set that has none.

    Args:
        num_rows: Number of rows.
        strata: Class of each row, [N], to give the test part each class's share; ``None`` for
            regression.
        fraction: Share of the rows that test, in (0, 1).

    Returns:
        Row numbers of the training part and of the test part, each ascending.
    """
    if num_rows < 3:
        raise InvalidData(
            "rows", num_rows, "a set needs at least 3 rows, to train, validate and test", "add rows"
        )
    count = min(max(1, round(fraction * num_rows)), num_rows - 2)
    chosen, rest = _share(np.arange(num_rows), strata, count, np.random.default_rng(_TEST_SEED))
    return np.sort(rest), np.sort(chosen)


def cut_validation(
    rows: RowNumbers,
    strata: NDArray[Any] | None,
    *,
    fraction: float,
    seed: int,
    limit_train: int | None,
) -> Split:
    """Cuts the validation part from the training part and shuffles what is left.

    Args:
        rows: Row numbers of the training part.
        strata: Class of each of these rows, or ``None``.
        fraction: Share of validation among training and validation together, in [0, 1); 0 leaves
            the part out.
        seed: Decides which rows, and their order.
        limit_train: At most this many training rows; validation shrinks in proportion.
    """
    if not 0.0 <= fraction < 1.0:
        rule = "must lie in [0, 1)"
        raise InvalidValue("validation_fraction", fraction, rule, "0.1 is usual, 0 is for none")
    if fraction == 0.0:
        return Split(shuffle_train(rows, seed=seed, limit_train=limit_train), None)
    _check_settings(seed, limit_train)
    if len(rows) < 2:
        raise InvalidData(
            "training part",
            f"{len(rows)} rows",
            "needs at least 2 rows, to train and validate",
            "add rows",
        )
    count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
    if limit_train is not None and limit_train < len(rows) - count:
        count = min(count, max(1, round(limit_train * fraction / (1 - fraction))))
    chosen, rest = _share(rows, strata, count, np.random.default_rng(seed))
    return Split(rest[:limit_train], np.sort(chosen))


def shuffle_train(rows: RowNumbers, *, seed: int, limit_train: int | None) -> RowNumbers:
    """Shuffles the training rows where no validation part is cut from them."""
    _check_settings(seed, limit_train)
    return np.random.default_rng(seed).permutation(rows)[:limit_train]


def _check_settings(seed: int, limit_train: int | None) -> None:
    if seed < 0:
        raise InvalidValue("seed", seed, "must be 0 or more")
    if limit_train is not None and limit_train < 1:
        raise InvalidValue(
            "limit_train", limit_train, "must be 1 or more", "leave it out for all rows"
        )


def refuse_split(split: int, name: str) -> None:
    """Raises InvalidValue where a split is asked of a set that has only one."""
    if split != 0:
        raise InvalidValue("split", split, f"{name} has one split only", "leave it out")


def _share(
    rows: RowNumbers, strata: NDArray[Any] | None, count: int, rng: np.random.Generator
) -> tuple[RowNumbers, RowNumbers]:
    """Draws ``count`` rows, from each stratum its share; both results are in random order."""
    order = rng.permutation(len(rows))
    if strata is not None:
        # Row r of n in its class stands at (r + 1/2) / n: the lowest `count` places hold an equal
        # share of every class, and for shares below one half never the only row of a class.
        shuffled = strata[order]
        _, codes, sizes = np.unique(shuffled, return_inverse=True, return_counts=True)
        by_class = np.argsort(codes, kind="stable")
        starts = np.cumsum(sizes) - sizes
        rank = np.empty(len(rows))
        rank[by_class] = np.arange(len(rows)) - np.repeat(starts, sizes)
        place = (rank + 0.5) / sizes[codes]
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[np.argsort(place, kind="stable")[:count]] = True
        return rows[order[chosen]], rows[order[~chosen]]
    return rows[order[:count]], rows[order[count:]]
