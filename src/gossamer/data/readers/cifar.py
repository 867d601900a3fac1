"""CIFAR-10 and CIFAR-100 in all published forms: binary or python, archive or unpacked folder."""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.data.readers.unpickle import read_batch
from gossamer.errors import InvalidData

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True)
class _Layout:
    """Which files hold what; a binary row is its labels (the last one counts), then the pixels."""

    train: tuple[str, ...]
    test: str
    label_bytes: int
    label_key: str
    num_classes: int
    names_text: str
    names_pickle: str
    names_key: str


_LAYOUTS = {
    "cifar10": _Layout(
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        *("test_batch", 1, "labels", 10, "batches.meta.txt", "batches.meta", "label_names"),
    ),
    "cifar100": _Layout(
        ("train",),
        *("test", 2, "fine_labels", 100, "fine_label_names.txt", "meta", "fine_label_names"),
    ),
}


def read_cifar(name: str, place: Path) -> RawData:
    """Reads a whole set.

    Args:
        name: ``"cifar10"`` or ``"cifar100"`` (fine labels).
        place: The ``.tar.gz`` archive, which is read in place, or the folder unpacked from it.
    """
    layout = _LAYOUTS[name]
    files = _contents(place, layout)
    parts = [_read_part(place, files, file, layout) for file in (*layout.train, layout.test)]
    x = np.concatenate([images for images, _ in parts])
    y = np.concatenate([labels for _, labels in parts])
    num_train = len(y) - len(parts[-1][1])
    return RawData(
        name,
        x.reshape(-1, 3, _SIDE, _SIDE),
        y,
        np.arange(num_train, dtype=np.int64),
        np.arange(num_train, len(y), dtype=np.int64),
        task="classification",
        target="label",
        label_names=_label_names(files, layout),
        normalise=True,
        augment="crop_flip",
        y_parts=(("training labels", num_train), ("test labels", len(y) - num_train)),
    )


def _contents(place: Path, layout: _Layout) -> dict[str, bytes]:
    """The bytes of every file of interest, by file name."""
    stems = (*layout.train, layout.test)
    wanted = {*stems, *(f"{stem}.bin" for stem in stems), layout.names_text, layout.names_pickle}
    if place.is_dir():
        return {path.name: path.read_bytes() for path in place.iterdir() if path.name in wanted}
    try:
        files = {}
        # Read member by member and never unpacked, so no path in the archive can point anywhere.
        with tarfile.open(place) as archive:
            for member in archive:
                base = Path(member.name).name
                if member.isfile() and base in wanted:
                    opened = archive.extractfile(member)
                    files[base] = opened.read() if opened is not None else b""
        return files
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InvalidData(
            str(place), str(error), "is not a readable .tar.gz archive", "get it again"
        ) from error


def _read_part(
    place: Path, files: dict[str, bytes], stem: str, layout: _Layout
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images [N, 3072] and labels [N] of one file."""
    if f"{stem}.bin" in files:
        return _from_binary(files[f"{stem}.bin"], f"{place}: {stem}.bin", layout)
    if stem in files:
        return _from_batch(files[stem], f"{place}: {stem}", layout)
    raise InvalidData(f"{place}: {stem}", None, "is missing (also with .bin)", "get the set again")


def _from_binary(
    content: bytes, where: str, layout: _Layout
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    row = layout.label_bytes + _PIXELS
    if not content or len(content) % row:
        raise InvalidData(
            where,
            f"{len(content)} bytes",
            f"is truncated or foreign: it must be rows of {row} bytes",
            "get it again",
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, row)
    return rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1]


def _from_batch(
    content: bytes, where: str, layout: _Layout
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    batch = read_batch(content, where)
    x, y = batch.get("data"), batch.get(layout.label_key)
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != _PIXELS or not len(x):
        raise InvalidData(where, None, f"must hold 'data', bytes [N, {_PIXELS}]", "get it again")
    if not isinstance(y, list) or len(y) != len(x) or any(type(label) is not int for label in y):
        raise InvalidData(
            where, None, f"must hold {layout.label_key!r}, {len(x)} whole numbers", "get it again"
        )
    return x, np.array(y, dtype=np.int64)


def _label_names(files: dict[str, bytes], layout: _Layout) -> tuple[str, ...]:
    """The names the set brings along; CIFAR-10's are known, CIFAR-100's are else the numbers."""
    names: object = None
    if layout.names_text in files:
        names = files[layout.names_text].decode("utf-8", errors="replace").split()
    elif layout.names_pickle in files:
        names = read_batch(files[layout.names_pickle], layout.names_pickle).get(layout.names_key)
    if isinstance(names, list) and len(names) == layout.num_classes:
        return tuple(map(str, names))
    if layout.num_classes == len(_CIFAR10_NAMES):
        return _CIFAR10_NAMES
    return tuple(str(index) for index in range(layout.num_classes))
