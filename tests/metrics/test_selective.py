from __future__ import annotations

from itertools import permutations

import calibration as verified
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc

from gossamer.errors import InvalidData
from gossamer.metrics import aurc, excess_aurc, risk_coverage_curve, selective_curve


def as_tensors(*arrays):
    return tuple(torch.from_numpy(np.asarray(array)) for array in arrays)


def slow_risks(confidence, loss):
    """One coverage after the other, by sorting anew for each."""
    return [loss[np.argsort(-confidence)[:i]].mean() for i in range(1, len(loss) + 1)]


def trapezoids(risks):
    """The area of torch-uncertainty: trapezoids from coverage 1/B to 1, over 1 − 1/B."""
    count = len(risks)
    return auc(np.arange(1, count + 1) / count, risks) / (1 - 1 / count)


rows = st.integers(1, 80)
seeds = st.integers(0, 10**6)


@settings(deadline=None, max_examples=40)
@given(seeds, rows)
def test_curves_by_brute_force(seed, num_rows):
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random(num_rows), rng.random(num_rows) < 0.7
    loss = rng.standard_normal(num_rows) ** 2
    risk = slow_risks(confidence, loss)
    curve = risk_coverage_curve(*as_tensors(confidence, loss))
    np.testing.assert_allclose(curve.risk, risk, rtol=1e-12, atol=0)
    assert curve.coverage.tolist() == [i / num_rows for i in range(1, num_rows + 1)]
    assert aurc(*as_tensors(confidence, loss)) == pytest.approx(np.mean(risk), rel=1e-12)
    accuracy = slow_risks(confidence, correct.astype(float))
    chosen = selective_curve(*as_tensors(confidence, correct))
    np.testing.assert_allclose(chosen.accuracy, accuracy, rtol=0, atol=1e-12)
    assert torch.equal(chosen.coverage, curve.coverage)


@settings(deadline=None, max_examples=40)
@given(seeds, rows)
def test_excess_is_above_the_order_of_the_losses_themselves(seed, num_rows):
    rng = np.random.default_rng(seed)
    confidence, loss = rng.random(num_rows), rng.standard_normal(num_rows) ** 2
    best = np.mean(np.cumsum(np.sort(loss)) / np.arange(1, num_rows + 1))
    wanted = np.mean(slow_risks(confidence, loss)) - best
    assert excess_aurc(*as_tensors(confidence, loss)) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_no_order_of_five_rows_is_better_than_the_best():
    loss = np.array([0.3, 0.0, 2.0, 1.0, 0.3])
    areas, excesses = [], []
    for order in permutations(range(5)):
        pair = as_tensors(np.array(order, dtype=float), loss)
        areas.append(aurc(*pair))
        excesses.append(excess_aurc(*pair))
    assert min(excesses) == 0.0
    np.testing.assert_allclose(excesses, np.array(areas) - min(areas), rtol=0, atol=1e-12)


def test_by_hand():
    """Four rows, the wrong one first: risks 1, 1/2, 1/3, 1/4; at best 0, 0, 0, 1/4."""
    confidence, loss = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 0, 0, 0])
    assert aurc(confidence, loss) == pytest.approx(25 / 48, abs=1e-15)
    assert excess_aurc(confidence, loss) == pytest.approx(25 / 48 - 1 / 16, abs=1e-15)
    assert excess_aurc(-confidence, loss) == 0.0


def test_area_equals_the_package():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.8
    area, _ = verified.utils.get_selective_stats(confidence, correct)
    got = aurc(*as_tensors(confidence, 1.0 - correct))
    assert got == pytest.approx(1 - area, abs=1e-12)


def test_the_trapezoids_of_torch_uncertainty_differ_by_half_the_ends():
    # The example in the documentation of its AURC: probabilities 0.7, 0.6, 0.8, the second wrong.
    confidence, wrong = np.array([0.7, 0.6, 0.8]), np.array([0.0, 1.0, 0.0])
    assert trapezoids(slow_risks(confidence, wrong)) == pytest.approx(0.0833, abs=5e-5)
    rng = np.random.default_rng(1)
    for count in (3, 50, 1000):
        confidence, wrong = rng.random(count), (rng.random(count) < 0.3).astype(float)
        risks = risk_coverage_curve(*as_tensors(confidence, wrong)).risk
        theirs = trapezoids(risks.numpy())
        wanted = ((count - 1) * theirs + float(risks[0] + risks[-1]) / 2) / count
        assert aurc(*as_tensors(confidence, wrong)) == pytest.approx(wanted, abs=1e-12)


def test_ties_are_the_mean_over_all_their_orders():
    confidence = np.array([0.5, 0.9, 0.5, 0.5, 0.1, 0.1])
    loss = np.array([1.0, 0.0, 4.0, 9.0, 2.0, 0.5])
    curves = []
    for order in permutations(range(6)):
        index = np.array(order)
        if (np.diff(confidence[index]) <= 0).all():
            curves.append(np.cumsum(loss[index]) / np.arange(1, 7))
    assert len(curves) == 12  # 3! orders of 0.5 times 2! of 0.1
    curve = risk_coverage_curve(*as_tensors(confidence, loss))
    np.testing.assert_allclose(curve.risk, np.mean(curves, axis=0), rtol=0, atol=1e-12)


def test_a_constant_confidence_has_the_mean_loss_as_area():
    loss = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert aurc(torch.zeros(4), loss) == pytest.approx(0.25, abs=1e-15)
    assert aurc(torch.zeros(4), 7 * loss) == pytest.approx(1.75, abs=1e-15)


def test_perfect_ranking_has_the_area_of_the_docstring():
    num_rows, rate = 10_000, 0.2
    confidence = torch.arange(num_rows, 0, -1)
    wrong = (torch.arange(num_rows) >= num_rows * (1 - rate)).double()
    optimum = rate + (1 - rate) * np.log(1 - rate)
    assert aurc(confidence, wrong) == pytest.approx(optimum, abs=1e-4)  # O(1/B) of the sum
    assert excess_aurc(confidence, wrong) == 0.0


def test_bad_input_is_refused():
    two = torch.tensor([0.5, 0.6])
    with pytest.raises(InvalidData, match="correct: must hold only 0 and 1"):
        selective_curve(two, two)
    with pytest.raises(InvalidData, match=r"correct\.shape = \(1,\): must equal confidence"):
        selective_curve(two, torch.tensor([1]))
    with pytest.raises(InvalidData, match=r"loss\.shape = \(1,\): must equal confidence"):
        risk_coverage_curve(two, torch.tensor([1.0]))
    with pytest.raises(InvalidData, match=r"confidence\[1\] = nan: must be finite"):
        selective_curve(torch.tensor([0.5, torch.nan]), torch.tensor([1, 0]))
    with pytest.raises(InvalidData, match=r"loss\[0\] = inf: must be finite"):
        aurc(two, torch.tensor([torch.inf, 0.0]))
    with pytest.raises(InvalidData, match="correct = list: must be a torch tensor"):
        selective_curve(two, [1, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [aurc, excess_aurc, risk_coverage_curve])
def test_which_rows_were_right_is_no_loss(function):
    """The area of the wrong half would be silently reported."""
    right = torch.tensor([True, False])
    with pytest.raises(InvalidData, match=r"loss dtype = torch.bool: .*predicted != target"):
        function(torch.tensor([0.5, 0.6]), right)
