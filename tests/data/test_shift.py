"""Corruptions against scipy and by hand; which rows get which noise; what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from gossamer.data import (
    SEVERITIES,
    SHIFTS,
    DataSet,
    InputScale,
    choose_shifts,
    from_arrays,
    shifted,
)
from gossamer.data import shift as module
from gossamer.data.prepare import ImageInput
from gossamer.data.shift import blur, fade, rotate
from gossamer.errors import InvalidValue, UnknownName

ZERO = torch.zeros(())
PLAIN = InputScale(torch.ones(()), ZERO)
SIZES = [(1, 8, 8), (3, 7, 12), (2, 13, 6), (1, 1, 9)]


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(*, normalised: bool) -> DataSet:
    """Three channels whose brightness and spread are far apart."""
    draw = np.random.default_rng(0)
    raw = draw.integers(0, 200, size=(40, 3, 6, 6)) // np.array([1, 4, 20]).reshape(1, 3, 1, 1)
    x, y = raw.astype(np.uint8), np.arange(40) % 2
    data = from_arrays(x[:30], y[:30], validation_fraction=0, x_test=x[30:], y_test=y[30:])
    if normalised:
        return data
    ready = replace(data.preparation, inputs=ImageInput((3, 6, 6), 255.0))
    assert data.test is not None
    return replace(
        data,
        preparation=ready,
        train=data.train._replace(x=ready.prepare(x[:30])),
        test=data.test._replace(x=ready.prepare(x[30:])),
    )


def table(*, numbers: bool = True) -> DataSet:
    draw = np.random.default_rng(1)
    columns = {"colour": np.array(["red", "blue", "green"] * 20)}
    if numbers:
        columns |= {"height": 100 * draw.normal(size=60), "width": draw.normal(size=60)}
    return from_arrays(columns, np.arange(60) % 2, validation_fraction=0)


class TestRotation:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("degrees", [15.0, 45.0, 75.0, -20.0])
    def test_as_scipy(self, size, degrees):
        """scipy takes the matrix from new to old places, rows before columns."""
        x = images(4, *size)
        black = images(size[0], 1, 1, seed=1)
        got = rotate(x, degrees, black)
        angle = np.deg2rad(degrees)
        back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        centre = (np.array(size[1:]) - 1) / 2
        for image, turned in zip(x.numpy(), got.numpy(), strict=True):
            for channel, one in enumerate(image):
                wanted = ndimage.affine_transform(
                    one,
                    back,
                    centre - back @ centre,
                    order=1,
                    mode="grid-constant",
                    cval=float(black[channel]),
                )
                np.testing.assert_allclose(turned[channel], wanted, rtol=0, atol=1e-12)

    def test_a_quarter_turn_is_counter_clockwise(self):
        x = images(3, 2, 8, 8)
        for turns in (1, 2, 3, 4):
            wanted = torch.rot90(x, turns, (2, 3))
            torch.testing.assert_close(rotate(x, 90.0 * turns, ZERO), wanted, rtol=0, atol=1e-12)

    def test_corners_are_what_black_became(self):
        data = pictures(normalised=True)
        turned = shifted(data.x_test, "rotation", 3, InputScale.of(data))
        raw = np.zeros((1, 3, 6, 6), dtype=np.uint8)
        black = data.preparation.prepare(raw)[0, :, 0, 0]
        assert black.max() < -0.5, "standardised: a raw 0 is far from 0"
        torch.testing.assert_close(turned[:, :, 0, 0], black.expand(10, 3), rtol=1e-5, atol=1e-6)

    def test_it_turns_raw_and_standardised_images_alike(self):
        """Corrupt, then prepare is prepare, then corrupt."""
        plain, scaled = pictures(normalised=False), pictures(normalised=True)
        inputs = scaled.preparation.inputs
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (inputs.mean, inputs.std))
        for name in ("rotation", "blur", "contrast"):
            raw = shifted(plain.x_test, name, 4, InputScale.of(plain))
            got = shifted(scaled.x_test, name, 4, InputScale.of(scaled))
            torch.testing.assert_close(got, (raw - mean) / std, rtol=1e-4, atol=1e-4)


class TestBlur:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("share", [0.02, 0.06, 0.1, 0.3])
    def test_as_scipy(self, size, share):
        x = images(4, *size)
        std = share * min(size[1:])
        wanted = ndimage.gaussian_filter(
            x.numpy(), std, order=0, mode="nearest", truncate=4.0, axes=(2, 3)
        )
        np.testing.assert_allclose(blur(x, share), wanted, rtol=0, atol=1e-12)

    def test_one_colour_stays(self):
        x = torch.full((2, 3, 9, 9), 0.7)
        torch.testing.assert_close(blur(x, 0.1), x, rtol=1e-6, atol=0)


def test_contrast_by_hand():
    x = torch.tensor([[[[0.0, 4.0]], [[1.0, 1.0]]], [[[2.0, 6.0]], [[-1.0, 1.0]]]])
    wanted = torch.tensor([[[[1.5, 2.5]], [[1.0, 1.0]]], [[[3.5, 4.5]], [[-0.25, 0.25]]]])
    assert torch.equal(fade(x, 0.25), wanted)


class TestNoise:
    def test_standardised_images_get_noise_of_the_level(self):
        data = pictures(normalised=True)
        x = data.x_test.repeat(200, 1, 1, 1)
        draws = (shifted(x, "noise", 3, InputScale.of(data)) - x) / 0.6
        # 72,000 values, each rounded to float32: Kolmogorov and Smirnov see a std off by 1 %.
        assert stats.kstest(draws.flatten().double(), "norm").pvalue > 1e-3
        assert abs(float(draws.std()) - 1) < 0.01

    def test_plain_images_get_it_in_units_of_their_channels(self):
        data = pictures(normalised=False)
        scale = InputScale.of(data)
        wanted = data.x_train.double().numpy().std((0, 2, 3))
        np.testing.assert_allclose(scale.unit.flatten(), wanted, rtol=1e-6)
        assert wanted.max() > 5 * wanted.min()
        x = data.x_test.repeat(200, 1, 1, 1)
        spread = (shifted(x, "noise", 5, scale) - x).double().numpy().std((0, 2, 3))
        np.testing.assert_allclose(spread, wanted, rtol=0.03)  # 72,000 draws a channel

    def test_numbers_of_a_table_move_and_categories_stay(self):
        data = table()
        x = data.x_train
        moved = (shifted(x, "noise", 2, InputScale.of(data)) != x).float().mean(0)
        names = [f for c in data.preparation.inputs.columns for f in c.features]
        found = dict(zip(names, moved.tolist(), strict=True))
        assert {name for name, share in found.items() if share == 0.0} == {
            "colour=red",
            "colour=blue",
            "colour=green",
        }
        assert found["height"] == found["width"] == 1.0

    def test_a_severity_is_a_multiple_of_the_same_draws(self):
        x = images(50, 1, 4, 4)
        first = shifted(x, "noise", 1, PLAIN, seed=7) - x
        for severity in SEVERITIES[1:]:
            more = shifted(x, "noise", severity, PLAIN, seed=7) - x
            torch.testing.assert_close(
                more, severity * first, rtol=1e-6, atol=1e-9
            )  # 0.2 in float32
        other = shifted(x, "noise", 1, PLAIN, seed=8) - x
        assert (other - first).abs().min() > 0

    def test_a_row_depends_on_seed_and_place_alone(self, monkeypatch):
        """Neither on how many rows follow nor, within a block, on its end."""
        monkeypatch.setattr(module, "_BLOCK_VALUES", 16 * 10)
        x = images(64, 1, 4, 4)
        whole = shifted(x, "noise", 4, PLAIN, seed=3)
        for count in (1, 9, 10, 11, 37):
            assert torch.equal(shifted(x[:count], "noise", 4, PLAIN, seed=3), whole[:count])
        blocks = (whole - x)[:60].view(6, -1)
        assert len(torch.unique(blocks[:, 0])) == 6, "no block repeats another"

    def test_torchs_own_generator_is_left_alone(self):
        before = torch.get_rng_state()
        shifted(images(4, 1, 4, 4), "noise", 1, PLAIN)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", SHIFTS)
class TestEvery:
    def test_blocks_change_nothing_and_inputs_stay(self, name, monkeypatch):
        x = images(23, 2, 9, 9)
        kept = x.clone()
        whole = [shifted(x, name, severity, PLAIN) for severity in SEVERITIES]
        assert torch.equal(x, kept)
        if name != "noise":  # which is drawn by block
            monkeypatch.setattr(module, "_BLOCK_VALUES", 2 * 9 * 9 * 4)
            for severity, wanted in zip(SEVERITIES, whole, strict=True):
                torch.testing.assert_close(shifted(x, name, severity, PLAIN), wanted)

    def test_a_higher_severity_is_farther_away(self, name):
        """On smooth images: of white noise a turn by any angle is as far away as by any other."""
        grid = torch.arange(16.0) / 16
        x = (torch.sin(3 * grid).view(1, 1, 16, 1) + grid**2).repeat(2, 1, 1, 1)
        far = [
            float((shifted(x, name, severity, PLAIN) - x).square().mean())
            for severity in SEVERITIES
        ]
        assert far[0] > 0
        assert all(a < b for a, b in pairwise(far))

    def test_shape_and_type_stay(self, name):
        x = images(3, 2, 9, 7).float()
        found = shifted(x, name, 5, PLAIN)
        assert (found.shape, found.dtype) == (x.shape, torch.float32)
        assert torch.isfinite(found).all()


class TestChoice:
    def test_all_is_what_fits(self):
        pixels, columns = pictures(normalised=True).preparation, table().preparation
        assert choose_shifts(["all"], pixels) == tuple(SHIFTS)
        assert choose_shifts(["all"], columns) == ("noise",)
        assert choose_shifts([], columns) == ()
        assert choose_shifts(["blur", "noise", "blur"], pixels) == ("blur", "noise")
        assert choose_shifts(["blur", "all"], pixels) == ("blur", "rotation", "noise", "contrast")

    @pytest.mark.parametrize("name", ["rotation", "blur", "contrast"])
    def test_what_needs_images_is_refused_for_a_table(self, name):
        said = f"shift = {name}: is for images, this is a table; use noise"
        with pytest.raises(InvalidValue, match=said):
            choose_shifts(["noise", name], table().preparation)

    def test_categories_have_no_noise(self):
        ready = table(numbers=False).preparation
        with pytest.raises(InvalidValue, match="shift = noise: needs a column of numbers"):
            choose_shifts(["noise"], ready)
        with pytest.raises(InvalidValue, match="shift = all: nothing fits these inputs; leave it"):
            choose_shifts(["all"], ready)

    def test_unknown_names_and_severities(self):
        with pytest.raises(UnknownName, match=r"shift = fog: .* all, blur, contrast, noise"):
            choose_shifts(["fog"], table().preparation)
        with pytest.raises(UnknownName, match="shift = fog"):
            shifted(torch.zeros(1, 1, 4, 4), "fog", 1, PLAIN)
        for severity in (0, 6, 2.5):
            with pytest.raises(InvalidValue, match="severity"):
                shifted(torch.zeros(1, 1, 4, 4), "blur", severity, PLAIN)
