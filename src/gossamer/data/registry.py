"""The table of sets known by name: what each is, where its files lie, who reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.data.prepare.target import Task
from gossamer.data.readers.arrays import read_array_inputs, read_arrays
from gossamer.data.readers.cifar import read_cifar
from gossamer.data.readers.embedded import read_breast_cancer, read_diabetes, read_digits
from gossamer.data.readers.idx import read_idx_folder
from gossamer.data.readers.places import find
from gossamer.data.readers.synthetic import EXAMPLES, make
from gossamer.data.split import refuse_split
from gossamer.errors import InvalidData, InvalidValue, UnknownName

DataDir = str | os.PathLike[str] | None
Origin = Literal["embedded", "download", "file"]


@dataclass(frozen=True)
class Description:
    """One row of the table of sets.

    Attributes:
        name: The name ``load`` takes.
        task: ``"classification"`` or ``"regression"``.
        size: Examples and their shape, in words.
        text: What it is.
        origin: ``"embedded"`` (nothing to get), ``"download"`` (``gossamer data get``) or
            ``"file"`` (put the file into the data folder).
        trainable: Whether there is a training part; otherwise it serves as out-of-distribution
            inputs only.
    """

    name: str
    task: Task
    size: str
    text: str
    origin: Origin
    trainable: bool = True


@dataclass(frozen=True)
class Source:
    """A set and its readers.

    Attributes:
        about: The description.
        read: Reads all of it, given the data folder and the number of the split.
        read_test: Reads the raw test inputs, to serve as out-of-distribution inputs.
    """

    about: Description
    read: Callable[[DataDir, int], RawData]
    read_test: Callable[[DataDir], NDArray[Any]]


def _get(name: str) -> str:
    return f"run: gossamer data get {name} --data-dir DIR"


def _test_inputs(read: Callable[[DataDir, int], RawData], data_dir: DataDir) -> NDArray[Any]:
    raw = read(data_dir, 0)
    if raw.test is None:
        raise InvalidData(f"data set {raw.name!r}", None, "has no test part", "use another set")
    if not isinstance(raw.x, np.ndarray):
        return np.stack([values[raw.test] for values in raw.x.values()], axis=1)
    return np.asarray(raw.x[raw.test])


def make_source(about: Description, read: Callable[[DataDir, int], RawData]) -> Source:
    """A source whose out-of-distribution inputs are the test part of what it reads."""
    return Source(about, read, partial(_test_inputs, read))


def _embedded(reader: Callable[[], RawData], _: DataDir, split: int) -> RawData:
    raw = reader()
    refuse_split(split, raw.name)
    return raw


def _simulated(name: str, _: DataDir, split: int) -> RawData:
    """Split k is the draw with seed k: every one is a data set of its own."""
    if split < 0:
        raise InvalidValue("split", split, "must be 0 or more")
    return make(name, seed=split).raw()


def _has_idx(folder: Path) -> bool:
    first = "train-images-idx3-ubyte"
    return (folder / first).is_file() or (folder / f"{first}.gz").is_file()


def _idx(
    name: str, places: tuple[str, ...], labels: tuple[str, ...], data_dir: DataDir, split: int
) -> RawData:
    refuse_split(split, name)
    return read_idx_folder(name, find(name, data_dir, places, _get(name), _has_idx), labels)


def _cifar(name: str, forms: tuple[str, ...], data_dir: DataDir, split: int) -> RawData:
    refuse_split(split, name)
    return read_cifar(name, find(name, data_dir, _in_own_folder(name, forms), _get(name)))


def _in_own_folder(name: str, forms: tuple[str, ...]) -> list[str]:
    return [f"{prefix}{form}" for form in forms for prefix in (f"{name}/", "")]


def _uci(name: str, data_dir: DataDir, split: int) -> RawData:
    step = f"put {name}.npz (X, y, train_idx, test_idx) into DIR/uci"
    path = find(name, data_dir, (f"uci/{name}.npz", f"{name}.npz"), step)
    return replace(read_arrays(path, task="regression", split=split), name=name)


def _no_training(name: str, file: str, _: DataDir, split: int) -> RawData:
    raise InvalidData(
        f"data set {name!r}",
        None,
        f"has no training part ({file} holds test images only)",
        "use it as out-of-distribution inputs",
    )


def _test_file(name: str, file: str, data_dir: DataDir) -> NDArray[Any]:
    step = f"put {file} (x_test, y_test) into DIR"
    return read_array_inputs(find(name, data_dir, (file,), step))


def _test_only(name: str, size: str, text: str, file: str) -> Source:
    about = Description(name, "classification", size, text, "file", trainable=False)
    return Source(about, partial(_no_training, name, file), partial(_test_file, name, file))


def _cifar100_test(data_dir: DataDir) -> NDArray[Any]:
    """Test images of the whole set, or those of the file that holds nothing else."""
    places = [*_in_own_folder("cifar100", _CIFAR100), "cifar100_test_5k.npz"]
    place = find("cifar100", data_dir, places, _get("cifar100"))
    if place.suffix == ".npz":
        return read_array_inputs(place)
    raw = read_cifar("cifar100", place)
    return _test_inputs(lambda _, __: raw, data_dir)


# Binary before python: it needs no unpickling. Folders before archives: they are faster to read.
_CIFAR10 = (
    *("cifar-10-batches-bin", "cifar-10-batches-py"),
    *("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
)
_CIFAR100 = (
    *("cifar-100-binary", "cifar-100-python"),
    *("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
)
_MNIST_PLACES = ("mnist", "MNIST/raw", "mnist/raw")
_FASHION_PLACES = ("fashion-mnist", "FashionMNIST/raw", "fashion_mnist")
_FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_UCI = {
    "boston": ("506 × 13", "housing values in suburbs of Boston"),
    "concrete": ("1,030 × 8", "compressive strength of concrete"),
    "energy": ("768 × 8", "heating load of buildings"),
    "protein": ("45,730 × 9", "deviation of predicted protein structures"),
    "wine_red": ("1,599 × 11", "quality of red wine"),
    "yacht": ("308 × 6", "resistance of sailing yachts"),
}

_ROWS = (
    make_source(
        Description(
            "digits", "classification", "1,797 × 1×8×8", "handwritten digits, small", "embedded"
        ),
        partial(_embedded, read_digits),
    ),
    make_source(
        Description(
            "breast_cancer", "classification", "569 × 30", "malignant or benign tumours", "embedded"
        ),
        partial(_embedded, read_breast_cancer),
    ),
    make_source(
        Description("diabetes", "regression", "442 × 10", "progression of diabetes", "embedded"),
        partial(_embedded, read_diabetes),
    ),
    *(
        make_source(
            Description(
                *(name, example.task, f"11,000 × {example.num_features:,}"),
                f"simulated: {len(example.true_variables)} variables matter",
                "embedded",
            ),
            partial(_simulated, name),
        )
        for name, example in EXAMPLES.items()
    ),
    make_source(
        Description(
            "mnist", "classification", "70,000 × 1×28×28", "handwritten digits", "download"
        ),
        partial(_idx, "mnist", _MNIST_PLACES, tuple("0123456789")),
    ),
    make_source(
        Description(
            "fashion_mnist", "classification", "70,000 × 1×28×28", "pieces of clothing", "download"
        ),
        partial(_idx, "fashion_mnist", _FASHION_PLACES, _FASHION_NAMES),
    ),
    make_source(
        Description(
            "cifar10", "classification", "60,000 × 3×32×32", "photographs, 10 classes", "download"
        ),
        partial(_cifar, "cifar10", _CIFAR10),
    ),
    Source(
        Description(
            "cifar100", "classification", "60,000 × 3×32×32", "photographs, 100 classes", "download"
        ),
        partial(_cifar, "cifar100", _CIFAR100),
        _cifar100_test,
    ),
    _test_only("notmnist", "10,000 × 1×28×28", "letters A to J, test only", "notmnist_test.npz"),
    _test_only(
        *("svhn", "5,000 × 3×32×32", "SVHN (recropped): house numbers, test only"),
        "svhn_recropped_test_5k.npz",
    ),
    *(
        make_source(Description(name, "regression", size, text, "file"), partial(_uci, name))
        for name, (size, text) in _UCI.items()
    ),
)

SOURCES: dict[str, Source] = {source.about.name: source for source in _ROWS}


def names() -> list[str]:
    """Names of all known sets."""
    return list(SOURCES)


def describe(name: str) -> Description:
    """What is known about one set."""
    if name not in SOURCES:
        raise UnknownName("data set", name, names())
    return SOURCES[name].about
