from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gossamer.data.prepare.table_input import MAX_CATEGORIES, Column, TableInput
from gossamer.errors import InvalidData

COLUMNS = {
    "age": np.array([30, 40, 50, 60]),
    "colour": np.array(["red", "blue", "red", "green"], dtype=object),
    "height": np.array([1.5, 1.7, 1.9, 9.0]),
}
TRAIN = np.array([0, 1, 2])


def fitted() -> TableInput:
    return TableInput.fit(COLUMNS, TRAIN)


def test_agrees_with_scikit_learn() -> None:
    x = fitted().prepare(COLUMNS, "y").numpy()
    numbers = np.stack([COLUMNS["age"], COLUMNS["height"]], axis=1)
    scaled = StandardScaler().fit(numbers[TRAIN]).transform(numbers)
    colours = COLUMNS["colour"].reshape(-1, 1)
    one_hot = OneHotEncoder(sparse_output=False).fit_transform(colours)
    # float32 rounding
    np.testing.assert_allclose(x[:, [0, 4]], scaled, rtol=1e-6, atol=1e-7)
    assert np.array_equal(x[:, 1:4], one_hot)


def test_scaling_ignores_every_other_row() -> None:
    changed = dict(COLUMNS, height=np.array([1.5, 1.7, 1.9, -1e6]), age=np.array([30, 40, 50, 0]))
    assert TableInput.fit(changed, TRAIN) == fitted()
    assert TableInput.fit(dict(COLUMNS, age=np.array([31, 40, 50, 60])), TRAIN) != fitted()


def test_order_is_free_and_the_target_is_ignored() -> None:
    wanted = fitted().prepare(COLUMNS, "y")
    shuffled = {"y": np.zeros(4), **{name: COLUMNS[name] for name in ("height", "colour", "age")}}
    assert torch.equal(fitted().prepare(shuffled, "y"), wanted)


def test_text_cells_of_a_csv_give_the_same() -> None:
    text = {
        name: np.array([str(v) for v in values], dtype=object) for name, values in COLUMNS.items()
    }
    assert torch.equal(fitted().prepare(text, "y"), fitted().prepare(COLUMNS, "y"))


def test_array_in_the_order_of_training() -> None:
    inputs = TableInput.fit({"a": np.arange(4.0), "b": np.arange(4.0) ** 2}, TRAIN)
    array = np.stack([np.arange(4.0), np.arange(4.0) ** 2], axis=1)
    assert torch.equal(
        inputs.prepare(array, "y"), inputs.prepare({"a": array[:, 0], "b": array[:, 1]}, "y")
    )
    for wrong in (array[:, :1], array[0], np.zeros((4, 3))):
        with pytest.raises(InvalidData, match=r"must be \[N, 2\].*a, b"):
            inputs.prepare(wrong, "y")


def test_wrong_columns_are_refused_by_name() -> None:
    raw = {"age": COLUMNS["age"], "Colour": COLUMNS["colour"], "height": COLUMNS["height"]}
    with pytest.raises(InvalidData, match="'colour' is missing and column 'Colour' was not there"):
        fitted().prepare(raw, "y")


def test_unknown_category_names_column_and_value() -> None:
    raw = dict(COLUMNS, colour=np.array(["red", "red", "pink", "red"], dtype=object))
    with pytest.raises(InvalidData, match="column 'colour', row 2 = pink: is a category that"):
        fitted().prepare(raw, "y")


def test_missing_cell_names_column_and_row() -> None:
    raw = dict(COLUMNS, height=np.array([1.0, np.nan, 1.0, 1.0]))
    with pytest.raises(InvalidData, match="column 'height', row 1: is missing"):
        fitted().prepare(raw, "y")
    with pytest.raises(InvalidData, match="column 'height', row 1: is missing"):
        TableInput.fit(raw, TRAIN)


def test_constant_column_has_scale_one() -> None:
    inputs = TableInput.fit({"c": np.array([0.1, 0.1, 0.1, 0.3])}, TRAIN)
    assert inputs.columns[0].scale == 1.0
    # float32 rounding of 0.2
    np.testing.assert_allclose(inputs.prepare({"c": np.array([0.3])}, "y").item(), 0.2, rtol=1e-6)


def test_category_outside_the_training_rows_is_known() -> None:
    assert fitted().columns[1].categories == ("blue", "green", "red")
    assert fitted().features == ["age", "colour=blue", "colour=green", "colour=red", "height"]
    assert fitted().feature_name((3,)) == "column 'colour=red'"


def test_too_large_for_float32() -> None:
    inputs = TableInput.fit({"c": np.array([0.0, 1.0])}, np.array([0, 1]))
    with pytest.raises(InvalidData, match=r"column 'c', row 1 = 1e\+300: is too large"):
        inputs.prepare({"c": np.array([0.0, 1e300])}, "y")
    with pytest.raises(InvalidData, match=r"column 'c'.*huge values"):
        TableInput.fit({"c": np.array([1e308, -1e308])}, np.array([0, 1]))


def test_an_identifier_is_no_category() -> None:
    names = np.array([f"name{i}" for i in range(MAX_CATEGORIES + 1)], dtype=object)
    with pytest.raises(InvalidData, match=r"column 'who'.*remove the column"):
        TableInput.fit({"who": names}, np.arange(10))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "no column besides the target"),
        ({"a": np.zeros(0)}, "hold no row"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, "column 'b' = 2 rows"),
        ({"a": np.zeros((3, 1))}, "column 'a' = shape"),
    ],
)
def test_tables_that_are_none(columns: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        TableInput.fit(columns, np.arange(2))


def test_json_round_trip() -> None:
    assert TableInput.from_json(asdict(fitted())) == fitted()


def test_damaged_columns() -> None:
    with pytest.raises(InvalidData, match="int, float or str"):
        Column.from_json({"name": "a", "dtype": "date", "mean": 0, "scale": 1, "categories": None})
    with pytest.raises(InvalidData, match="has categories if it is text"):
        Column("a", "str")
    with pytest.raises(InvalidData, match="positive scale"):
        Column("a", "float", 0.0, 0.0)
    with pytest.raises(InvalidData, match="each name once"):
        TableInput((Column("a", "int"), Column("a", "int")))
