"""Removed sets, their IoU, and the finding: criteria 2 and 4 differ in float32 only."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.removal import REMOVAL
from gossamer.errors import InvalidValue, NonFinite
from gossamer.experiments.li2024ssvi.printed import PRINTED
from gossamer.experiments.li2024ssvi.removed_sets import iou, iou_matrix, removed_set
from reference import folded_truth as truth

FRACTIONS = (0.3, 0.01, 0.001, 0.0001)


def authors_weights(seed: int, count: int = 500_000) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 means and stds at the initial scale of the authors' runs."""
    generator = torch.Generator().manual_seed(seed)
    mean = 0.01 * torch.randn(count, generator=generator)
    std = (0.0006 + 0.0005 * torch.randn(count, generator=generator)).abs()
    return mean, std


def snr_overlap(mean, std, table):
    """IoU of criteria 2 and 4 at each of FRACTIONS."""
    pair = {name: table[name] for name in ("snr", "snr_abs")}
    return [iou_matrix([(mean, std)], fraction, pair)["snr"]["snr_abs"] for fraction in FRACTIONS]


@given(st.lists(st.integers(0, 4), max_size=30), st.data())
def test_removed_set_takes_the_lowest_and_the_first_of_equals(scores, data):
    count = data.draw(st.integers(0, len(scores)))
    expected = sorted(sorted(range(len(scores)), key=lambda i: (scores[i], i))[:count])
    got = removed_set(torch.tensor(scores, dtype=torch.float64), count)
    assert got.dtype == torch.int64
    assert got.tolist() == expected


def test_removed_set_is_stable_in_large_tensors():
    """torch's plain sort is stable on small ones only."""
    assert torch.equal(removed_set(torch.zeros(300_000), 1000), torch.arange(1000))


def test_removed_set_reads_any_shape_and_infinities():
    scores = torch.tensor([[math.inf, 1.0], [-math.inf, 2.0]])
    assert removed_set(scores, 2).tolist() == [1, 2]


def test_removed_set_refuses():
    with pytest.raises(InvalidValue, match=r"count = 3: must lie in \[0, 2\]"):
        removed_set(torch.zeros(2), 3)
    with pytest.raises(InvalidValue, match="count"):
        removed_set(torch.zeros(2), -1)
    with pytest.raises(NonFinite, match="scores"):
        removed_set(torch.tensor([0.0, math.nan]), 1)


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_iou_of_sets(a, b):
    expected = len(a & b) / len(a | b) if a | b else 1.0
    got = iou(
        torch.tensor(sorted(a), dtype=torch.int64), torch.tensor(sorted(b), dtype=torch.int64)
    )
    assert got == expected


def test_iou_matrix_by_hand():
    """|μ| removes {0, 1}; |μ|/σ, which is 1, 4, 2, 9, removes {0, 2}."""
    mean, std = torch.tensor([1.0, -2.0, 4.0, 9.0]), torch.tensor([1.0, 0.5, 2.0, 1.0])
    matrix = iou_matrix([(mean, std)], 0.5, {name: REMOVAL[name] for name in ("mean_abs", "snr")})
    assert matrix == {
        "mean_abs": {"mean_abs": 1.0, "snr": 1 / 3},
        "snr": {"mean_abs": 1 / 3, "snr": 1.0},
    }


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, math.nan, 0.2])
def test_iou_matrix_refuses(fraction):
    with pytest.raises(InvalidValue, match="fraction"):
        iou_matrix([(torch.ones(4), torch.ones(4))], fraction, REMOVAL)


def test_order_by_ratio_is_the_order_of_eq_7():
    """The 300 weights of lowest r, deep in the flat zone, ranked by Eq. 7 in 50 digits."""
    mean, std = authors_weights(0)
    lowest = removed_set(REMOVAL["snr_abs"](mean, std), 300)
    m, s = mean[lowest], std[lowest]
    assert float(REMOVAL["snr_abs"](m, s).max()) < 0.025
    exact = [truth.snr_abs(abs(x), y) for x, y in zip(m.tolist(), s.tolist(), strict=True)]
    by_eq_7 = sorted(range(300), key=lambda i: exact[i])
    assert torch.sort(REMOVAL["snr_abs"](m, s), stable=True).indices.tolist() == by_eq_7


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_criteria_2_and_4_part_by_rounding_only(seed):
    """The paper's falling IoU(2, 4) comes from float32: 0.001 and 0.0001 reach into r < 0.03."""
    mean, std = authors_weights(seed)
    assert snr_overlap(mean, std, REMOVAL) == [1.0, 1.0, 1.0, 1.0]
    printed = snr_overlap(mean, std, PRINTED)
    assert printed[0] > 0.999
    assert printed[1] > 0.998
    assert 0.40 < printed[2] < 0.70
    assert printed[3] < 0.20
    double = snr_overlap(mean.double(), std.double(), PRINTED)
    assert double[:3] == [1.0, 1.0, 1.0]
    assert double[3] > 0.95
