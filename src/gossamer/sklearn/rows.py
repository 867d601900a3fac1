"""Rows before they are trained on: their weights, an order of their own, and the held-out part.

A weight that is a whole number means so many copies of the row, and copies are one row to the
held-out part: none of them judges what another taught. The order in which rows are given does not
matter. So weights and copies give the same network, bit for bit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare import Columns, Texts
from gossamer.data.prepare.table_input import by_name
from gossamer.data.prepare.texts import concatenated
from gossamer.data.split import cut_validation
from gossamer.errors import InvalidData
from gossamer.sklearn.budget import holds_out

Raw = NDArray[np.float64] | dict[str, Any]
"""Numbers [N, D], or columns of any sort by name, [N] each."""

_COPIES = 4
_FREE_COPIES = 1000
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)


@dataclass(frozen=True, eq=False)
class RawRows:
    """Rows as they were given.

    Attributes:
        x: Inputs.
        y: Targets: class numbers [N], or numbers [N] or [N, D].
        weight: How much each counts, [N]; ``None`` where all count alike.
    """

    x: Raw
    y: NDArray[Any]
    weight: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def at(self, rows: NDArray[np.int64]) -> RawRows:
        """These rows, in this order."""
        weight = None if self.weight is None else self.weight[rows]
        return RawRows(rows_of(self.x, rows), self.y[rows], weight)

    def and_more(self, more: RawRows) -> RawRows:
        """These rows and further ones."""
        if isinstance(self.x, np.ndarray) != isinstance(more.x, np.ndarray):
            raise InvalidData(
                "X", "a table" if isinstance(self.x, np.ndarray) else "an array", "was the other"
            )
        x: Raw
        if isinstance(self.x, np.ndarray):
            assert isinstance(more.x, np.ndarray)
            x = np.concatenate([self.x, more.x])
        else:
            theirs = by_name(more.x)
            x = {name: concatenated(name, [own, theirs[name]]) for name, own in self.x.items()}
        weight = None
        if self.weight is not None or more.weight is not None:
            parts = (self, more)
            weight = np.concatenate(
                [np.ones(len(p)) if p.weight is None else p.weight for p in parts]
            )
        return RawRows(x, np.concatenate([self.y, more.y]), weight)

    def counted(self) -> RawRows:
        """Rows of weight 0 left out, and whole numbers as copies unless those would be very many.

        Raises:
            InvalidData: No row counts.
        """
        if self.weight is None:
            return self
        if not self.weight.any():
            raise InvalidData("sample_weight", "all 0", "some must be above 0", "leave it out")
        total = self.weight.sum()
        whole = np.array_equal(self.weight, np.floor(self.weight))
        if whole and total <= _COPIES * len(self) + _FREE_COPIES:
            copies = np.repeat(np.arange(len(self)), self.weight.astype(np.int64))
            return replace(self, weight=None).at(copies)
        return self.at(np.flatnonzero(self.weight))

    def ordered(self) -> tuple[RawRows, NDArray[np.uint64]]:
        """In the order of their marks, which are given too: equal rows have equal marks."""
        marks = row_marks(self.x, self.y)
        order = np.argsort(marks, kind="stable")
        return self.at(order), marks[order]

    def evened(self) -> RawRows:
        """As many rows that all count alike, each there in proportion to its weight."""
        if self.weight is None:
            return self
        share = np.cumsum(self.weight) / self.weight.sum()
        places = (np.arange(len(self)) + 0.5) / len(self)
        chosen = np.minimum(np.searchsorted(share, places), len(self) - 1)
        return replace(self, weight=None).at(chosen)


def held_out_from(
    rows: RawRows, *, fraction: float, seed: int, by_class: bool
) -> tuple[RawRows, RawRows | None]:
    """Rows to train on and rows to hold out, or ``None`` where there are too few.

    Args:
        rows: All that there are.
        fraction: Share to hold out.
        seed: Decides which.
        by_class: Whether every class is to give its share.
    """
    rows, marks = rows.counted().ordered()
    first = np.flatnonzero(np.r_[True, marks[1:] != marks[:-1]])
    if not holds_out(len(first), fraction):
        return rows, None
    groups = np.arange(len(first))
    strata = rows.y[first] if by_class else None
    split = cut_validation(groups, strata, fraction=fraction, seed=seed, limit_train=None)
    is_held_out = np.zeros(len(first), dtype=bool)
    is_held_out[split.validation] = True
    by_row = np.repeat(is_held_out, np.diff(np.r_[first, len(rows)]))
    return rows.at(np.flatnonzero(~by_row)), rows.at(np.flatnonzero(by_row))


def count_of(x: Raw) -> int:
    """Number of rows."""
    return len(x) if isinstance(x, np.ndarray) else len(next(iter(x.values())))


def rows_of(x: Raw, rows: NDArray[np.int64]) -> Raw:
    """The inputs of these rows."""
    if isinstance(x, np.ndarray):
        return x[rows]
    return {name: values[rows] for name, values in x.items()}


def row_marks(x: Columns | NDArray[Any], y: NDArray[Any]) -> NDArray[np.uint64]:
    """A number for every row that its content decides, [N]: the same on any machine."""
    marks = np.zeros(len(y), dtype=np.uint64)
    for values in (*by_name(x).values(), *y.reshape(len(y), -1).T):
        marks = _mixed(marks * _SPREAD + _mixed(_words(values)))
    return marks


def _words(values: NDArray[Any] | Texts) -> NDArray[np.uint64]:
    if isinstance(values, Texts) or values.dtype.kind in "OSU":
        levels, places = np.unique(np.array(values.tolist(), dtype=str), return_inverse=True)
        digests = [hashlib.blake2b(str(t).encode(), digest_size=8).digest() for t in levels]
        words = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
        return np.asarray(words[places])
    if values.dtype.kind in "Mm":
        return values.astype(np.int64).view(np.uint64)
    numbers: NDArray[np.float64] = values.astype(np.float64) + 0.0  # -0.0 is 0.0
    numbers[np.isnan(numbers)] = np.nan  # of which there are many
    return numbers.view(np.uint64)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a word spread over all (Steele et al. 2014, SplitMix64)."""
    for shift, factor in _MIX:
        words = (words ^ (words >> shift)) * factor
    return np.asarray(words ^ (words >> np.uint64(31)))
