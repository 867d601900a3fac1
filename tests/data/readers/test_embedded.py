from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from gossamer.data import load


def test_digits() -> None:
    data = load("digits")
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (1294, 144, 359)
    assert (data.input_shape, data.num_classes, data.class_names) == (
        (1, 8, 8),
        10,
        list("0123456789"),
    )
    assert (data.x_train.min().item(), data.x_train.max().item()) == (0.0, 1.0)
    bunch = load_digits()
    assert torch.equal(data.preparation.prepare(bunch.images), data.preparation.prepare(bunch.data))
    assert data.preparation.to_json()["inputs"]["divisor"] == 16.0
    every = np.concatenate(
        [part.flatten(1).numpy() for part in (data.x_train, data.x_val, data.x_test)]
    )
    assert np.array_equal(np.unique(every, axis=0) * 16, np.unique(bunch.data, axis=0))


def test_digits_are_stratified() -> None:
    data = load("digits")
    share = torch.bincount(data.y_test) / torch.bincount(
        torch.cat([data.y_train, data.y_val, data.y_test])
    )
    # each class gives a fifth, up to one example of about 180
    assert (share - 0.2).abs().max() < 1 / 174


def test_breast_cancer() -> None:
    data = load("breast_cancer")
    assert data.class_names == ["malignant", "benign"]
    bunch = load_breast_cancer()
    raw = {str(name): bunch.data[:, i] for i, name in enumerate(bunch.feature_names)}
    assert torch.equal(data.preparation.prepare(raw), data.preparation.prepare(bunch.data))
    assert data.preparation.prepare_target(bunch.target).sum() == 357


def test_diabetes() -> None:
    data = load("diabetes")
    assert (data.task, data.output_size, data.input_shape) == ("regression", 1, (10,))
    bunch = load_diabetes(scaled=False)
    original = data.preparation.target_to_original(
        torch.cat([data.y_train, data.y_val, data.y_test])
    )
    # float32 rounding of values up to 346
    np.testing.assert_allclose(np.sort(original.numpy()), np.sort(bunch.target), atol=1e-4)


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "diabetes"])
def test_the_seed_leaves_the_test_part_alone(name: str) -> None:
    one, two = load(name, seed=0), load(name, seed=5)
    if one.preparation == two.preparation:
        assert torch.equal(one.x_test, two.x_test)
    raw_one, raw_two = (data.y_test for data in (one, two))
    if one.task == "regression":
        raw_one, raw_two = (d.preparation.target_to_original(d.y_test).round() for d in (one, two))
    assert torch.equal(raw_one, raw_two)
    assert not torch.equal(one.x_val, two.x_val)


def test_the_package_does_without_scikit_learn_until_a_set_is_read() -> None:
    code = "import sys; import gossamer.data; print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
