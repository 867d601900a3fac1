from __future__ import annotations

import numpy as np
import pytest

from gossamer.data.split import cut_validation, hold_out_test, shuffle_train
from gossamer.errors import InvalidData, InvalidValue


def test_test_part_is_fixed_and_stratified() -> None:
    strata = np.repeat([0, 1, 2], [500, 300, 200])
    train, test = hold_out_test(1000, strata)
    again, _ = hold_out_test(1000, strata)
    assert np.array_equal(train, again)
    assert sorted([*train, *test]) == list(range(1000))
    assert np.bincount(strata[test]).tolist() == [100, 60, 40]


def test_the_only_row_of_a_class_stays_in_training() -> None:
    strata = np.array(["a"] * 30 + ["b"] * 30 + ["rare"], dtype=object)
    train, test = hold_out_test(61, strata)
    assert 60 in train
    split = cut_validation(train, strata[train], fraction=0.3, seed=3, limit_train=None)
    assert 60 in split.train
    assert len(test) == 12


def test_test_part_without_strata() -> None:
    train, test = hold_out_test(50, None)
    assert (len(train), len(test)) == (40, 10)
    assert not set(train) & set(test)
    with pytest.raises(InvalidData, match="at least 3 rows"):
        hold_out_test(2, None)


@pytest.mark.parametrize("strata", [None, np.arange(90) % 3])
def test_validation_depends_on_the_seed_alone(strata: np.ndarray | None) -> None:
    rows = np.arange(100, 190)
    first = cut_validation(rows, strata, fraction=0.1, seed=0, limit_train=None)
    same = cut_validation(rows, strata, fraction=0.1, seed=0, limit_train=None)
    other = cut_validation(rows, strata, fraction=0.1, seed=1, limit_train=None)
    assert np.array_equal(first.validation, same.validation)
    assert np.array_equal(first.train, same.train)
    assert not np.array_equal(first.validation, other.validation)
    assert sorted([*first.train, *first.validation]) == rows.tolist()
    assert len(first.validation) == 9


def test_limit_takes_exactly_so_many_and_shrinks_validation() -> None:
    split = cut_validation(np.arange(1000), None, fraction=0.1, seed=0, limit_train=90)
    assert (len(split.train), len(split.validation)) == (90, 10)
    assert not set(split.train) & set(split.validation)
    whole = cut_validation(np.arange(1000), None, fraction=0.1, seed=0, limit_train=5000)
    assert (len(whole.train), len(whole.validation)) == (900, 100)


def test_no_fraction_leaves_every_row_in_training() -> None:
    rows = np.arange(5, 25)
    split = cut_validation(rows, None, fraction=0.0, seed=3, limit_train=None)
    assert split.validation is None
    assert sorted(split.train) == rows.tolist()
    assert split.train.tolist() != rows.tolist()
    alone = cut_validation(np.arange(1), None, fraction=0.0, seed=0, limit_train=None)
    assert alone.train.tolist() == [0]


def test_own_validation_part_leaves_training_whole() -> None:
    rows = shuffle_train(np.arange(20), seed=1, limit_train=None)
    assert sorted(rows) == list(range(20))
    assert shuffle_train(np.arange(20), seed=1, limit_train=5).tolist() == rows[:5].tolist()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"fraction": -0.1}, "validation_fraction"),
        ({"fraction": 0.0, "seed": -1}, "seed"),
        ({"fraction": 1.0}, "validation_fraction"),
        ({"fraction": float("nan")}, "validation_fraction"),
        ({"seed": -1}, "seed"),
        ({"limit_train": 0}, "limit_train"),
    ],
)
def test_settings_outside_their_rule(settings: dict[str, float], name: str) -> None:
    chosen = {"fraction": 0.1, "seed": 0, "limit_train": None} | settings
    with pytest.raises(InvalidValue, match=name):
        cut_validation(np.arange(10), None, **chosen)


def test_one_row_cannot_train_and_validate() -> None:
    with pytest.raises(InvalidData, match="at least 2 rows"):
        cut_validation(np.arange(1), None, fraction=0.1, seed=0, limit_train=None)
