"""Corruptions of prepared inputs in five severities: how a model fares where the world has moved.

They are for the test alone; training never sees them. Nothing is clipped and nothing is drawn but
``noise``, and its draws depend on seed and row alone: every method meets the same inputs, and one
severity differs from the next by its size only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.data.dataset import DataSet
from gossamer.data.prepare.image_input import ImageInput
from gossamer.data.prepare.preparation import Preparation
from gossamer.errors import InvalidValue, UnknownName

SEVERITIES = (1, 2, 3, 4, 5)

ALL = "all"
"""Stands for every shift that fits the data."""

_BLOCK_VALUES = 2**20
"""Input values that are corrupted at a time: bounds what is needed beside the result.

Fixed, because noise is drawn block by block.
"""

_TRUNCATE = 4.0
"""Standard deviations at which the kernel of a blur ends."""

Draw = Callable[[], Tensor]
"""Normal draws for the rows in hand, of their shape."""


@dataclass(frozen=True, eq=False)
class InputScale:
    """What the values of prepared inputs mean, of a shape that broadcasts over an example.

    Attributes:
        unit: One standard deviation over the training part; 0 where a value is no number but part
            of the code of a category.
        black: What a raw pixel of 0 became; 0 for tables.
    """

    unit: Tensor
    black: Tensor

    @classmethod
    def of(cls, dataset: DataSet) -> InputScale:
        """The scale of a data set; nothing but its training part is looked at."""
        inputs = dataset.preparation.inputs
        if not isinstance(inputs, ImageInput):
            numbers = [float(known) for column in inputs.columns for known in column.measured]
            return cls(torch.tensor(numbers), torch.zeros(()))
        if inputs.mean is not None and inputs.std is not None:
            black = -torch.tensor(inputs.mean) / torch.tensor(inputs.std)
            return cls(torch.ones(()), black.view(-1, 1, 1))
        return cls(_channel_stds(dataset.x_train), torch.zeros(()))


@dataclass(frozen=True)
class Shift:
    """A kind of corruption.

    Attributes:
        levels: How strong each severity is.
        meaning: What a level is, in words.
        kinds: Which inputs it is for.
        apply: From rows [B, ...], what draws for them, a level and the scale to new rows.
    """

    levels: tuple[float, float, float, float, float]
    meaning: str
    kinds: tuple[Literal["image", "table"], ...]
    apply: Callable[[Tensor, Draw, float, InputScale], Tensor]


def rotate(x: Tensor, degrees: float, black: Tensor) -> Tensor:
    """Images [B, C, H, W] turned counter-clockwise about their centre, bilinearly.

    Args:
        x: Images.
        degrees: The angle.
        black: What comes in at the corners, broadcast over [C, H, W].
    """
    height, width = x.shape[2:]
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    down = torch.arange(height, dtype=torch.float64).view(-1, 1) - (height - 1) / 2
    right = torch.arange(width, dtype=torch.float64).view(1, -1) - (width - 1) / 2
    # Where a pixel comes from, in pixels from the centre; rows grow downwards. grid_sample counts
    # in half images.
    column, row = cos * right - sin * down, sin * right + cos * down
    grid = torch.stack([2 * column / width, 2 * row / height], -1).to(x)
    # Outside an image it reads 0: so 0 has to be black.
    turned = F.grid_sample(
        x - black, grid.expand(len(x), -1, -1, -1), padding_mode="zeros", align_corners=False
    )
    return turned + black


def blur(x: Tensor, share: float) -> Tensor:
    """Images [B, C, H, W] under a Gaussian whose std is ``share`` of the shorter side.

    Edges are repeated outwards, so that an image of one colour stays as it is.
    """
    std = share * min(x.shape[2:])
    radius = int(_TRUNCATE * std + 0.5)
    places = torch.arange(-radius, radius + 1, dtype=torch.float64)
    kernel = (-0.5 * (places / std).square()).exp()
    kernel = (kernel / kernel.sum()).to(x)
    flat = F.pad(x.flatten(0, 1).unsqueeze(1), (radius,) * 4, mode="replicate")
    blurred = F.conv2d(F.conv2d(flat, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))
    return blurred.view_as(x)


def fade(x: Tensor, factor: float) -> Tensor:
    """Images [B, C, H, W] whose distance from the mean of each channel is ``factor`` as large."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


SHIFTS: dict[str, Shift] = {
    "rotation": Shift(
        (15.0, 30.0, 45.0, 60.0, 75.0),
        "degrees, counter-clockwise",
        ("image",),
        lambda x, draw, level, scale: rotate(x, level, scale.black),
    ),
    "noise": Shift(
        (0.2, 0.4, 0.6, 0.8, 1.0),
        "std of Gaussian noise, in standard deviations of the training inputs",
        ("image", "table"),
        lambda x, draw, level, scale: x + level * scale.unit * draw(),
    ),
    "blur": Shift(
        (0.02, 0.04, 0.06, 0.08, 0.10),
        "std of a Gaussian blur, as share of the shorter side",
        ("image",),
        lambda x, draw, level, scale: blur(x, level),
    ),
    # The factors of CIFAR-10-C (Hendrycks and Dietterich, 2019).
    "contrast": Shift(
        (0.75, 0.5, 0.4, 0.3, 0.15),
        "factor on the distance from the image's mean",
        ("image",),
        lambda x, draw, level, scale: fade(x, level),
    ),
}


def choose_shifts(names: Sequence[str], preparation: Preparation) -> tuple[str, ...]:
    """The shifts that were asked for, each once; ``all`` is every one that fits the data.

    Raises:
        UnknownName: A name that is no shift.
        InvalidValue: A shift that does not fit the data.
    """
    fitting = [name for name in SHIFTS if _misfit(name, preparation) is None]
    chosen: list[str] = []
    for name in names:
        if name not in (ALL, *SHIFTS):
            raise UnknownName("shift", name, [*SHIFTS, ALL])
        why = _misfit(name, preparation) if name != ALL else None
        if why is not None or not fitting:
            way = f"use {' or '.join(fitting)}" if fitting else "leave it out"
            raise InvalidValue("shift", name, why or "nothing fits these inputs", way)
        chosen += fitting if name == ALL else [name]
    return tuple(dict.fromkeys(chosen))


def shifted(x: Tensor, name: str, severity: int, scale: InputScale, *, seed: int = 0) -> Tensor:
    """Prepared inputs under a corruption.

    Args:
        x: Rows [N, ...], which stay as they are.
        name: A key of :data:`SHIFTS`.
        severity: 1 to 5.
        scale: Of the data set that they are of.
        seed: Of the noise: row i depends on (seed, i) alone, and has the same draws at every
            severity.

    Returns:
        New rows of the same shape; beside them a bounded amount of memory is used.
    """
    if name not in SHIFTS:
        raise UnknownName("shift", name, list(SHIFTS))
    if severity not in SEVERITIES:
        raise InvalidValue("severity", severity, f"must be one of {SEVERITIES}")
    shift, level = SHIFTS[name], SHIFTS[name].levels[severity - 1]
    generator = torch.Generator().manual_seed(seed)
    size = max(1, _BLOCK_VALUES // max(1, x[0].numel()))

    def draw(rows: int) -> Tensor:
        # Always for a whole block: the last one must not have other draws because it is short.
        whole = torch.randn((size, *x.shape[1:]), generator=generator, dtype=x.dtype)
        return whole[:rows]

    found = torch.empty_like(x)
    for rows, new in zip(torch.split(x, size), torch.split(found, size), strict=True):
        new.copy_(shift.apply(rows, partial(draw, len(rows)), level, scale))
    return found


def _misfit(name: str, preparation: Preparation) -> str | None:
    """Why a shift does not fit some inputs, or ``None``."""
    inputs = preparation.inputs
    if inputs.kind not in SHIFTS[name].kinds:
        return f"is for {' and '.join(f'{kind}s' for kind in SHIFTS[name].kinds)}, this is a table"
    if not isinstance(inputs, ImageInput) and not any(any(c.measured) for c in inputs.columns):
        return "needs a column of numbers, all of this table hold categories or dates"
    return None


def _channel_stds(images: Tensor) -> Tensor:
    """Standard deviation of each channel, [C, 1, 1], summed in float64 without a copy of all."""
    blocks = torch.split(images, max(1, _BLOCK_VALUES // max(1, images[0].numel())))
    count = images.numel() / images.shape[1]
    mean = sum(block.double().sum((0, 2, 3)) for block in blocks) / count
    assert isinstance(mean, Tensor)
    centre = mean.view(1, -1, 1, 1)
    squares = sum((block.double() - centre).square().sum((0, 2, 3)) for block in blocks)
    assert isinstance(squares, Tensor)
    return (squares / count).sqrt().float().view(-1, 1, 1)
