"""Data sets from values in memory: what a file of the same values gives, and parts left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from gossamer.data import from_arrays, load
from gossamer.errors import InvalidData, InvalidValue

RNG = np.random.default_rng(2)
X = RNG.normal(4.0, 2.0, (40, 3))
Y = X @ [1.0, -2.0, 0.5]
LABELS = np.array(["no", "yes", "perhaps", "yes"] * 10)
X_TEST, Y_TEST = X[:6] + 1.0, Y[:6]
IMAGES = RNG.integers(0, 256, (12, 5, 4, 3)).astype(np.uint8)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    ("x", "y"), [(X, Y), (X, LABELS), (IMAGES, np.arange(12) % 3), (X > 4.0, Y)]
)
@pytest.mark.parametrize("own_validation", [False, True])
def test_bit_for_bit_what_a_file_gives(
    tmp_path: Path, x: Any, y: Any, own_validation: bool, seed: int
) -> None:
    more = {"x_test": x[::-1][:6], "y_test": y[::-1][:6]}
    more |= {"x_val": x[3:8], "y_val": y[3:8]} if own_validation else {}
    path = tmp_path / "a.npz"
    np.savez(path, x_train=x, y_train=y, **more)
    expected = load(path, seed=seed, validation_fraction=0.3)
    found = from_arrays(x, y, seed=seed, validation_fraction=0.3, **more)
    assert found.preparation == expected.preparation
    assert [note.replace("y_train", "y") for note in expected.notes] == list(found.notes)
    for name in ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_scales_are_those_of_the_training_rows() -> None:
    data = from_arrays(X, Y, validation_fraction=0.25, x_test=X_TEST, y_test=Y_TEST)
    original = data.preparation.target_to_original(data.y_train.double()).numpy()
    rows = [int(np.argmin(np.abs(Y - value))) for value in original]
    assert len(set(rows)) == 30
    scaler = StandardScaler().fit(X[rows])
    # float32 rounding of standardised values
    np.testing.assert_allclose(data.x_train.numpy(), scaler.transform(X[rows]), atol=1e-5)
    np.testing.assert_allclose(data.x_test.numpy(), scaler.transform(X_TEST), atol=1e-5)
    np.testing.assert_allclose(
        data.preparation.target_to_original(data.y_test.double()).numpy(), Y_TEST, rtol=1e-5
    )


def test_parts_that_nobody_gave_are_absent() -> None:
    data = from_arrays(X, Y)
    assert (data.num_train, len(data.x_val), data.test) == (36, 4, None)
    whole = from_arrays(X, Y, validation_fraction=0)
    assert (whole.num_train, whole.validation, whole.test) == (40, None, None)
    with pytest.raises(InvalidData, match="test part of mine: is absent; give x_test and y_test"):
        _ = from_arrays(X, Y, name="mine").x_test


def test_tensors_and_lists_are_arrays() -> None:
    expected = from_arrays(X, Y)
    for x, y in ((torch.from_numpy(X), torch.from_numpy(Y)), (X.tolist(), Y.tolist())):
        found = from_arrays(x, y)
        assert found.preparation == expected.preparation
        assert torch.equal(found.x_train, expected.x_train)
        assert torch.equal(found.y_train, expected.y_train)


class Frame:
    """As little of a data frame as there can be."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def keys(self) -> list[Any]:
        return list(self.columns)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


@pytest.mark.parametrize("make", [dict, Frame])
def test_columns_by_name(make: Any) -> None:
    colour = np.array(["red", "blue"] * 20, dtype=object)
    test = make(colour=colour[:3], size=X[:3, 0])
    data = from_arrays(make(size=X[:, 0], colour=colour), LABELS, x_test=test, y_test=LABELS[:3])
    assert data.class_names == ["no", "perhaps", "yes"]
    assert data.preparation.to_json()["inputs"]["columns"][1]["categories"] == ["blue", "red"]
    assert data.x_test[:, 1:].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert data.y_test.tolist() == [0, 2, 1]


def test_weights_go_with_their_rows() -> None:
    weight = np.arange(40.0) / 10
    data = from_arrays(
        X, Y, weight=weight, validation_fraction=0.5, x_test=X_TEST, y_test=Y_TEST, seed=1
    )
    assert data.validation is not None
    assert data.test is not None
    assert data.test.weight is None
    seen = []
    for part in (data.train, data.validation):
        assert part.weight is not None
        original = data.preparation.target_to_original(part.y.double()).numpy()
        rows = [int(np.argmin(np.abs(Y - value))) for value in original]
        assert part.weight.tolist() == np.float32(weight[rows]).tolist()
        seen += rows
    assert sorted(seen) == list(range(40))
    plain = from_arrays(X, Y, validation_fraction=0.5, seed=1)
    assert torch.equal(plain.x_train, data.x_train)
    assert plain.weight_train is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": X[:, 0]}, r"x = shape \(40,\): must be \[N, columns\]"),
        ({"y": Y[:9]}, r"y = shape \(9,\): must have as many rows as x: 40"),
        ({"y": 3.0}, r"y = shape \(\): must have as many rows as x: 40"),
        ({"x_test": X_TEST}, "y_test: is missing though its partner is there"),
        ({"y_val": Y_TEST}, "x_val: is missing though its partner is there"),
        ({"x_test": X_TEST[:, :2], "y_test": Y_TEST}, "x_test = shape .* must match x beyond"),
        ({"x_test": X_TEST, "y_test": LABELS[:6]}, "y_test = .* must match y beyond the rows"),
        ({"x_test": {"a": Y_TEST}, "y_test": Y_TEST}, "x_test = columns by name: .*sort of x"),
        ({"weight": np.ones(39)}, r"weight = shape \(39,\): must be \[40\]"),
        ({"weight": np.ones((40, 1))}, r"weight = shape \(40, 1\)"),
        ({"weight": np.r_[np.ones(39), -1.0]}, "weight, row 39 = -1.0: must be 0 or more"),
        ({"weight": np.r_[np.nan, np.ones(39)]}, "column 'weight', row 0: is missing"),
        ({"weight": np.r_[1.0, np.inf, np.ones(38)]}, "column 'weight', row 1 = inf: must be fin"),
        ({"weight": np.zeros(40)}, "weight = all 0: some must be above 0"),
        ({"weight": np.full(40, 1e300)}, "weight_train, row 0 = inf: must be finite"),
        ({"weight": np.ones(40), "y": 3.0}, "must have as many rows as x: 40"),
    ],
)
def test_faults_name_the_argument(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        from_arrays(**({"x": X, "y": Y} | changes))


def test_faults_of_columns() -> None:
    with pytest.raises(InvalidData, match="column name of x = 0: must be text"):
        from_arrays({0: Y}, Y)  # type: ignore[dict-item]
    with pytest.raises(InvalidData, match="x_test = columns b: must have the columns of x: a"):
        from_arrays({"a": Y}, Y, x_test={"b": Y}, y_test=Y)
    with pytest.raises(InvalidData, match="column 'b' = 6 rows: must have as many as column 'a'"):
        from_arrays({"a": Y, "b": Y_TEST}, Y)


def test_settings_outside_their_rule() -> None:
    with pytest.raises(InvalidValue, match=r"validation_fraction = 1.0: must lie in \[0, 1\)"):
        from_arrays(X, Y, validation_fraction=1.0)
    with pytest.raises(InvalidValue, match="task = ranking"):
        from_arrays(X, Y, task="ranking")  # type: ignore[arg-type]
    assert from_arrays(X, np.arange(40) % 2, task="regression", target="size").task == "regression"
