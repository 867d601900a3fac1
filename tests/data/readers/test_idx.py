from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from gossamer.data import load, load_ood
from gossamer.data.readers.idx import read_idx
from gossamer.errors import InvalidData

RNG = np.random.default_rng(3)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_set(folder: Path, *, packed: bool = False, side: int = 6) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", 50), ("t10k", 20)):
        arrays[f"{part}-images-idx3-ubyte"] = RNG.integers(
            0, 256, (count, side, side), dtype=np.uint8
        )
        arrays[f"{part}-labels-idx1-ubyte"] = (np.arange(count) % 10).astype(np.uint8)
    for name, array in arrays.items():
        content = idx(array)
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return arrays


@pytest.mark.parametrize(
    ("name", "place", "packed"),
    [
        ("mnist", "mnist", False),
        ("mnist", "MNIST/raw", True),
        ("fashion_mnist", "fashion-mnist", True),
        ("fashion_mnist", "FashionMNIST/raw", False),
    ],
)
def test_layouts(tmp_path: Path, name: str, place: str, packed: bool) -> None:
    arrays = write_set(tmp_path / place, packed=packed)
    data = load(name, data_dir=tmp_path)
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (45, 5, 20)
    assert data.input_shape == (1, 6, 6)
    assert data.class_names is not None
    assert data.class_names[1] == ("1" if name == "mnist" else "Trouser")
    raw = arrays["t10k-images-idx3-ubyte"]
    assert np.array_equal(data.x_test[:, 0].numpy(), raw.astype(np.float32) / np.float32(255))
    assert data.y_test.tolist() == [i % 10 for i in range(20)]


def test_one_set_is_out_of_distribution_for_the_other(tmp_path: Path) -> None:
    write_set(tmp_path / "mnist")
    fashion = write_set(tmp_path / "fashion-mnist")
    run = load("mnist", data_dir=tmp_path).preparation
    x = load_ood("fashion_mnist", tmp_path, run)
    assert x.shape == (20, 1, 6, 6)
    assert np.array_equal(x.numpy(), run.prepare(fashion["t10k-images-idx3-ubyte"]).numpy())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01" + b"\0" * 8, "not an idx file of unsigned bytes"),
        (b"\0\0\x08\x03\0\0", "truncated in its header"),
        (b"\0\0\x08\0", "truncated in its header"),
        (idx(np.zeros((2, 3), dtype=np.uint8))[:-1], r"is truncated: its header \[2, 3\] says 18"),
        (idx(np.zeros((2, 3), dtype=np.uint8)) + b"x", "has bytes left over"),
        (gzip.compress(idx(np.zeros(100, dtype=np.uint8)))[:-12], "damaged gzip"),
        (b"\x1f\x8b" + b"x" * 20, "damaged gzip"),
    ],
    ids=["empty", "type", "header", "no axis", "short", "long", "short gzip", "no gzip"],
)
def test_damaged_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=said):
        read_idx(path)


def test_faults_of_a_set(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    write_set(folder)
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(49, dtype=np.uint8)))
    with pytest.raises(InvalidData, match=r"shape \[50, 6, 6\], labels \[49\]"):
        load("mnist", data_dir=tmp_path)
    labels.write_bytes(idx(np.full(50, 10, dtype=np.uint8)))
    with pytest.raises(InvalidData, match="'training labels', row 0 = 10: label is out of range"):
        load("mnist", data_dir=tmp_path)
    labels.unlink()
    with pytest.raises(InvalidData, match="train-labels-idx1-ubyte: is missing"):
        load("mnist", data_dir=tmp_path)
    write_set(folder)
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((20, 5, 5), dtype=np.uint8)))
    with pytest.raises(InvalidData, match="must have one size"):
        load("mnist", data_dir=tmp_path)
