"""Missing cells, new and rare levels: against scikit-learn where it does the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gossamer.data import TableRules, from_arrays
from gossamer.data.prepare.category_column import MAX_CATEGORIES, CategoryColumn
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_column import NumberColumn
from gossamer.data.prepare.table_input import TableInput
from gossamer.errors import InvalidData, InvalidValue

RNG = np.random.default_rng(8)


def words(*cells: Any) -> np.ndarray:
    return np.array(cells, dtype=object)


def fit_one(values: np.ndarray, rows: np.ndarray | None = None, **rules: Any) -> Any:
    findings = Findings()
    rows = np.arange(len(values)) if rows is None else rows
    inputs = TableInput.fit({"c": values}, rows, TableRules(**rules), findings)
    return inputs.columns[0], findings.sentences()


def test_missing_numbers_are_the_training_mean_with_an_indicator() -> None:
    values = RNG.normal(5.0, 2.0, 60)
    values[[3, 17, 50]] = np.nan
    train = np.arange(40)
    column, said = fit_one(values, train)
    x = column.encode(values, Findings())
    imputer = SimpleImputer(add_indicator=True).fit(values[train, None])
    filled = imputer.transform(values[:, None])
    present = values[train][~np.isnan(values[train])]
    scaler = StandardScaler().fit(present[:, None])
    np.testing.assert_allclose(x[:, :1], scaler.transform(filled[:, :1]), atol=1e-6)  # float32
    assert np.array_equal(x[:, 1], filled[:, 1])
    assert column.features == ["c", "c (missing)"]
    assert len(said) == 1
    assert said[0].startswith("column 'c' (2 of 40 training rows): missing cells are read as the")
    text = words(*["" if np.isnan(v) else repr(v) for v in values.tolist()])
    assert np.array_equal(column.encode(text, Findings()), x)


def test_missing_where_training_had_none_is_the_mean_with_a_remark() -> None:
    column, said = fit_one(np.array([1.0, 2.0, 3.0]))
    assert said == ()
    findings = Findings()
    assert column.encode(np.array([np.nan, 2.0]), findings).tolist() == [[0.0], [0.0]]
    assert findings.sentences() == (
        "column 'c': 1 cells are missing, though none of training was; read as its mean",
    )


def test_a_column_without_any_number_in_training_is_zero() -> None:
    column, _ = fit_one(np.array([np.nan, np.nan, 3.0]), np.array([0, 1]))
    assert column.encode(np.array([np.nan, 0.5]), Findings()).tolist() == [[0.0, 1.0], [0.5, 0.0]]


def test_missing_cells_of_a_category_are_a_level() -> None:
    column, said = fit_one(words("a", "b", None, "?", "a"))
    assert column.features == ["c=a", "c=b", "c=(missing)"]
    assert column.encode(words("", "b"), Findings()).tolist() == [[0, 0, 1], [0, 1, 0]]
    assert said == ("column 'c' (2 of 5 training rows): missing cells are a level of their own",)
    plain, _ = fit_one(words("a", "b"))
    findings = Findings()
    assert plain.encode(words(None, "b"), findings).tolist() == [[0, 0], [0, 1]]
    assert "no level is set" in findings.sentences()[0]


@pytest.mark.parametrize("values", [np.array([1.0, np.nan, 2.0]), words("a", None, "b")])
def test_dropped_and_refused_cells(values: np.ndarray) -> None:
    with pytest.raises(InvalidData, match="column 'c', row 1: is missing"):
        fit_one(values, missing="error")
    column, _ = fit_one(values, np.array([0, 2]), missing="drop")
    with pytest.raises(InvalidData, match=r"column 'c', row 1: is missing; .*were left out"):
        column.encode(values, Findings())
    assert TableInput.from_json(TableInput((column,)).to_json()).columns == (column,)


def test_rows_with_missing_cells_are_dropped_from_every_part() -> None:
    x = RNG.normal(size=(60, 3))
    x[[2, 30, 55], [0, 1, 2]] = np.nan
    y = x[:, 0] + RNG.normal(size=60)
    y[2] = 0.0
    data = from_arrays(x, y, x_test=x[50:], y_test=y[50:], rules=TableRules(missing="drop"))
    assert (data.num_train + len(data.x_val), len(data.x_test)) == (57, 9)
    assert "4 of 70 rows have missing cells and are left out" in data.notes
    kept = ~np.isnan(x).any(1)
    assert data.preparation.input_shape == (3,)
    with pytest.raises(InvalidData, match="has a missing cell in every row; use missing=mean"):
        from_arrays(np.full((5, 2), np.nan), np.arange(5.0), rules=TableRules(missing="drop"))
    assert kept.sum() == 57


def test_arrays_with_missing_cells_train_by_default() -> None:
    x = RNG.normal(size=(60, 2))
    x[5, 1] = np.nan
    data = from_arrays(x, x[:, 0] + 1, validation_fraction=0)
    assert data.input_shape == (3,)
    with pytest.raises(InvalidData, match="column 'x1', row 5: is missing"):
        from_arrays(x, x[:, 0], rules=TableRules(missing="error"))


def test_rare_levels_join_other_as_in_scikit_learn() -> None:
    levels = words(*(["a"] * 20 + ["b"] * 10 + ["c", "c", "d", "e"]))
    column, said = fit_one(levels)
    coder = OneHotEncoder(
        min_frequency=3, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    coder.fit(levels[:, None])
    new = words("a", "d", "never", "b")
    findings = Findings()
    assert np.array_equal(column.encode(new, findings), coder.transform(new[:, None]))
    assert column.features == ["c=a", "c=b", "c=(other)"]
    (rare,) = said
    assert rare.startswith("column 'c' (3 of 5 levels): levels of fewer than 3 training rows are")
    (said_of_new,) = findings.sentences()
    assert said_of_new.startswith("column 'c': 2 cells hold a level of fewer than 3 training rows;")
    assert said_of_new.endswith("read as other (e.g. d, never)")


def test_a_new_level_without_other_has_no_feature_set() -> None:
    column, said = fit_one(words(*["a", "b"] * 20))
    assert said == ()
    findings = Findings()
    assert column.encode(words("a", "z", "y", "z"), findings).tolist() == [
        [1, 0],
        [0, 0],
        [0, 0],
        [0, 0],
    ]
    assert findings.sentences() == (
        "column 'c': 3 cells hold a level that training never saw; no level is set (e.g. z, y)",
    )


def test_one_rare_level_and_small_tables_keep_their_levels() -> None:
    assert fit_one(words(*["a"] * 40, "b"))[0].categories == ("a", "b")
    assert fit_one(words("a", "b", "c"))[0].categories == ("a", "b", "c")
    assert fit_one(words(*["a"] * 40, "b", "c"), unknown="error")[0].categories == ("a", "b", "c")


def test_of_many_levels_the_most_frequent_are_kept() -> None:
    count = MAX_CATEGORIES + 5
    names = [f"n{i:04d}" for i in range(count) for _ in range(3 + (i >= 5))]
    column, said = fit_one(words(*names))
    assert column.categories == tuple(f"n{i:04d}" for i in range(5, count))
    assert column.other
    assert f"({count} levels): the {MAX_CATEGORIES} most frequent levels are kept" in said[0]
    with pytest.raises(InvalidData, match=r"column 'c' = 1005 distinct texts.*unknown=other"):
        fit_one(words(*names), unknown="error")
    ids, said = fit_one(words(*[f"id{i}" for i in range(2000)]))
    assert ids.features == ["c=(other)"]
    assert said[0].startswith("warning: column 'c' (2000 of 2000 levels): no text has 3")


def test_spellings_of_true_and_false_are_one() -> None:
    column, _ = fit_one(words("true", "FALSE", "True", "false"))
    assert column.categories == ("False", "True")
    assert column.encode(np.array([True, False]), Findings()).tolist() == [[0, 1], [1, 0]]
    lower, _ = fit_one(words("true", "false"))
    assert lower.categories == ("false", "true")
    assert lower.encode(words("TRUE"), Findings()).tolist() == [[0, 1]]
    assert isinstance(lower, CategoryColumn)


@pytest.mark.parametrize(
    "given",
    [
        np.array([1, 0]),
        np.array([1.0, 0.0]),
        np.array([True, False]),
        words("1", "0"),
        words("1.0", "0.0"),
        words(1, False),
        words("True", 0.0),
    ],
)
@pytest.mark.parametrize(
    "trained",
    [np.array([True, False] * 3), words("true", "false"), words("FALSE", "True", "true")],
)
def test_one_and_zero_are_true_and_false_where_training_had_these(
    trained: np.ndarray, given: np.ndarray
) -> None:
    column, _ = fit_one(trained)
    findings = Findings()
    assert column.encode(given, findings).tolist() == [[0, 1], [1, 0]]
    assert findings.sentences() == ()


def test_other_numbers_are_no_truths_and_other_categories_no_numbers() -> None:
    truths, _ = fit_one(np.array([True, False, True]))
    findings = Findings()
    assert truths.encode(words("2", "01", "-1", "yes"), findings).tolist() == [[0, 0]] * 4
    assert "level that training never saw" in findings.sentences()[0]
    mixed, _ = fit_one(words("True", "False", "maybe"))
    assert mixed.encode(words("1", "True"), Findings()).tolist() == [[0, 0, 0], [0, 1, 0]]
    only, _ = fit_one(words("True", "True"))
    assert only.encode(words("1", "0"), Findings()).tolist() == [[1], [0]]


@pytest.mark.parametrize(
    "trained",
    [np.array([1, 0, 0]), np.array([1.0, 0.0, np.nan, 0.0]), words("1", "0", "0"), words("1", "0")],
)
def test_true_and_false_are_one_and_zero_where_training_had_these(trained: np.ndarray) -> None:
    column, _ = fit_one(trained)
    assert isinstance(column, NumberColumn)
    wanted = column.encode(np.array([1, 0]), Findings())
    for given in (np.array([True, False]), words(True, False), words("true", "FALSE")):
        findings = Findings(strict=False)
        findings.begin(0)
        assert np.array_equal(column.encode(given, findings), wanted)
        assert findings.bad == {}
    with_gap = column.encode(words("True", None), Findings())
    assert np.array_equal(with_gap, column.encode(np.array([1.0, np.nan]), Findings()))


@pytest.mark.parametrize("trained", [np.array([1, 0, 2]), np.array([3, 3]), words("0.5", "1")])
def test_truths_are_no_numbers_where_training_had_others(trained: np.ndarray) -> None:
    column, _ = fit_one(trained)
    with pytest.raises(InvalidData, match="row 1 = True: is not a number"):
        column.encode(words("1", "True"), Findings())


def test_a_single_other_number_among_many_is_noticed() -> None:
    values = RNG.integers(0, 2, 1_000_000)
    assert fit_one(values)[0]._is_of_truths
    values[5] = 2
    assert not fit_one(values)[0]._is_of_truths


def test_bad_rows_are_collected_where_they_may_be() -> None:
    inputs = TableInput((NumberColumn("n", "float"), CategoryColumn("c", ("a",), unknown="error")))
    findings = Findings(strict=False)
    findings.begin(100)
    raw = {"n": words("1", "x", "inf", ""), "c": words("b", "b", "a", "a")}
    x = inputs.prepare(raw, "y", findings)
    assert x.isfinite().all()
    assert findings.bad == {
        0: "column 'c', row 100 = b: is a category that training never saw",
        1: "column 'n', row 101 = x: is not a number",
        2: "column 'n', row 102 = inf: must be finite",
    }
    assert findings.sentences() == (
        "column 'n': 1 cells are missing, though none of training was; read as its mean",
    )


@pytest.mark.parametrize(
    "rules", [{"missing": "none"}, {"unknown": "?"}, {"decimal": "."}, {"day_first": 2}]
)
def test_rules_outside_their_rule(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(rules))):
        TableRules(**rules)


def test_columns_of_which_the_same_is_told_share_a_sentence() -> None:
    findings = Findings()
    TableInput.fit({f"c{i}": words("1,5", "2") for i in range(8)}, np.arange(2), findings=findings)
    assert findings.sentences() == (
        "columns 'c0', 'c1', 'c2', 'c3', 'c4' and 3 more: numbers are read as 1234,5",
    )
