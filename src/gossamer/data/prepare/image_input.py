"""Images as network input: any usual layout and dtype in, float32 [N, C, H, W] out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.errors import InvalidData

# Statistics are summed in float64 block by block: no float64 copy of a whole set is made.
_BLOCK = 2048
_CHANNELS = (1, 3)


@dataclass(frozen=True)
class ImageInput:
    """How raw pixels become network input: divided, then standardised per channel if asked.

    Attributes:
        shape: (C, H, W).
        divisor: Raw pixels lie in [0, divisor] and are divided by it: 255 for uint8, 16 for
            ``digits``; 1 for floating-point images, which may have any range.
        mean: Mean of each channel over the training part, after division; ``None`` for no
            standardisation.
        std: Standard deviation of each channel, 1 where it is constant.
    """

    shape: tuple[int, int, int]
    divisor: float
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    kind: Literal["image"] = "image"

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise InvalidData("image shape", list(self.shape), "must be [C, H, W]")
        if not (math.isfinite(self.divisor) and self.divisor > 0):
            raise InvalidData("image divisor", self.divisor, "must be finite and positive")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and (
                len(values) != self.shape[0] or not np.isfinite(values).all()
            ):
                raise InvalidData(
                    f"image {name}", list(values), "must be one finite value a channel"
                )
        if (self.mean is None) != (self.std is None) or (self.std and min(self.std) <= 0):
            raise InvalidData("image std", self.std, "must be positive, and come with a mean")

    @classmethod
    def fit(
        cls,
        x: NDArray[Any],
        rows: NDArray[np.int64],
        *,
        divisor: float | None = None,
        normalise: bool = False,
    ) -> ImageInput:
        """Fits to the training part.

        Args:
            x: All raw images: [N, H, W], [N, C, H, W] or [N, H, W, C] with C of 1 or 3.
            rows: Row numbers of the training part; nothing else enters mean and std.
            divisor: The largest raw value; inferred from the dtype if ``None``.
            normalise: Whether to standardise per channel.
        """
        if divisor is None:
            if x.dtype.kind != "f" and x.dtype != np.uint8:
                raise InvalidData(
                    "images",
                    f"dtype {x.dtype}",
                    "must be uint8 or floating point",
                    "convert with .astype('uint8') if the values are 0..255",
                )
            divisor = 255.0 if x.dtype == np.uint8 else 1.0
        images = _channels_first(x)
        _, channels, height, width = images.shape
        plain = cls((channels, height, width), divisor)
        plain._check_values(images)
        if not normalise:
            return plain
        mean, std = _channel_moments(images, rows)
        return cls(
            plain.shape, divisor, tuple((mean / divisor).tolist()), tuple((std / divisor).tolist())
        )

    def prepare(self, raw: NDArray[Any]) -> Tensor:
        """Turns raw images into network input.

        Args:
            raw: [N, H, W], [N, C, H, W], [N, H, W, C], or flat [N, C·H·W] in the order of C, H, W.

        Returns:
            float32 [N, C, H, W].
        """
        images = self._arranged(raw)
        self._check_values(images)
        # A fresh float32 copy: the caller's array is never written, and read-only arrays are fine.
        x = torch.from_numpy(np.array(images, dtype=np.float32, order="C"))
        if self.divisor != 1:
            x.div_(self.divisor)
        if self.mean is not None and self.std is not None:
            x.sub_(_per_channel(self.mean)).div_(_per_channel(self.std))
        return x

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one prepared example, (C, H, W)."""
        return self.shape

    def feature_name(self, index: tuple[int, ...]) -> str:
        """Names one value of an example, for messages."""
        return "pixel [" + ", ".join(map(str, index)) + "]"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ImageInput:
        """Rebuilds from the values that ``Preparation.to_json`` gives."""
        channels, height, width = (int(size) for size in data["shape"])
        mean, std = data["mean"], data["std"]
        return cls(
            (channels, height, width),
            float(data["divisor"]),
            None if mean is None else tuple(map(float, mean)),
            None if std is None else tuple(map(float, std)),
        )

    def _arranged(self, raw: NDArray[Any]) -> NDArray[Any]:
        channels, height, width = self.shape
        if len(raw) == 0:
            raise InvalidData("images", f"shape {raw.shape}", "hold no image")
        each = raw.shape[1:]
        if each == self.shape:
            return raw
        if each == (height, width, channels):
            return np.moveaxis(raw, -1, 1)
        if each == (height, width) and channels == 1:
            return raw[:, None]
        if each == (math.prod(self.shape),):
            return raw.reshape(-1, *self.shape)
        raise InvalidData(
            "images",
            f"shape {raw.shape}",
            f"must be [N, {channels}, {height}, {width}] as in training",
            "resize them, or use another model",
        )

    def _check_values(self, images: NDArray[Any]) -> None:
        kind = images.dtype.kind
        # A dtype of the other sort would be off by a factor of 255, silently.
        if (self.divisor == 255 and kind not in "iu") or (self.divisor == 1 and kind != "f"):
            wanted = "whole numbers 0..255" if self.divisor == 255 else "floating point"
            raise InvalidData(
                "images",
                f"dtype {images.dtype}",
                f"must be {wanted} as in training",
                "convert them",
            )
        if kind not in "iuf":
            raise InvalidData("images", f"dtype {images.dtype}", "must hold numbers")
        if self.divisor == 255 and images.dtype == np.uint8:
            return
        for start in range(0, len(images), _BLOCK):
            block = images[start : start + _BLOCK]
            good = np.isfinite(block)
            if self.divisor != 1:
                good &= (block >= 0) & (block <= self.divisor)
            elif kind == "f":
                good &= np.abs(block) <= np.finfo(np.float32).max
            if not good.all():
                place = tuple(int(i) for i in np.argwhere(~good)[0])
                limit = f" and lie in [0, {self.divisor:g}]" if self.divisor != 1 else ""
                raise InvalidData(
                    f"images, row {start + place[0]}, {self.feature_name(place[1:])}",
                    str(block[place]),
                    f"must be finite{limit}",
                    "correct or remove the image",
                )


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1)


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in _CHANNELS:
        return x
    if x.ndim == 4 and x.shape[3] in _CHANNELS:
        return np.moveaxis(x, -1, 1)
    raise InvalidData(
        "images",
        f"shape {x.shape}",
        "must be [N, H, W], [N, C, H, W] or [N, H, W, C] with 1 or 3 channels",
        "rearrange the axes",
    )


def _channel_moments(
    images: NDArray[Any], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    blocks = [rows[i : i + _BLOCK] for i in range(0, len(rows), _BLOCK)]
    pixels = len(rows) * images.shape[2] * images.shape[3]
    with np.errstate(over="ignore", invalid="ignore"):
        total = sum(images[b].sum(axis=(0, 2, 3), dtype=np.float64) for b in blocks)
        mean = np.asarray(total) / pixels
        centre = mean[None, :, None, None]
        squares = sum(np.square(images[b] - centre).sum(axis=(0, 2, 3)) for b in blocks)
        std = np.sqrt(np.asarray(squares) / pixels)
    return mean, np.where(std > 10 * np.finfo(np.float64).eps * np.abs(mean), std, 1.0)
