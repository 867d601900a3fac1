"""The idx format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.errors import InvalidData

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Reads one idx file of unsigned bytes.

    The header is two zero bytes, the element type, the number of dimensions, and each dimension as
    a big-endian 32-bit integer; the elements follow, and nothing after them.

    Returns:
        uint8 array of the shape in the header.
    """
    content = path.read_bytes()
    if content[:2] == _GZIP_MAGIC:
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidData(
                str(path), str(error), "is a truncated or damaged gzip file", "get it again"
            ) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise InvalidData(
            str(path), content[:4].hex(" "), "is not an idx file of unsigned bytes", "get it again"
        )
    num_dims = content[3]
    start = 4 + 4 * num_dims
    if num_dims == 0 or len(content) < start:
        raise InvalidData(str(path), f"{len(content)} bytes", "is truncated in its header")
    shape = struct.unpack(f">{num_dims}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected:
        fault = "is truncated" if len(content) < expected else "has bytes left over"
        raise InvalidData(
            str(path),
            f"{len(content)} bytes",
            f"{fault}: its header {list(shape)} says {expected} bytes",
            "get it again",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_idx_folder(name: str, folder: Path, label_names: tuple[str, ...]) -> RawData:
    """Reads the four files of a set in the manner of MNIST.

    Args:
        name: The set's name.
        folder: Holds ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the same of
            ``t10k``, each plain or with ``.gz``.
        label_names: Names of the classes 0 .. C-1.
    """
    images: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    for part in ("train", "t10k"):
        image_path = idx_file(folder, f"{part}-images-idx3-ubyte")
        label_path = idx_file(folder, f"{part}-labels-idx1-ubyte")
        x, y = read_idx(image_path), read_idx(label_path)
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise InvalidData(
                str(image_path),
                f"shape {list(x.shape)}, labels {list(y.shape)}",
                "must hold images [N, H, W] and as many labels [N]",
                "get both files again",
            )
        images.append(x)
        labels.append(y)
    if images[0].shape[1:] != images[1].shape[1:]:
        raise InvalidData(
            str(folder),
            f"{images[0].shape[1:]} and {images[1].shape[1:]}",
            "training and test images must have one size",
        )
    num_train, num_test = len(labels[0]), len(labels[1])
    return RawData(
        name,
        np.concatenate(images),
        np.concatenate(labels),
        np.arange(num_train, dtype=np.int64),
        np.arange(num_train, num_train + num_test, dtype=np.int64),
        task="classification",
        target="label",
        label_names=label_names,
        y_parts=(("training labels", num_train), ("test labels", num_test)),
    )


def idx_file(folder: Path, name: str) -> Path:
    """The file, plain or gzipped."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InvalidData(str(folder / name), None, "is missing (also with .gz)", "get the set again")
