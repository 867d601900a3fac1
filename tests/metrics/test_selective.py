from __future__ import annotations

from itertools import permutations

import calibration as verified
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InvalidData
from gossamer.metrics import aurc, selective_curve


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 80))
def test_curve_by_brute_force(seed, num_rows):
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random(num_rows), rng.random(num_rows) < 0.7
    curve = selective_curve(torch.from_numpy(confidence), torch.from_numpy(correct))
    for i in range(1, num_rows + 1):
        best = np.argsort(-confidence)[:i]
        assert float(curve.accuracy[i - 1]) == pytest.approx(correct[best].mean(), abs=1e-12)
        assert float(curve.coverage[i - 1]) == i / num_rows


def test_area_equals_the_package():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.8
    area, _ = verified.utils.get_selective_stats(confidence, correct)
    got = aurc(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert got == pytest.approx(1 - area, abs=1e-12)


def test_ties_are_the_mean_over_all_their_orders():
    confidence = np.array([0.5, 0.9, 0.5, 0.5, 0.1, 0.1])
    correct = np.array([1, 0, 0, 1, 1, 0])
    curves = []
    for order in permutations(range(6)):
        index = np.array(order)
        if (np.diff(confidence[index]) <= 0).all():
            curves.append(np.cumsum(correct[index]) / np.arange(1, 7))
    assert len(curves) == 12  # 3! orders of 0.5 times 2! of 0.1
    curve = selective_curve(torch.from_numpy(confidence), torch.from_numpy(correct))
    np.testing.assert_allclose(curve.accuracy, np.mean(curves, axis=0), rtol=0, atol=1e-12)


def test_a_constant_confidence_has_the_error_rate_as_area():
    correct = torch.tensor([True, False, True, True])
    assert aurc(torch.zeros(4), correct) == pytest.approx(0.25, abs=1e-15)


def test_perfect_ranking_has_the_area_of_the_docstring():
    num_rows, rate = 10_000, 0.2
    confidence = torch.arange(num_rows, 0, -1)
    correct = torch.arange(num_rows) < num_rows * (1 - rate)
    optimum = rate + (1 - rate) * np.log(1 - rate)
    assert aurc(confidence, correct) == pytest.approx(optimum, abs=1e-4)  # O(1/B) of the sum


def test_bad_input_is_refused():
    two = torch.tensor([0.5, 0.6])
    with pytest.raises(InvalidData, match="correct: must hold only 0 and 1"):
        selective_curve(two, two)
    with pytest.raises(InvalidData, match=r"correct\.shape = \(1,\): must equal confidence"):
        selective_curve(two, torch.tensor([1]))
    with pytest.raises(InvalidData, match=r"confidence\[1\] = nan: must be finite"):
        selective_curve(torch.tensor([0.5, torch.nan]), torch.tensor([1, 0]))
    with pytest.raises(InvalidData, match="correct = list: must be a torch tensor"):
        selective_curve(two, [1, 0])  # type: ignore[arg-type]
