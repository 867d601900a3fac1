from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.data import load, load_inputs, load_ood
from gossamer.data.readers.arrays import read_npz
from gossamer.errors import InvalidData, InvalidValue

RNG = np.random.default_rng(2)


def table(**changes: Any) -> dict[str, np.ndarray]:
    arrays = {
        "x_train": RNG.normal(size=(40, 3)),
        "y_train": np.arange(40) % 4,
        "x_test": RNG.normal(size=(12, 3)),
        "y_test": np.arange(12) % 4,
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def save(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "a.npz"
    np.savez(path, **arrays)
    return path


def images(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def test_table_of_classes(tmp_path: Path) -> None:
    data = load(save(tmp_path, **table()))
    assert (data.task, data.num_classes, data.input_shape) == ("classification", 4, (3,))
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (36, 4, 12)
    assert data.preparation.to_json()["inputs"]["columns"][2]["name"] == "x2"


def test_own_validation_part(tmp_path: Path) -> None:
    data = load(save(tmp_path, **table(x_val=np.zeros((5, 3)), y_val=np.arange(5) % 4)))
    assert (data.num_train, len(data.x_val)) == (40, 5)
    assert data.y_val.tolist() == [0, 1, 2, 3, 0]


def test_test_part_never_enters_the_scales(tmp_path: Path) -> None:
    arrays = table(y_train=RNG.normal(size=40), y_test=RNG.normal(size=12))
    data = load(save(tmp_path, **arrays))
    arrays |= {"x_test": arrays["x_test"] * 1e4, "y_test": arrays["y_test"] - 1e4}
    other = load(save(tmp_path, **arrays))
    assert other.preparation == data.preparation
    assert torch.equal(other.x_train, data.x_train)
    assert not torch.equal(other.y_test, data.y_test)


def test_images_of_uint8_become_channels_first(tmp_path: Path) -> None:
    arrays = table(x_train=images(40, 6, 5, 3), x_test=images(12, 6, 5, 3), y_train=np.arange(40))
    data = load(save(tmp_path, **arrays))
    assert (data.task, data.num_classes, data.input_shape) == ("classification", 40, (3, 6, 5))
    raw = np.moveaxis(arrays["x_test"], -1, 1) / 255.0
    spec = data.preparation.to_json()["inputs"]
    wanted = (raw - np.reshape(spec["mean"], (3, 1, 1))) / np.reshape(spec["std"], (3, 1, 1))
    # float32 rounding of standardised pixels
    np.testing.assert_allclose(data.x_test.numpy(), wanted, rtol=0, atol=1e-6)


def test_grey_images_get_a_channel(tmp_path: Path) -> None:
    data = load(save(tmp_path, **table(x_train=images(40, 6, 5), x_test=images(12, 6, 5))))
    assert data.input_shape == (1, 6, 5)


def test_string_and_bool_labels_and_bool_inputs(tmp_path: Path) -> None:
    names = np.array(["no", "yes"])
    arrays = table(y_train=names[np.arange(40) % 2], y_test=names[np.arange(12) % 2])
    assert load(save(tmp_path, **arrays)).class_names == ["no", "yes"]
    arrays = table(x_train=RNG.random((40, 3)) < 0.5, x_test=RNG.random((12, 3)) < 0.5)
    data = load(save(tmp_path, **arrays))
    assert data.input_shape == (3,)
    with_bools = data.preparation.prepare(arrays["x_test"])
    assert torch.equal(with_bools, data.preparation.prepare(arrays["x_test"].astype(int)))


def test_vector_target(tmp_path: Path) -> None:
    arrays = table(y_train=RNG.normal(size=(40, 2)), y_test=RNG.normal(size=(12, 2)))
    data = load(save(tmp_path, **arrays))
    assert (data.task, data.output_size, data.y_train.shape) == ("regression", 2, (36, 2))


def spoiled(shape: tuple[int, ...], place: tuple[int, ...], value: float) -> np.ndarray:
    x = np.zeros(shape)
    x[place] = value
    return x


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": None}, "y_train missing"),
        ({"x_train": None, "y_train": None}, "test part only: use it as out-of-distribution"),
        ({"x_val": np.zeros((2, 3))}, "y_val: is missing though its partner is there"),
        ({"x_test": np.zeros((12, 4))}, r"x_test = shape \(12, 4\): must match x_train"),
        ({"y_test": np.zeros(11, dtype=int)}, "y_test = shape .*as many rows as x_test: 12"),
        ({"y_test": np.full(12, 4)}, "target 'y_test', row 0 = 4: label is out of range"),
        ({"y_test": np.full(12, -1)}, "target 'y_test', row 0 = -1: label is out of range"),
        ({"y_train": np.full(40, -1) * np.arange(40) % 4 - 1}, "a label must be 0 or more"),
        ({"y_test": np.zeros(12)}, "y_test = float64 .*must match y_train"),
        ({"y_test": np.zeros((12, 1), dtype=int)}, "y_test = int64 .*must match y_train"),
        ({"x_train": spoiled((40, 3), (5, 2), np.inf)}, "column 'x_train: x2', row 5 = inf: must"),
        ({"x_test": spoiled((12, 3), (4, 0), np.inf)}, "column 'x_test: x0', row 4 = inf"),
        ({"x_train": np.zeros(40)}, r"x_train = shape \(40,\): must be"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0)}, "at least one row"),
        ({"x_train": np.zeros((40, 3), dtype=complex)}, "x_train = dtype complex128"),
        (
            {"x_train": images(40, 4, 4), "x_test": np.zeros((12, 4, 4))},
            "dtype float64: must match",
        ),
        (
            {"x_train": spoiled((40, 4, 4), (1, 2, 3), np.nan), "x_test": np.zeros((12, 4, 4))},
            r"x_train, row 1, pixel \[2, 3\] = nan",
        ),
    ],
)
def test_faults_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        load(save(tmp_path, **table(**changes)))


def test_text_columns_in_an_array(tmp_path: Path) -> None:
    x = np.array([["1.5", "red"], ["2.5", "blue"]])[np.arange(40) % 2]
    data = load(save(tmp_path, **table(x_train=x, x_test=x[:12])))
    assert data.preparation.to_json()["inputs"]["columns"][1]["categories"] == ["blue", "red"]


def test_objects_are_refused_so_that_nothing_runs(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path(tmp_path / "ran").touch, ()

    path = tmp_path / "trap.npz"
    np.savez(path, **table(x_test=np.array([Trap()], dtype=object)))
    with pytest.raises(InvalidData, match=r"not a readable .npz file of plain arrays"):
        load(path)
    assert not (tmp_path / "ran").exists()


def test_damaged_files(tmp_path: Path) -> None:
    path = save(tmp_path, **table())
    whole = path.read_bytes()
    for content in (b"", b"not a zip", whole[:200], whole[:300] + b"x" * 40 + whole[340:]):
        path.write_bytes(content)
        with pytest.raises(InvalidData, match=r"a.npz"):
            load(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(path)
    with pytest.raises(InvalidData, match="holds one array"):
        read_npz(path)
    with pytest.raises(InvalidData, match="does not exist"):
        load(tmp_path / "none.npz")


def uci(**changes: Any) -> dict[str, np.ndarray]:
    order = np.stack([np.random.default_rng(s).permutation(30) for s in range(4)]).astype(np.int32)
    arrays = {
        "X": RNG.normal(size=(30, 2)),
        "y": np.arange(30.0),
        "train_idx": order[:, :24],
        "test_idx": order[:, 24:],
    }
    return arrays | changes


def test_uci_splits(tmp_path: Path) -> None:
    arrays = uci()
    path = save(tmp_path, **arrays)
    for split in (0, 3):
        data = load(path, split=split)
        original = data.preparation.target_to_original(data.y_test)
        # float32 rounding of values below 30
        np.testing.assert_allclose(original.numpy(), arrays["test_idx"][split], atol=1e-5)
        assert data.notes[0] == f"split {split} of 4"
    with pytest.raises(InvalidValue, match=r"split = 4: must lie in \[0, 4\)"):
        load(path, split=4)
    with pytest.raises(InvalidValue, match=r"split = 1: a.npz has one split only"):
        load(save(tmp_path, **table()), split=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_idx": np.zeros((4, 2), dtype=int)}, "row 0: is in both"),
        ({"test_idx": np.full((4, 2), 30)}, r"test_idx = 30\.\.30: must hold row numbers"),
        ({"test_idx": np.zeros((4, 2))}, "test_idx = float64"),
        ({"test_idx": np.zeros((3, 2), dtype=int)}, "as many splits"),
        ({"X": spoiled((30, 2), (3, 1), -np.inf)}, "column 'X: x1', row 3 = -inf: must be"),
        ({"y": np.zeros(29)}, "y = shape .*as many rows as X: 30"),
    ],
)
def test_uci_faults(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    changes.setdefault("train_idx", np.arange(24).reshape(1, -1).repeat(4, axis=0))
    with pytest.raises(InvalidData, match=said):
        load(save(tmp_path, **uci(**changes)))


def test_inputs_alone(tmp_path: Path) -> None:
    x = RNG.normal(size=(4, 2))
    for arrays in ({"x": x, "other": x + 1}, {"x_test": x, "x_train": x + 1}, {"anything": x}):
        assert np.array_equal(load_inputs(save(tmp_path, **arrays)), x)  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match="must hold inputs as x_test, x or X"):
        load_inputs(save(tmp_path, a=x, b=x))


def test_out_of_distribution_file(tmp_path: Path) -> None:
    run = load(save(tmp_path, **table(x_train=images(40, 6, 5), x_test=images(12, 6, 5))))
    raw = images(7, 6, 5)
    path = tmp_path / "ood.npz"
    np.savez(path, x_test=raw, y_test=np.zeros(7))
    assert torch.equal(load_ood(path, None, run.preparation), run.preparation.prepare(raw))
    np.savez(path, x_test=raw.reshape(7, 30))
    assert load_ood(path, None, run.preparation).shape == (7, 1, 6, 5)
    np.savez(path, x_test=images(7, 5, 5))
    with pytest.raises(InvalidData, match=r"images = shape \(7, 5, 5\)"):
        load_ood(path, None, run.preparation)
