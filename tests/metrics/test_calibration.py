from __future__ import annotations

import json

import calibration as verified
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from gossamer.errors import InvalidValue
from gossamer.metrics import (
    adaptive_ece,
    classwise_ece,
    ece,
    marginal_calibration_error,
    reliability_curve,
)
from gossamer.metrics import calibration as ours


def draw(seed, num_rows, num_classes, *, decimals=None, dtype=torch.float64, scale=3.0):
    """Random rows; with ``decimals`` the values repeat, so that bins meet ties."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal((num_rows, num_classes))
    if decimals is not None:
        logits = np.round(logits, decimals)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    target = rng.integers(num_classes, size=num_rows)
    return torch.from_numpy(probs).to(dtype), torch.from_numpy(target)


sizes = st.integers(1, 150)
ties = st.sampled_from([None, 0, 1])


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 10**6), sizes, st.integers(2, 6), ties, st.sampled_from([0.3, 3.0, 30.0]))
def test_marginal_error_equals_the_package_of_its_authors(seed, rows, classes, decimals, scale):
    probs, target = draw(seed, rows, classes, decimals=decimals, scale=scale)
    expected = verified.get_calibration_error(probs.numpy(), target.numpy())
    # The root turns a rounding of 1e-16 near 0 into 1e-8.
    assert marginal_calibration_error(probs, target) == pytest.approx(expected, abs=1e-7)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), sizes, st.integers(2, 4), st.floats(10, 60))
def test_marginal_error_equals_the_package_on_saturated_float32(seed, rows, classes, scale):
    # Neighbouring floats at 1: here midpoints round, and edges depend on the dtype.
    probs, target = draw(seed, rows, classes, dtype=torch.float32, scale=scale)
    probs[::3] = torch.nextafter(torch.eye(classes)[0], torch.zeros(classes))
    expected = verified.get_calibration_error(probs.numpy(), target.numpy())
    assert marginal_calibration_error(probs, target) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("block", [1, 100, 10**9])
def test_marginal_error_of_a_binned_model_and_blocks_of_classes(monkeypatch, block):
    monkeypatch.setattr(ours, "_BLOCK_ELEMENTS", block)
    binned, target = draw(1, 400, 3, decimals=0, scale=0.7)
    assert verified.utils.is_discrete(binned.numpy())
    continuous, other = draw(2, 400, 3)
    assert not verified.utils.is_discrete(continuous.numpy())
    for probs, labels in ((binned, target), (continuous, other)):
        expected = verified.get_calibration_error(probs.numpy(), labels.numpy())
        assert marginal_calibration_error(probs, labels) == pytest.approx(expected, abs=1e-7)
        marginal_l1 = verified.get_ece(probs.numpy(), labels.numpy(), mode="marginal")
        assert classwise_ece(probs, labels) == pytest.approx(marginal_l1, abs=1e-12)


def test_marginal_error_at_the_size_of_a_test_set():
    probs, target = draw(3, 3000, 10, dtype=torch.float32)
    expected = verified.get_calibration_error(probs.numpy(), target.numpy())
    assert expected > 0.05
    assert marginal_calibration_error(probs, target) == pytest.approx(expected, abs=1e-7)


def test_debiasing_brings_a_calibrated_model_to_zero():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(20_000, 4, generator=generator).double().softmax(dim=1)
    target = torch.multinomial(probs, 1, generator=generator)[:, 0]
    # Plug-in bias is about sqrt(15 bins * 0.2 / 20000) = 0.012; three spreads of the debiased one.
    assert marginal_calibration_error(probs, target) < 0.006
    assert ece(probs, target) < 0.02


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10**6), sizes, st.integers(2, 6), ties, st.integers(1, 20))
def test_l1_errors_equal_the_package(seed, rows, classes, decimals, num_bins):
    probs, target = draw(seed, rows, classes, decimals=decimals)
    p, y = probs.numpy(), target.numpy()
    # Both are float64 sums over at most 150 rows.
    expected = verified.get_ece(p, y, num_bins=num_bins)
    assert ece(probs, target, num_bins) == pytest.approx(expected, abs=1e-12)
    expected = verified.get_ece_em(p, y, num_bins=num_bins)
    assert adaptive_ece(probs, target, num_bins) == pytest.approx(expected, abs=1e-12)
    expected = verified.get_ece(p, y, num_bins=num_bins, mode="marginal")
    assert classwise_ece(probs, target, num_bins) == pytest.approx(expected, abs=1e-12)


def test_ece_equals_torchmetrics_away_from_edges():
    probs, target = draw(5, 2000, 10, dtype=torch.float32)
    expected = multiclass_calibration_error(probs, target, num_classes=10, n_bins=15)
    assert ece(probs, target) == pytest.approx(float(expected), abs=1e-6)  # float32 sums there


def test_certain_rows_belong_to_the_last_bin_unlike_in_torchmetrics():
    # A right row at 0.97 and a wrong one at 1.0 share the last bin: |1.97 - 1| / 2.
    probs = torch.tensor([[0.97, 0.03], [1.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([0, 1])
    assert ece(probs, target) == pytest.approx(0.485, abs=1e-12)
    apart = multiclass_calibration_error(probs, target, num_classes=2, n_bins=15)
    assert float(apart) == pytest.approx((0.03 + 1) / 2, abs=1e-6)


def test_edges_are_closed_above():
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    curve = reliability_curve(probs, torch.tensor([0, 0]), num_bins=4)
    assert curve.count.tolist() == [0, 1, 1, 0]


def test_zero_belongs_to_the_first_bin():
    probs = torch.tensor([[1.0, 0.0]])
    # Class 0: |1 - 0| in the last bin, class 1: |0 - 1| in the first.
    assert classwise_ece(probs, torch.tensor([1])) == 1.0


def test_rounding_excess_above_one_is_the_last_bin():
    probs = torch.tensor([[1.0000001, 0.0], [1.0000001, 0.0], [0.5, 0.5]])
    target = torch.tensor([0, 0, 0])
    assert reliability_curve(probs, target, 2).count.tolist() == [1, 2]
    for error in (ece, adaptive_ece, classwise_ece):
        assert error(probs, target) == pytest.approx(0.5 / 3, abs=1e-6)  # float32 inputs
    assert marginal_calibration_error(probs, target) < 1e-6  # the lone row counts as 0


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 60), ties)
def test_the_order_of_rows_does_not_matter(seed, rows, decimals):
    probs, target = draw(seed, rows, 3, decimals=decimals)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(rows))
    for error in (ece, adaptive_ece, classwise_ece, marginal_calibration_error):
        expected = error(probs, target)
        assert error(probs[order], target[order]) == pytest.approx(expected, abs=1e-7)


def test_reliability_curve_by_brute_force():
    probs, target = draw(6, 300, 4, dtype=torch.float32)
    p, y = probs.double().numpy(), target.numpy()
    confidence, hit = p.max(1), p.argmax(1) == y
    curve = reliability_curve(probs, target, num_bins=10)
    gap = 0.0
    for m in range(10):
        inside = (confidence > m / 10) & (confidence <= (m + 1) / 10)
        assert curve.edges[m] == pytest.approx(m / 10, abs=1e-15)
        assert curve.count[m] == inside.sum()
        if inside.any():
            assert float(curve.confidence[m]) == pytest.approx(confidence[inside].mean(), abs=1e-12)
            assert float(curve.accuracy[m]) == pytest.approx(hit[inside].mean(), abs=1e-12)
            gap += inside.mean() * abs(confidence[inside].mean() - hit[inside].mean())
        else:
            assert curve.confidence[m].isnan()
            assert curve.accuracy[m].isnan()
    assert curve.edges[10] == 1.0
    assert ece(probs, target, num_bins=10) == pytest.approx(gap, abs=1e-12)


def test_reliability_curve_as_strict_json():
    curve = reliability_curve(torch.tensor([[0.75, 0.25]]), torch.tensor([1]), num_bins=2)
    text = json.dumps(curve.to_json(), allow_nan=False)
    assert json.loads(text) == {
        "edges": [0.0, 0.5, 1.0],
        "confidence": [None, 0.75],
        "accuracy": [None, 0.0],
        "count": [0, 1],
    }


@pytest.mark.parametrize("num_bins", [0, -1, 2.0, True])
@pytest.mark.parametrize("error", [ece, adaptive_ece, classwise_ece, reliability_curve])
def test_a_wrong_number_of_bins_is_refused(error, num_bins):
    with pytest.raises(InvalidValue, match=f"num_bins = {num_bins}: must be an integer >= 1"):
        error(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), num_bins)
