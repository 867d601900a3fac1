"""Cells that may mean two things, arrays of objects, targets that are text."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gossamer.errors import InvalidData, InvalidValue
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor

SMALL: dict[str, Any] = {"hidden": (16,), "max_steps": 60, "random_state": 0}
FEW: dict[str, Any] = {**SMALL, "members": 4}
BOTH = pytest.mark.parametrize("kind", [SparseBayesClassifier, SparseBayesRegressor])


def _settings(kind: Any) -> dict[str, Any]:
    return SMALL if kind is SparseBayesClassifier else FEW


@BOTH
def test_what_a_message_advises_is_an_argument(kind: Any) -> None:
    day = np.random.default_rng(0).integers(1, 12, size=60)
    y = (day > 5).astype(int)
    dates = pd.DataFrame(
        {"sold": [f"{a:02d}/{b:02d}/2024" for a, b in zip(day, 13 - day, strict=True)]}
    )
    with pytest.raises(InvalidData, match="day_first"):
        kind(**_settings(kind)).fit(dates, y)
    months = {}
    for first in (True, False):
        model = kind(**_settings(kind), day_first=first).fit(dates, y)
        assert model.get_params()["day_first"] is first
        months[first] = model.posterior_.preparation.inputs.columns[0].to_json()
    assert months[True] != months[False]

    sizes = pd.DataFrame({"size": [f"{a},{100 + a}" for a in day]})
    with pytest.raises(InvalidData, match="decimal"):
        kind(**_settings(kind)).fit(sizes, y)
    means = {}
    for decimal in ("point", "comma"):
        model = kind(**_settings(kind), decimal=decimal).fit(sizes, y)
        means[decimal] = model.posterior_.preparation.inputs.columns[0].mean
    assert means["point"] == pytest.approx(1000.0 * means["comma"])
    with pytest.raises(InvalidValue, match="decimal"):
        kind(**_settings(kind), decimal="dot").fit(sizes, y)


@BOTH
def test_columns_of_an_array_of_objects_go_by_their_place(kind: Any) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"size": generator.normal(size=80), "colour": generator.choice(["red", "blue"], size=80)}
    )
    y = ((frame["colour"] == "red") & (frame["size"] > -0.5)).astype(int)
    model = kind(**_settings(kind)).fit(frame, y)
    with pytest.warns(UserWarning, match="valid feature names"):
        found = model.predict(frame.to_numpy(dtype=object))
    assert np.array_equal(found, model.predict(frame))
    wide = np.array([[0.1, "red", "x"]], dtype=object)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 2 features"),
    ):
        model.predict(wide)
    bare = kind(**_settings(kind)).fit(frame.to_numpy(dtype=object), y)
    assert np.array_equal(bare.predict(frame.to_numpy(dtype=object)), model.predict(frame))


@pytest.mark.parametrize(
    "y", [["1.5", "$346", "2"] * 10, pd.Series(["1.5", "$346", "2"] * 10)], ids=["list", "series"]
)
def test_a_target_that_is_text_is_named_with_its_row(y: Any) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(InvalidData, match=r"y, row 1 = \$346: is text.*; take off .*\$") as caught:
        SparseBayesRegressor(**FEW).fit(x, y)
    assert caught.value.__cause__ is None
    model = SparseBayesRegressor(**FEW).fit(x, np.array(["1.5", "3.46", "2"] * 10, dtype=object))
    with pytest.raises(InvalidData, match="y, row 1"):
        model.calibrate(x, y)


@BOTH
def test_members_are_an_argument_of_the_estimator(kind: Any) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = (x[:, 0] > 0).astype(int)
    with pytest.raises(InvalidValue, match=r"method_options = \{'members': 6\}.*; give members=6"):
        kind(**SMALL, method_options={"members": 6}).fit(x, y)
    model = kind(**SMALL, members=6).fit(x, y)
    assert len(model.posterior_.members) == 6
    own = kind("rigl", **SMALL, method_options={"members": 2}).fit(x, y)
    assert len(own.posterior_.members) == 2
