from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.data import from_arrays

RNG = np.random.default_rng(6)
Y = RNG.normal(100.0, 20.0, 80)
GOOD = {"a": Y + RNG.normal(0, 20.0, 80), "b": RNG.integers(0, 9, 80)}


def notes(y: Any = Y, **columns: Any) -> tuple[str, ...]:
    return from_arrays(GOOD | columns, y, task=None if y is not Y else "regression").notes


def test_nothing_is_said_of_good_columns() -> None:
    assert notes() == ()


def test_the_target_under_another_name() -> None:
    for values in (2 * Y - 5, np.exp(Y / 50), -(Y**3)):
        (said,) = notes(c=values)
        assert said.startswith("warning: column 'c': rises or falls throughout with the target 'y'")
    (said,) = notes(c=Y + RNG.normal(0, 1e-3, 80))
    assert "correlation of 0.9999" in said or "correlation of 1.0000" in said
    # A step function of the target is monotone, and no copy of it.
    assert notes(c=(Y > 100).astype(float)) == ()


def test_classes_under_another_name() -> None:
    kinds = np.array(["x", "y", "z"], dtype=object)[np.arange(80) % 3]
    codes = (np.arange(80) % 3) * 7.0
    said = notes(kinds, c=codes, d=kinds)
    assert "warning: columns 'c', 'd': names exactly the classes of the target 'y'" in said[-1]
    assert not [one for one in notes(kinds, c=codes % 14) if "warning" in one]


def test_an_id_a_constant_and_a_constant_target() -> None:
    (said,) = notes(c=np.arange(80)[::-1])
    assert said.startswith("warning: column 'c': a different whole number in every training row")
    (said,) = notes(c=np.full(80, 3.0), d=np.full(80, "k", dtype=object))
    assert said == "columns 'c', 'd': constant in the training part, and so of no use"
    assert "warning: the target 'y' is constant in the training part" in notes(np.full(80, 1.5))


def test_what_is_said_is_stored_with_the_preparation() -> None:
    data = from_arrays(GOOD | {"c": 2 * Y}, Y, task="regression")
    assert data.preparation.notes == data.notes
    assert data.preparation.to_json()["notes"] == list(data.notes)
    plain = from_arrays(GOOD, Y, task="regression").preparation
    assert "notes" not in plain.to_json()
    assert type(plain).from_json(data.preparation.to_json()).notes == data.notes
