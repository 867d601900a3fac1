from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gossamer.data.build import RawData, build_dataset
from gossamer.errors import InvalidData

RNG = np.random.default_rng(1)
X = RNG.normal(5.0, 3.0, (60, 2))
Y = RNG.normal(100.0, 20.0, 60)
TRAIN, TEST = np.arange(48), np.arange(48, 60)


def raw(**changes: Any) -> RawData:
    return RawData(**({"name": "n", "x": X, "y": Y, "train": TRAIN, "test": TEST} | changes))


def test_test_values_never_enter_the_scales() -> None:
    x, y = X.copy(), Y.copy()
    x[TEST], y[TEST] = 1e6, -1e6
    data, other = build_dataset(raw()), build_dataset(raw(x=x, y=y))
    assert other.preparation == data.preparation
    assert torch.equal(other.x_train, data.x_train)
    assert torch.equal(other.y_val, data.y_val)
    assert not torch.equal(other.x_test, data.x_test)


def test_validation_values_never_enter_the_scales() -> None:
    data = build_dataset(raw())
    in_train = {tuple(row) for row in data.x_train.tolist()}
    prepared = data.preparation.prepare(X)
    outside = np.array([tuple(row) not in in_train for row in prepared.tolist()])
    x = X.copy()
    x[outside] += 1000.0
    assert outside.sum() == len(data.x_val) + len(TEST)
    assert build_dataset(raw(x=x)).preparation == data.preparation
    # float32 rounding of the standardised training part
    np.testing.assert_allclose(data.x_train.mean(0).numpy(), 0.0, atol=1e-6)
    np.testing.assert_allclose(data.x_train.var(0, correction=0).numpy(), 1.0, rtol=1e-5)


def test_seed_moves_validation_and_not_the_test_part() -> None:
    first, second = build_dataset(raw(), seed=0), build_dataset(raw(), seed=1)
    original = [
        data.preparation.target_to_original(data.y_test).double() for data in (first, second)
    ]
    # float32 rounding of values around 100
    np.testing.assert_allclose(original[0].numpy(), Y[TEST], rtol=1e-6)
    np.testing.assert_allclose(original[1].numpy(), Y[TEST], rtol=1e-6)
    assert not torch.equal(first.y_val, second.y_val)
    again = build_dataset(raw(), seed=1)
    assert torch.equal(again.x_train, second.x_train)


def test_inputs_keep_their_targets() -> None:
    data = build_dataset(raw(x=np.stack([Y, Y**2], axis=1)), limit_train=20)
    assert data.num_train == 20
    for part in ("train", "val", "test"):
        # the first column and the target are standardised alike
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        np.testing.assert_allclose(x[:, 0].numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


def test_own_validation_part_is_used() -> None:
    data = build_dataset(raw(train=np.arange(40), validation=np.arange(40, 48)))
    assert (data.num_train, len(data.x_val)) == (40, 8)


def test_parts_may_be_absent() -> None:
    data = build_dataset(raw(test=None))
    assert data.test is None
    assert data.validation is not None
    whole = build_dataset(raw(test=None), validation_fraction=0.0)
    assert (whole.num_train, whole.validation, whole.test) == (48, None, None)
    assert torch.equal(build_dataset(raw()).x_train, data.x_train)


def test_weights_go_where_their_rows_go() -> None:
    """The second column is the weight before it was standardised."""
    weight = RNG.uniform(0.0, 3.0, 60)
    x = np.stack([Y, weight], axis=1)
    data = build_dataset(raw(x=x, weight=weight), validation_fraction=0.3)
    column = data.preparation.inputs.columns[1]  # type: ignore[union-attr]
    for part in (data.train, data.validation):
        assert part is not None
        assert part.weight is not None
        original = part.x[:, 1].double() * column.scale + column.mean
        # float32 rounding of both
        np.testing.assert_allclose(original.numpy(), part.weight.numpy(), rtol=1e-5, atol=1e-6)
    assert data.test is not None
    assert data.test.weight is None
    own = build_dataset(raw(train=np.arange(40), validation=np.arange(40, 48), x=x, weight=weight))
    assert sorted(own.weight_train.tolist()) == sorted(np.float32(weight[:40]).tolist())  # type: ignore[union-attr]
    assert own.validation is not None
    assert own.validation.weight is None


def test_inference_is_noted_and_can_be_overruled() -> None:
    labels = np.arange(60) % 3
    inferred = build_dataset(raw(y=labels))
    assert inferred.task == "classification"
    assert "inferred" in inferred.notes[-1]
    told = build_dataset(raw(y=labels), task="regression")
    assert (told.task, told.notes) == ("regression", ())
    assert build_dataset(raw(y=labels, task="regression")).task == "regression"


def test_faults_name_the_array_and_its_row() -> None:
    y = np.arange(60) % 2
    y[50] = 7
    parts = (("y_train", 48), ("y_test", 12))
    with pytest.raises(InvalidData, match="target 'y_test', row 2 = 7: label is out of range"):
        build_dataset(raw(y=y, y_parts=parts))
    values = Y.copy()
    values[49] = np.nan
    with pytest.raises(InvalidData, match="column 'y_test', row 1: is missing"):
        build_dataset(raw(y=values, y_parts=parts))


@pytest.mark.parametrize("part", ["train", "test"])
def test_empty_parts(part: str) -> None:
    with pytest.raises(InvalidData, match=r"part of n: holds no example"):
        build_dataset(raw(**{part: np.arange(0)}))
