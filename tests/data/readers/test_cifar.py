from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.data import load, load_ood
from gossamer.errors import InvalidData

RNG = np.random.default_rng(4)
TRAIN10 = [f"data_batch_{i}" for i in range(1, 6)]


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (count, 3072), dtype=np.uint8), np.arange(count) % 10


def binary10() -> dict[str, bytes]:
    files = {}
    for name in [*TRAIN10, "test_batch"]:
        x, y = rows(12)
        files[f"{name}.bin"] = np.concatenate([y[:, None].astype(np.uint8), x], axis=1).tobytes()
    return files


def python10(of: dict[str, bytes]) -> dict[str, bytes]:
    """The same content as python batches, keys as bytes like the published ones."""
    files = {}
    for name, content in of.items():
        array = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        batch = {
            b"data": array[:, 1:].copy(),
            b"labels": array[:, 0].tolist(),
            b"batch_label": b"x",
        }
        files[name.removesuffix(".bin")] = pickle.dumps(batch, protocol=4)
    files["batches.meta"] = pickle.dumps({b"label_names": [b"a%d" % i for i in range(10)]})
    return files


def unpacked(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def archived(path: Path, folder: str, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_all_four_forms_give_the_same(tmp_path: Path) -> None:
    binary = binary10()
    python = python10(binary)
    unpacked(tmp_path / "1/cifar10/cifar-10-batches-bin", binary)
    unpacked(tmp_path / "2/cifar-10-batches-py", python)
    archived(tmp_path / "3/cifar10/cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary)
    archived(tmp_path / "4/cifar-10-python.tar.gz", "cifar-10-batches-py", python)
    sets = [load("cifar10", data_dir=tmp_path / str(i)) for i in range(1, 5)]
    first = sets[0]
    assert (first.num_train, len(first.x_val), len(first.x_test)) == (54, 6, 12)
    assert (first.input_shape, first.augment) == ((3, 32, 32), "crop_flip")
    assert first.class_names is not None
    assert first.class_names[0] == "airplane"
    assert sets[1].class_names == [f"a{i}" for i in range(10)]
    for other in sets[1:]:
        assert other.x_train.tolist() == first.x_train.tolist()
        assert other.y_test.tolist() == first.y_test.tolist()


def test_pixels_and_labels_are_the_file_s(tmp_path: Path) -> None:
    files = binary10()
    unpacked(tmp_path / "cifar10/cifar-10-batches-bin", files)
    data = load("cifar10", data_dir=tmp_path)
    raw = np.frombuffer(files["test_batch.bin"], dtype=np.uint8).reshape(12, 3073)
    spec = data.preparation.to_json()["inputs"]
    mean, std = (np.reshape(spec[key], (3, 1, 1)) for key in ("mean", "std"))
    wanted = (raw[:, 1:].reshape(12, 3, 32, 32) / 255.0 - mean) / std
    # float32 rounding of standardised pixels
    np.testing.assert_allclose(data.x_test.numpy(), wanted, rtol=0, atol=1e-6)
    assert data.y_test.tolist() == raw[:, 0].tolist()


def hundred(names: bool) -> dict[str, bytes]:
    files = {}
    for name, count in (("train.bin", 200), ("test.bin", 100)):
        coarse, fine = np.full((count, 1), 7), (np.arange(count) % 100)[:, None]
        files[name] = (
            np.concatenate([coarse, fine, rows(count)[0]], axis=1).astype(np.uint8).tobytes()
        )
    if names:
        files["fine_label_names.txt"] = (
            "\n".join(f"name_{i}" for i in range(100)).encode() + b"\n\n"
        )
    return files


@pytest.mark.parametrize("names", [True, False])
def test_fine_labels_of_cifar100(tmp_path: Path, names: bool) -> None:
    archived(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", hundred(names))
    data = load("cifar100", data_dir=tmp_path)
    assert data.num_classes == 100
    assert data.y_test.tolist() == list(range(100))
    assert data.preparation.label(42) == ("name_42" if names else "42")


def test_cifar100_python_folder(tmp_path: Path) -> None:
    files = {}
    for name, count in (("train", 200), ("test", 100)):
        batch = {b"data": rows(count)[0], b"fine_labels": [i % 100 for i in range(count)]}
        files[name] = pickle.dumps(batch, protocol=4)
    unpacked(tmp_path / "cifar100/cifar-100-python", files)
    assert load("cifar100", data_dir=tmp_path).y_test.tolist() == list(range(100))


def test_cifar100_as_out_of_distribution_inputs(tmp_path: Path) -> None:
    unpacked(tmp_path / "a/cifar10/cifar-10-batches-bin", binary10())
    run = load("cifar10", data_dir=tmp_path / "a").preparation
    x = rows(9)[0].reshape(9, 3, 32, 32)
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b/cifar100_test_5k.npz", x_test=np.moveaxis(x, 1, -1), y_test=np.zeros(9))
    assert np.array_equal(load_ood("cifar100", tmp_path / "b", run).numpy(), run.prepare(x).numpy())
    unpacked(tmp_path / "b/cifar-100-binary", hundred(names=False))
    assert len(load_ood("cifar100", tmp_path / "b", run)) == 100


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_malicious_batch_runs_nothing(tmp_path: Path) -> None:
    files = python10(binary10())
    files["data_batch_3"] = pickle.dumps({b"data": Trap(tmp_path / "ran"), b"labels": []})
    unpacked(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(InvalidData, match=r"data_batch_3 = it asks for .*nothing in it was run"):
        load("cifar10", data_dir=tmp_path)
    assert not (tmp_path / "ran").exists()
    pickle.loads(files["data_batch_3"])
    assert (tmp_path / "ran").exists(), "the trap works where nothing holds it back"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("data_batch_2", pickle.dumps({b"labels": [1]}), r"must hold 'data', bytes \[N, 3072\]"),
        ("data_batch_2", pickle.dumps({b"data": rows(2)[0], b"labels": [1]}, 4), "2 whole numbers"),
        (
            "data_batch_2",
            pickle.dumps({b"data": rows(2)[0], b"labels": [1, "a"]}, 4),
            "must hold 'labels'",
        ),
        (
            "data_batch_2",
            pickle.dumps({b"data": rows(2)[0], b"labels": [1, 11]}, 4),
            "'training labels', row 13 = 11: label is out of range",
        ),
        ("data_batch_2", b"\x80\x04", "is damaged"),
    ],
    ids=["no data", "few labels", "text label", "large label", "truncated"],
)
def test_faults_of_python_batches(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    unpacked(tmp_path / "cifar-10-batches-py", python10(binary10()) | {name: content})
    with pytest.raises(InvalidData, match=said):
        load("cifar10", data_dir=tmp_path)


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    files = binary10()
    short = files | {"data_batch_1.bin": files["data_batch_1.bin"][:-5]}
    unpacked(tmp_path / "a/cifar10/cifar-10-batches-bin", short)
    with pytest.raises(InvalidData, match=r"data_batch_1.bin = 36871 bytes: is truncated"):
        load("cifar10", data_dir=tmp_path / "a")
    del files["test_batch.bin"]
    unpacked(tmp_path / "b/cifar10/cifar-10-batches-bin", files)
    with pytest.raises(InvalidData, match="test_batch: is missing"):
        load("cifar10", data_dir=tmp_path / "b")


def test_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    archived(path, "cifar-10-batches-bin", binary10())
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(InvalidData, match=r"not a readable .tar.gz"):
        load("cifar10", data_dir=tmp_path)
    path.write_bytes(b"no archive")
    with pytest.raises(InvalidData, match=r"not a readable .tar.gz"):
        load("cifar10", data_dir=tmp_path)
