"""Rows on their way in: the fast path, marks of rows, the held-out part, budgets."""

from __future__ import annotations

import numpy as np
import torch

from gossamer.data import from_arrays
from gossamer.sklearn.budget import budget
from gossamer.sklearn.inputs import network_input
from gossamer.sklearn.rows import RawRows, held_out_from, row_marks


def test_numbers_as_a_whole_give_the_bits_of_column_after_column() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 7)) * 10.0 ** np.arange(-3, 4) + 5.0
    x[:, 3] = 2.0
    preparation = from_arrays(x, x[:, 0], task="regression").preparation
    assert torch.equal(network_input(preparation, x), preparation.prepare(x))


def test_equal_rows_have_equal_marks_and_others_have_not() -> None:
    x = np.random.default_rng(0).integers(0, 3, size=(500, 4)).astype(np.float64)
    y = np.zeros(500)
    kinds = len(np.unique(x, axis=0))
    assert len(np.unique(row_marks(x, y))) == kinds < 500
    named = {"a": x[:, 0], "b": np.array([str(v) for v in x[:, 1]], dtype=object)}
    assert len(np.unique(row_marks(named, y))) == 9
    signed, plain = np.array([[-0.0, np.nan]]), np.array([[0.0, -np.nan]])
    assert row_marks(signed, y[:1]) == row_marks(plain, y[:1])


def test_copies_are_held_out_together_and_classes_by_their_share() -> None:
    x = np.repeat(np.arange(100.0), 3)[:, None]
    y = np.repeat(np.arange(100) % 2, 3)
    train, held_out = held_out_from(RawRows(x, y), fraction=0.2, seed=0, by_class=True)
    assert held_out is not None
    assert len(train) == 240
    assert not set(train.x[:, 0]) & set(held_out.x[:, 0])
    assert held_out.y.mean() == 0.5
    few, none = held_out_from(RawRows(x[:30], y[:30]), fraction=0.2, seed=0, by_class=True)
    assert len(few) == 30
    assert none is None


def test_uneven_rows_become_even_ones_in_proportion() -> None:
    rows = RawRows(np.arange(4.0)[:, None], np.arange(4), np.array([0.1, 0.1, 0.1, 3.7]))
    assert rows.counted().weight is not None
    assert rows.evened().y.tolist() == [3, 3, 3, 3]
    whole = RawRows(rows.x, rows.y, np.array([0.0, 2.0, 1.0, 0.0])).counted()
    assert whole.y.tolist() == [1, 1, 2]
    assert whole.weight is None


def test_budgets_follow_the_rows() -> None:
    assert budget(1_000_000, 100).epochs == 20
    assert budget(640, 0, labels=True).epochs == 60
    assert budget(3, 0).batch_size == 1
    assert budget(100, 5).patience is None
    assert budget(2, 0, batch_size=64).batch_size == 2
