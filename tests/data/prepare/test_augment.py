from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gossamer.data import crop_flip
from gossamer.errors import InvalidData, InvalidValue


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def every_view(image: torch.Tensor, padding: int) -> list[torch.Tensor]:
    """All crops of a padded image [C, H, W] and their mirror images, one by one."""
    _, height, width = image.shape
    padded = F.pad(image, (padding,) * 4)
    steps = range(2 * padding + 1)
    crops = [padded[:, i : i + height, j : j + width] for i in steps for j in steps]
    return crops + [crop.flip(-1) for crop in crops]


def test_each_image_is_one_of_its_views() -> None:
    x = torch.rand(40, 3, 5, 6, generator=generator())
    out = crop_flip(x, generator(1), padding=2)
    assert out.shape == x.shape
    for image, view in zip(x, out, strict=True):
        assert sum(torch.equal(view, other) for other in every_view(image, 2)) == 1


def test_views_are_uniform() -> None:
    image = torch.rand(1, 3, 4, generator=generator())
    out = crop_flip(image.expand(18000, 1, 3, 4), generator(2), padding=1)
    counts = torch.tensor(
        [int((out == view).flatten(1).all(1).sum()) for view in every_view(image, 1)]
    )
    assert counts.sum() == 18000
    # chi-squared with 17 degrees of freedom: 40.8 is exceeded once in a thousand seeds
    assert ((counts - 1000) ** 2 / 1000).sum() < 40.8


def test_padding_zero_only_mirrors() -> None:
    x = torch.rand(64, 1, 4, 4, generator=generator())
    out = crop_flip(x, generator(3), padding=0)
    kept = (out == x).flatten(1).all(1)
    assert 10 < kept.sum() < 54
    assert torch.equal(out[~kept], x[~kept].flip(-1))


def test_the_generator_decides() -> None:
    x = torch.rand(8, 3, 8, 8, generator=generator())
    before = x.clone()
    assert torch.equal(crop_flip(x, generator(4)), crop_flip(x, generator(4)))
    assert not torch.equal(crop_flip(x, generator(4)), crop_flip(x, generator(5)))
    assert torch.equal(x, before)


def test_faults() -> None:
    with pytest.raises(InvalidData, match=r"\[B, C, H, W\]"):
        crop_flip(torch.zeros(4, 8), generator())
    with pytest.raises(InvalidValue, match="padding = -1"):
        crop_flip(torch.zeros(1, 1, 2, 2), generator(), padding=-1)
