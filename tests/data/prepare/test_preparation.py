from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.data import Preparation
from gossamer.data.prepare.category_column import CategoryColumn
from gossamer.data.prepare.image_input import ImageInput
from gossamer.data.prepare.number_column import NumberColumn
from gossamer.data.prepare.preparation import fit_preparation
from gossamer.data.prepare.table_input import TableInput
from gossamer.data.prepare.target import ClassTarget, ValueTarget
from gossamer.errors import InvalidData

TABLE = Preparation(
    TableInput((NumberColumn("a", "float", 0.1, 1 / 3), CategoryColumn("b", ("x", "y")))),
    ValueTarget("price", (10.0,), (4.0,), vector=False),
)
IMAGES = Preparation(
    ImageInput((1, 2, 2), 255.0, (0.3,), (0.7,)), ClassTarget("y", ("0", "1"), ("no", "yes"))
)


@pytest.mark.parametrize("preparation", [TABLE, IMAGES])
def test_json_round_trip_through_text(preparation: Preparation) -> None:
    again = Preparation.from_json(json.loads(json.dumps(preparation.to_json())))
    assert again == preparation


def test_what_is_stored() -> None:
    """Runs keep this file: another form of it needs another schema."""
    assert TABLE.to_json() == {
        "schema": 1,
        "inputs": {
            "kind": "table",
            "columns": [
                {"name": "a", "dtype": "float", "mean": 0.1, "scale": 1 / 3, "categories": None},
                {"name": "b", "dtype": "str", "mean": 0.0, "scale": 1.0, "categories": ["x", "y"]},
            ],
        },
        "target": {
            "task": "regression",
            "name": "price",
            "mean": [10.0],
            "scale": [4.0],
            "vector": False,
        },
    }
    assert IMAGES.to_json() == {
        "schema": 1,
        "inputs": {
            "kind": "image",
            "shape": [1, 2, 2],
            "divisor": 255.0,
            "mean": [0.3],
            "std": [0.7],
        },
        "target": {
            "task": "classification",
            "name": "y",
            "labels": ["0", "1"],
            "names": ["no", "yes"],
        },
    }


def test_round_trip_prepares_bit_for_bit() -> None:
    again = Preparation.from_json(json.loads(json.dumps(TABLE.to_json())))
    raw = {"b": np.array(["x", "y"]), "a": np.array([0.123456789, 1e-9])}
    assert torch.equal(again.prepare(raw), TABLE.prepare(raw))


def test_what_it_knows() -> None:
    assert (TABLE.kind, TABLE.task, TABLE.input_shape, TABLE.output_size) == (
        "table",
        "regression",
        (3,),
        1,
    )
    assert (IMAGES.kind, IMAGES.task, IMAGES.input_shape, IMAGES.output_size) == (
        *("image", "classification"),
        (1, 2, 2),
        2,
    )
    assert TABLE.label_names is None
    assert IMAGES.label_names == ["no", "yes"]
    assert TABLE.target_name == "price"
    assert IMAGES.label(1) == "yes"


@pytest.mark.parametrize(("preparation", "index"), [(IMAGES, 2), (IMAGES, -1), (TABLE, 0)])
def test_label_out_of_range(preparation: Preparation, index: int) -> None:
    with pytest.raises(InvalidData, match="class index"):
        preparation.label(index)


def test_outputs_in_original_units() -> None:
    mean = torch.tensor([[0.0], [1.5]])
    assert TABLE.target_to_original(mean).tolist() == [[10.0], [16.0]]
    assert TABLE.scale_to_original(mean).tolist() == [[0.0], [6.0]]
    assert TABLE.target_to_original(np.array([-1.0])).tolist() == [6.0]
    assert TABLE.target_to_original(torch.tensor(0.5)).shape == ()
    assert TABLE.prepare_target(np.array([18.0, 10.0])).tolist() == [2.0, 0.0]


def test_vector_outputs_in_original_units() -> None:
    vector = Preparation(TABLE.inputs, ValueTarget("y", (1.0, 2.0), (10.0, 100.0), vector=True))
    samples = torch.ones(5, 3, 2)
    assert vector.target_to_original(samples)[4, 2].tolist() == [11.0, 102.0]
    assert vector.scale_to_original(samples)[0, 0].tolist() == [10.0, 100.0]
    with pytest.raises(InvalidData, match="must end in the target's 2 dimensions"):
        vector.target_to_original(torch.ones(2, 3))


def test_classes_have_no_unit() -> None:
    with pytest.raises(InvalidData, match="has no original unit"):
        IMAGES.target_to_original(torch.ones(2))


def test_images_refuse_a_table_and_take_a_tensor() -> None:
    with pytest.raises(InvalidData, match="input = a table: must be images"):
        IMAGES.prepare({"a": np.zeros(2)})
    raw = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    assert torch.equal(IMAGES.prepare(torch.from_numpy(raw)), IMAGES.prepare(raw))
    with pytest.raises(InvalidData, match="input = list"):
        TABLE.prepare([1.0, 2.0])  # type: ignore[arg-type]


def test_classes_of_a_small_training_part_stay_complete() -> None:
    y = np.array([0, 1, 2, 2])
    fitted = fit_preparation(
        np.zeros((4, 2)),
        y,
        train=np.array([0, 1]),
        labelled=np.arange(3),
        task="classification",
        target="y",
    )
    assert fitted.label_names == ["0", "1", "2"]
    assert fitted.prepare(np.zeros((1, 2))).shape == (1, 2)


def damaged(change: str) -> Any:
    data = copy.deepcopy(TABLE.to_json())
    if change == "schema":
        data["schema"] = 99
    elif change == "inputs":
        del data["inputs"]
    elif change == "kind":
        data["inputs"]["kind"] = "sound"
    elif change == "scale":
        data["inputs"]["columns"][0]["scale"] = float("nan")
    elif change == "type":
        data["target"]["mean"] = ["a"]
    elif change == "list":
        return []
    return data


@pytest.mark.parametrize("change", ["schema", "inputs", "kind", "scale", "type", "list"])
def test_damaged_json_is_refused(change: str) -> None:
    with pytest.raises(InvalidData) as caught:
        Preparation.from_json(damaged(change))
    assert "\n" not in str(caught.value)
