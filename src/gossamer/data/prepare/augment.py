"""Augmentation of image batches as tensor code: no loop over images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InvalidData, InvalidValue

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""A function of a batch of inputs and a generator that decides everything."""


def crop_flip(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shifts each image by up to ``padding`` pixels and mirrors half of them left to right.

    Each image is padded with zeros on all sides and a window of its own size is cut out at a random
    place. On standardised images zero is the mean colour of the channel.

    Args:
        x: Images [B, C, H, W].
        generator: CPU generator; it decides everything, whatever device the images are on.
        padding: Largest shift.

    Returns:
        New images [B, C, H, W].
    """
    if x.ndim != 4:
        raise InvalidData("x", f"shape {tuple(x.shape)}", "crop_flip needs images [B, C, H, W]")
    if padding < 0:
        raise InvalidValue("padding", padding, "must be 0 or more")
    batch, channels, height, width = x.shape
    shift = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator)
    flip = torch.randint(2, (batch, 1), generator=generator) == 1
    rows = shift[0] + torch.arange(height)
    cols = shift[1] + torch.arange(width)
    cols = torch.where(flip, cols.flip(1), cols)
    rows, cols = rows.to(x.device), cols.to(x.device)
    image = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
    padded = F.pad(x, (padding,) * 4)
    return padded[image, channel, rows[:, None, :, None], cols[:, None, None, :]]


AUGMENTATIONS: dict[str, Augmentation] = {"crop_flip": crop_flip}
