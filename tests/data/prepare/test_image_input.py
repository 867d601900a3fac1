from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from gossamer.data.prepare.image_input import ImageInput
from gossamer.errors import InvalidData

RNG = np.random.default_rng(0)


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def test_uint8_is_divided_and_gets_a_channel() -> None:
    raw = bytes_of(5, 4, 6)
    x = ImageInput.fit(raw, np.arange(5)).prepare(raw)
    assert x.shape == (5, 1, 4, 6)
    assert x.dtype == torch.float32
    assert np.array_equal(x[:, 0].numpy(), raw.astype(np.float32) / np.float32(255))


def test_every_layout_gives_the_same_input() -> None:
    first = bytes_of(7, 3, 4, 5)
    last = np.moveaxis(first, 1, -1)
    inputs = ImageInput.fit(last, np.arange(7))
    assert inputs == ImageInput.fit(first, np.arange(7))
    wanted = inputs.prepare(first)
    assert torch.equal(inputs.prepare(last), wanted)
    assert torch.equal(inputs.prepare(first.reshape(7, -1)), wanted)
    assert torch.equal(inputs.prepare(first.astype(np.int64)), wanted)


def test_moments_come_from_the_training_rows_alone() -> None:
    raw = bytes_of(9, 8, 8, 3)
    rows = np.array([0, 2, 4, 6])
    inputs = ImageInput.fit(raw, rows, normalise=True)
    part = raw[rows].astype(np.float64) / 255
    # float64 sums of some hundred values
    np.testing.assert_allclose(inputs.mean, part.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(inputs.std, part.std(axis=(0, 1, 2)), rtol=1e-12)
    changed = raw.copy()
    changed[[1, 3, 5, 7, 8]] = 255
    assert ImageInput.fit(changed, rows, normalise=True) == inputs
    x = inputs.prepare(raw[rows])
    # float32 rounding of standardised pixels
    np.testing.assert_allclose(x.mean(dim=(0, 2, 3)).numpy(), 0.0, atol=1e-6)
    np.testing.assert_allclose(x.var(dim=(0, 2, 3), correction=0).numpy(), 1.0, rtol=1e-5)


def test_moments_over_many_blocks() -> None:
    raw = RNG.normal(3.0, 2.0, (5000, 2, 2))
    inputs = ImageInput.fit(raw, np.arange(5000), normalise=True)
    assert inputs.mean is not None
    assert inputs.std is not None
    # float64 sums of 20000 values in another order
    np.testing.assert_allclose(inputs.mean[0], raw.mean(), rtol=1e-12)
    np.testing.assert_allclose(inputs.std[0], raw.std(), rtol=1e-12)


def test_constant_channel_is_left_alone() -> None:
    raw = np.full((3, 1, 2, 2), 0.1)
    inputs = ImageInput.fit(raw, np.arange(3), normalise=True)
    assert inputs.std == (1.0,)


def test_own_divisor_bounds_the_values() -> None:
    raw = np.array([[[0.0, 16.0], [8.0, 4.0]]])
    inputs = ImageInput.fit(raw, np.arange(1), divisor=16.0)
    assert inputs.prepare(raw)[0, 0].tolist() == [[0.0, 1.0], [0.5, 0.25]]
    with pytest.raises(InvalidData, match=r"row 0, pixel \[0, 0, 1\] = 17\.0.*\[0, 16\]"):
        inputs.prepare(np.array([[[0.0, 17.0], [8.0, 4.0]]]))


def test_pixels_of_the_other_sort_are_refused() -> None:
    whole = ImageInput.fit(bytes_of(2, 3, 3), np.arange(2))
    with pytest.raises(InvalidData, match=r"dtype float64: must be whole numbers 0\.\.255"):
        whole.prepare(np.zeros((2, 3, 3)))
    with pytest.raises(InvalidData, match=r"row 1, .*= 256: must be finite and lie in \[0, 255\]"):
        whole.prepare(np.array([np.zeros((3, 3)), np.full((3, 3), 256)]).astype(np.int64))
    decimal = ImageInput.fit(np.zeros((2, 3, 3)), np.arange(2))
    with pytest.raises(InvalidData, match="dtype uint8: must be floating point"):
        decimal.prepare(bytes_of(2, 3, 3))
    with pytest.raises(InvalidData, match="dtype int64: must be uint8 or floating point"):
        ImageInput.fit(np.zeros((2, 3, 3), dtype=np.int64), np.arange(2))
    digits = ImageInput((1, 3, 3), 16.0)
    with pytest.raises(InvalidData, match="must hold numbers"):
        digits.prepare(np.full((2, 3, 3), "a"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_non_finite_pixels_are_named(bad: float) -> None:
    raw = np.zeros((3, 2, 2))
    raw[1, 0, 1] = bad
    with pytest.raises(InvalidData, match=r"images, row 1, pixel \[0, 0, 1\].*must be finite"):
        ImageInput.fit(raw, np.arange(3))


@pytest.mark.parametrize("shape", [(2, 4), (2, 5, 5, 4), (2, 1, 1, 1, 1)])
def test_other_shapes_cannot_be_fitted(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidData, match="1 or 3 channels"):
        ImageInput.fit(np.zeros(shape), np.arange(2))


@pytest.mark.parametrize("shape", [(2, 5, 5), (2, 3, 4, 5), (0, 1, 4, 4), (2, 17), (4, 4)])
def test_other_shapes_than_in_training_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidData, match="images = shape"):
        ImageInput((1, 4, 4), 1.0).prepare(np.zeros(shape))


def test_caller_s_array_is_not_written() -> None:
    raw = np.ones((2, 2, 2), dtype=np.float32)
    raw.flags.writeable = False
    x = ImageInput((1, 2, 2), 1.0, (0.5,), (0.25,)).prepare(raw)
    assert x.unique().tolist() == [2.0]
    assert (raw == 1).all()


def test_json_round_trip() -> None:
    for inputs in (
        ImageInput((1, 8, 8), 16.0),
        ImageInput((3, 2, 2), 255.0, (0.1,) * 3, (1 / 3,) * 3),
    ):
        assert ImageInput.from_json(asdict(inputs)) == inputs


@pytest.mark.parametrize(
    "arguments",
    [
        ((1, 0, 4), 1.0),
        ((1, 4, 4), 0.0),
        ((1, 4, 4), float("inf")),
        ((1, 4, 4), 1.0, (0.0,), None),
        ((1, 4, 4), 1.0, (0.0,), (0.0,)),
        ((1, 4, 4), 1.0, (0.0, 1.0), (1.0, 1.0)),
        ((1, 4, 4), 1.0, (float("nan"),), (1.0,)),
    ],
)
def test_impossible_settings(arguments: tuple[object, ...]) -> None:
    with pytest.raises(InvalidData, match="image "):
        ImageInput(*arguments)  # type: ignore[arg-type]
