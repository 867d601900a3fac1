from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gossamer.data.prepare.category_column import CategoryColumn
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_column import NumberColumn
from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.table_input import TableInput
from gossamer.errors import GossamerError, InvalidData

COLUMNS = {
    "age": np.array([30, 40, 50, 60]),
    "colour": np.array(["red", "blue", "red", "green"], dtype=object),
    "height": np.array([1.5, 1.7, 1.9, 9.0]),
}
TRAIN = np.array([0, 1, 2])


STRICT = TableRules(missing="error", unknown="error")


def fitted(rows: np.ndarray = TRAIN) -> TableInput:
    return TableInput.fit(COLUMNS, rows)


def test_agrees_with_scikit_learn() -> None:
    x = fitted().prepare(COLUMNS, "y", Findings()).numpy()
    numbers = np.stack([COLUMNS["age"], COLUMNS["height"]], axis=1)
    scaled = StandardScaler().fit(numbers[TRAIN]).transform(numbers)
    colours = COLUMNS["colour"].reshape(-1, 1)
    coder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(colours[TRAIN])
    one_hot = coder.transform(colours)
    # float32 rounding
    np.testing.assert_allclose(x[:, [0, 3]], scaled, rtol=1e-6, atol=1e-7)
    assert np.array_equal(x[:, 1:3], one_hot)


def test_scaling_ignores_every_other_row() -> None:
    changed = dict(COLUMNS, height=np.array([1.5, 1.7, 1.9, -1e6]), age=np.array([30, 40, 50, 0]))
    assert TableInput.fit(changed, TRAIN) == fitted()
    assert TableInput.fit(dict(COLUMNS, age=np.array([31, 40, 50, 60])), TRAIN) != fitted()


def test_order_is_free_and_the_target_is_ignored() -> None:
    known = {name: values[TRAIN] for name, values in COLUMNS.items()}
    wanted = fitted().prepare(known, "y")
    shuffled = {"y": np.zeros(3), **{name: known[name] for name in ("height", "colour", "age")}}
    assert torch.equal(fitted().prepare(shuffled, "y"), wanted)


def test_text_cells_of_a_csv_give_the_same() -> None:
    known = {name: values[TRAIN] for name, values in COLUMNS.items()}
    text = {
        name: np.array([str(v) for v in values], dtype=object) for name, values in known.items()
    }
    assert torch.equal(fitted().prepare(text, "y"), fitted().prepare(known, "y"))


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


def test_a_column_that_training_had_not_is_ignored_with_a_remark() -> None:
    raw = dict(COLUMNS, extra=np.zeros(4))
    findings = Findings()
    x = fitted(np.arange(4)).prepare(raw, "y", findings)
    assert torch.equal(x, fitted(np.arange(4)).prepare(COLUMNS, "y"))
    assert findings.sentences() == ("column 'extra' was not there in training and is ignored",)
    with pytest.warns(UserWarning, match="column 'extra' was not there in training"):
        fitted(np.arange(4)).prepare(raw, "y")


def test_unknown_category_names_column_and_value_where_it_is_an_error() -> None:
    inputs = TableInput.fit(COLUMNS, np.arange(4), STRICT)
    raw = dict(COLUMNS, colour=np.array(["red", "red", "pink", "red"], dtype=object))
    with pytest.raises(InvalidData, match="column 'colour', row 2 = pink: is a category that"):
        inputs.prepare(raw, "y")


def test_missing_cell_names_column_and_row_where_it_is_an_error() -> None:
    raw = dict(COLUMNS, height=np.array([1.0, np.nan, 1.0, 1.0]))
    with pytest.raises(InvalidData, match="column 'height', row 1: is missing"):
        TableInput.fit(COLUMNS, np.arange(4), STRICT).prepare(raw, "y")
    with pytest.raises(InvalidData, match="column 'height', row 1: is missing"):
        TableInput.fit(raw, TRAIN, STRICT)


def test_constant_column_has_scale_one() -> None:
    inputs = TableInput.fit({"c": np.array([0.1, 0.1, 0.1, 0.3])}, TRAIN)
    assert inputs.columns[0].scale == 1.0
    # float32 rounding of 0.2
    np.testing.assert_allclose(inputs.prepare({"c": np.array([0.3])}, "y").item(), 0.2, rtol=1e-6)


def test_levels_come_from_the_training_rows_alone() -> None:
    assert fitted().columns[1].categories == ("blue", "red")
    assert fitted().features == ["age", "colour=blue", "colour=red", "height"]
    assert fitted().feature_name((2,)) == "column 'colour=red'"


def test_too_large_for_float32() -> None:
    inputs = TableInput.fit({"c": np.array([0.0, 1.0])}, np.array([0, 1]))
    with pytest.raises(InvalidData, match=r"column 'c', row 1 = 1e\+300: is too large"):
        inputs.prepare({"c": np.array([0.0, 1e300])}, "y")
    with pytest.raises(InvalidData, match=r"column 'c'.*huge values"):
        TableInput.fit({"c": np.array([1e308, -1e308])}, np.array([0, 1]))


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
    assert TableInput.from_json(fitted().to_json()) == fitted()


def test_damaged_columns() -> None:
    plain = {"name": "a", "dtype": "int", "mean": 0, "scale": 1, "categories": None}
    for changes, said in (
        ({"dtype": "word"}, "int, float, str or date"),
        ({"dtype": "str"}, "has categories if it is text"),
        ({"missing": "perhaps"}, "missing = perhaps: must be one of: mean, error, drop"),
        ({"style": "1;5"}, "style of numbers = 1;5"),
    ):
        with pytest.raises(GossamerError, match=said):
            TableInput.from_json({"columns": [plain | changes]})
    with pytest.raises(InvalidData, match="positive scale"):
        NumberColumn("a", "float", 0.0, 0.0)
    with pytest.raises(InvalidData, match="each name once"):
        TableInput((NumberColumn("a", "int"), CategoryColumn("a", ("x",))))


def test_numbers_without_gaps_are_the_bits_of_the_first_version() -> None:
    """What runs of earlier versions were trained on: mean, std, one division, one rounding."""
    rng = np.random.default_rng(5)
    raw = {"a": rng.normal(1e4, 3.0, 500), "b": rng.integers(0, 9, 500), "c": np.full(500, 0.1)}
    rows = rng.permutation(500)[:400]
    wanted = []
    for values in raw.values():
        numbers = values.astype(np.float64)
        mean, std = numbers[rows].mean(), numbers[rows].std()
        scale = 1.0 if np.ptp(numbers[rows]) == 0 else std
        wanted.append(((numbers - mean) / scale).astype(np.float32))
    texts = {
        n: np.array([repr(v) for v in values.tolist()], dtype=object) for n, values in raw.items()
    }
    for columns in (raw, texts):
        found = TableInput.fit(columns, rows).prepare(columns, "y")
        assert np.array_equal(found.numpy(), np.stack(wanted, axis=1))


def test_columns_of_runs_of_earlier_versions_load_and_are_written_as_they_were() -> None:
    stored = {
        "kind": "table",
        "columns": [
            {"name": "a", "dtype": "float", "mean": 2.0, "scale": 4.0, "categories": None},
            {"name": "b", "dtype": "str", "mean": 0.0, "scale": 1.0, "categories": ["x", "y"]},
        ],
    }
    inputs = TableInput.from_json(stored)
    assert inputs.to_json() == stored
    raw = {"a": np.array([2.0, 4.0]), "b": np.array(["y", "x"])}
    assert inputs.prepare(raw, "t").tolist() == [[0.0, 0.0, 1.0], [0.5, 1.0, 0.0]]
