from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from gossamer.data.prepare.target import (
    ClassTarget,
    ValueTarget,
    check_task,
    infer_task,
    standardisation,
    target_from_json,
)
from gossamer.errors import InvalidData, InvalidValue


@pytest.mark.parametrize(
    ("y", "images", "task"),
    [
        (np.array(["a", "b"]), False, "classification"),
        (np.array([3, 8, 3]), False, "classification"),
        (np.arange(20), False, "classification"),
        (np.arange(21), False, "regression"),
        (np.arange(100), True, "classification"),
        (np.array([1.0, 2.0]), False, "regression"),
        (np.array([True, False]), False, "classification"),
        (np.zeros((4, 3)), False, "regression"),
    ],
)
def test_task_is_inferred_and_said(y: np.ndarray, images: bool, task: str) -> None:
    found, why = infer_task("y", y, images=images)
    assert found == task
    assert why.startswith(f"task {task}, inferred")


def test_labels_that_are_not_0_to_c() -> None:
    target = ClassTarget.fit("quality", np.array([7, 3, 5, 3]))
    assert target.names == ("3", "5", "7")
    assert target.prepare(np.array([3, 7, 5])).tolist() == [0, 2, 1]
    assert target.prepare(np.array(["3", "7"], dtype=object)).tolist() == [0, 2]
    assert target.prepare(np.array([[3.0], [5.0]])).dtype == torch.int64


def test_numbers_sort_as_numbers_not_as_text() -> None:
    assert ClassTarget.fit("y", np.array([10, 9, 2])).labels == ("2", "9", "10")


def test_text_labels() -> None:
    target = ClassTarget.fit("kind", np.array(["dog", "cat", "dog"], dtype=object))
    assert target.labels == ("cat", "dog")
    assert target.prepare(np.array(["dog", "cat"])).tolist() == [1, 0]


def test_known_names_fix_the_number_of_classes() -> None:
    target = ClassTarget.fit("y", np.array([0]), ("zero", "one", "two"))
    assert target.size == 3
    with pytest.raises(InvalidData, match=r"target 'labels', row 1 = 3: label is out of range"):
        target.prepare(np.array([2, 3]), "labels")


def test_unseen_and_negative_labels() -> None:
    target = ClassTarget.fit("y", np.array([0, 1]))
    with pytest.raises(InvalidData, match=r"target 'y', row 2 = 9: label is out of range"):
        target.prepare(np.array([0, 1, 9]))
    with pytest.raises(InvalidData, match=r"target 'y' = -1: a label must be 0 or more"):
        ClassTarget.fit("y", np.array([-1, 0, 1]))
    assert ClassTarget.fit("y", np.array([-1, 1])).labels == ("-1", "1")


def test_one_class_or_one_hot_is_refused() -> None:
    with pytest.raises(InvalidData, match="at least 2 classes"):
        ClassTarget.fit("y", np.array([4, 4]))
    with pytest.raises(InvalidData, match="not one-hot"):
        ClassTarget.fit("y", np.eye(3))


def test_values_are_standardised_and_come_back() -> None:
    y = np.array([1.0, 2.0, 6.0])
    target = ValueTarget.fit("y", y)
    assert (target.mean, target.scale) == ((3.0,), (float(np.std(y)),))
    scaled = target.prepare(y)
    assert scaled.shape == (3,)
    assert scaled.dtype == torch.float32
    # float32 rounding of values of size 6
    np.testing.assert_allclose(scaled.numpy() * np.std(y) + 3.0, y, rtol=0, atol=1e-6)


def test_vector_values() -> None:
    y = np.array([[0.0, 5.0], [2.0, 5.0]])
    target = ValueTarget.fit("y", y)
    assert target.scale == (1.0, 1.0)
    assert target.prepare(y).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert ValueTarget.fit("y", y[:, :1]).prepare(y[:, :1]).shape == (2,)
    with pytest.raises(InvalidData, match="2 values per row"):
        target.prepare(np.zeros((3, 3)))
    with pytest.raises(InvalidData, match=r"\[N\] or \[N, D\]"):
        target.prepare(np.zeros((3, 2, 2)))


def test_constant_up_to_rounding_has_scale_one() -> None:
    assert standardisation(np.full(1000, 0.1))[1] == 1.0
    assert standardisation(np.array([1.0, 3.0])) == (2.0, 1.0)


def test_huge_values_are_refused() -> None:
    with pytest.raises(InvalidData, match="huge values"):
        ValueTarget.fit("y", np.array([1e308, -1e308]))


@pytest.mark.parametrize(
    "target",
    [
        ClassTarget("y", ("0", "1"), ("no", "yes")),
        ValueTarget("y", (0.1, 1 / 3), (2.0, 1e-7), vector=True),
    ],
)
def test_json_round_trip(target: ClassTarget | ValueTarget) -> None:
    assert target_from_json(asdict(target)) == target


def test_wrong_tasks() -> None:
    with pytest.raises(InvalidData, match="target task = ranking"):
        target_from_json({"task": "ranking"})
    with pytest.raises(InvalidValue, match="task = ranking"):
        check_task("ranking")
    with pytest.raises(InvalidData, match="distinct labels"):
        ClassTarget("y", ("0", "0"), ("a", "b"))
    with pytest.raises(InvalidData, match="one mean and one scale"):
        ValueTarget("y", (0.0,), (), vector=False)
