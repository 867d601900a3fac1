from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from gossamer.data import DataSet, Preparation, Rows
from gossamer.data.prepare.image_input import ImageInput
from gossamer.data.prepare.table_input import CategoryColumn, NumberColumn, TableInput
from gossamer.data.prepare.target import ClassTarget, ValueTarget
from gossamer.errors import InvalidData

CLASSES = Preparation(
    TableInput((NumberColumn("age", "int"), CategoryColumn("sex", ("f", "m")))),
    ClassTarget("y", ("0", "1", "2"), ("a", "b", "c")),
)
VALUES = Preparation(CLASSES.inputs, ValueTarget("y", (0.0,), (1.0,), vector=False))
PARTS = {"train": 4, "val": 2, "test": 3}


NAMES = {"train": "train", "val": "validation", "test": "test"}


def classes(**changes: Any) -> DataSet:
    """A set of zeros; ``x_val=...`` and the like change one tensor of a part."""
    tensors: dict[str, Any] = {f"x_{part}": torch.zeros(n, 3) for part, n in PARTS.items()}
    tensors |= {f"y_{part}": torch.arange(n) % 3 for part, n in PARTS.items()}
    tensors |= {f"weight_{part}": None for part in PARTS}
    tensors |= {key: changes.pop(key) for key in list(changes) if key in tensors}
    parts = {
        name: Rows(*(tensors[f"{kind}_{part}"] for kind in ("x", "y", "weight")))
        for part, name in NAMES.items()
    }
    return DataSet(
        **({"name": "n", "task": "classification", "preparation": CLASSES} | parts | changes)
    )


def values(**changes: Any) -> DataSet:
    parts = {f"y_{part}": torch.zeros(n) for part, n in PARTS.items()}
    return classes(**({"task": "regression", "preparation": VALUES} | parts | changes))


def test_what_it_knows() -> None:
    data = classes()
    assert (data.num_train, data.num_classes, data.output_size) == (4, 3, 3)
    assert data.input_shape == (3,)
    assert data.class_names == ["a", "b", "c"]
    assert (data.augment, data.notes) == (None, ())
    data = values()
    assert (data.num_classes, data.output_size, data.class_names) == (None, 1, None)


def test_parts_by_their_short_names() -> None:
    weight = torch.tensor([0.0, 2.0, 1.0, 1.0])
    data = classes(x_test=torch.ones(3, 3), y_val=torch.tensor([2, 1]), weight_train=weight)
    assert data.test is not None
    assert data.validation is not None
    assert data.x_train is data.train.x
    assert data.y_train is data.train.y
    assert data.weight_train is weight
    assert data.x_val is data.validation.x
    assert data.y_val.tolist() == [2, 1]
    assert data.x_test.sum() == 9
    assert data.y_test is data.test.y
    assert classes().weight_train is None


def test_whoever_asks_for_an_absent_part_is_told_the_way() -> None:
    data = classes(validation=None, test=None)
    assert data.num_train == 4
    for name in ("x_val", "y_val"):
        with pytest.raises(
            InvalidData, match=r"validation part of n: is absent; .*x_val and y_val"
        ):
            getattr(data, name)
    for name in ("x_test", "y_test"):
        with pytest.raises(InvalidData, match=r"test part of n: is absent; .*data\.from_arrays"):
            getattr(data, name)


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        classes().name = "other"  # type: ignore[misc]


def spoiled(row: int, column: int, value: float, rows: int = 4) -> torch.Tensor:
    x = torch.zeros(rows, 3)
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_train": spoiled(2, 0, float("nan"))}, r"x_train, row 2, column 'age' = nan"),
        ({"x_test": spoiled(1, 2, float("inf"), 3)}, r"x_test, row 1, column 'sex=m' = inf"),
        ({"y_val": torch.tensor([0, 3])}, r"y_val, row 1 = 3: label must lie in \[0, 3\)"),
        ({"y_test": torch.tensor([0, -1, 2])}, r"y_test, row 1 = -1"),
        ({"y_val": torch.tensor([0.0, 1.0])}, r"y_val = torch.float32 \(2,\): must be torch.int64"),
        ({"x_val": torch.zeros(0, 3)}, "x_val: holds no example"),
        ({"x_train": torch.zeros(4, 2)}, "x_train = shape"),
        ({"x_train": torch.zeros(4, 3).double()}, "x_train = torch.float64"),
        ({"y_train": torch.zeros(3).long()}, "y_train = 3 rows"),
        ({"weight_train": torch.ones(3)}, r"weight_train = torch.float32 \(3,\): .* \[4\]"),
        ({"weight_train": torch.ones(4).double()}, "weight_train = torch.float64"),
        ({"weight_train": torch.tensor([1.0, 0.0, -1.0, 1.0])}, "weight_train, row 2 = -1.0"),
        ({"weight_val": torch.tensor([1.0, float("inf")])}, "weight_val, row 1 = inf: must be fin"),
        ({"weight_train": torch.tensor([float("nan")] * 4)}, "weight_train, row 0 = nan"),
        ({"weight_val": torch.zeros(2)}, "weight_val = all 0: some must be above 0"),
        ({"task": "regression"}, "task = regression"),
        ({"augment": "mixup"}, "augment = mixup"),
        ({"augment": "crop_flip"}, "images only"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        classes(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": torch.tensor([0.0, float("nan"), 0.0, 0.0])}, "y_train, row 1 = nan"),
        ({"y_train": torch.zeros(4, 1)}, "y_train = torch.float32"),
        ({"y_train": torch.zeros(4).long()}, "y_train = torch.int64"),
    ],
)
def test_faults_of_values_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        values(**changes)


def test_vector_target() -> None:
    target = ValueTarget("y", (0.0, 0.0), (1.0, 1.0), vector=True)
    parts = {f"y_{part}": torch.zeros(n, 2) for part, n in PARTS.items()}
    data = values(preparation=Preparation(CLASSES.inputs, target), **parts)
    assert data.output_size == 2


def test_a_fault_beyond_the_first_block_of_images() -> None:
    preparation = Preparation(ImageInput((1, 2, 2), 1.0), CLASSES.target)
    parts: dict[str, Any] = {f"x_{part}": torch.zeros(n, 1, 2, 2) for part, n in PARTS.items()}
    assert classes(preparation=preparation, augment="crop_flip", **parts).augment == "crop_flip"
    x = torch.zeros(5000, 1, 2, 2)
    x[4999, 0, 1, 0] = float("nan")
    parts |= {"x_train": x, "y_train": torch.zeros(5000).long()}
    with pytest.raises(InvalidData, match=r"x_train, row 4999, pixel \[0, 1, 0\] = nan"):
        classes(preparation=preparation, **parts)
