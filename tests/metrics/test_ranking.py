from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from gossamer.errors import InvalidData, UnknownName
from gossamer.metrics import aupr, auroc, fpr95, ood_metrics

# torchmetrics forms its rates in float32 and sums them.
TOLERANCE = 2e-6


def truth(low, high, positive):
    labels = np.r_[np.zeros(len(low)), np.ones(len(high))]
    scores = np.r_[low, high]
    if positive == "in":
        labels, scores = 1 - labels, -scores
    false_rate, true_rate, _ = roc_curve(labels, scores, drop_intermediate=False)
    # Rates are ratios of small integers: 1e-9 parts 19/20 from its neighbours.
    return {
        "auroc": roc_auc_score(labels, scores),
        "aupr": average_precision_score(labels, scores),
        "fpr95": false_rate[true_rate >= 0.95 - 1e-9].min(),
    }


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 10**6),
    st.integers(1, 120),
    st.integers(1, 120),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["in", "out"]),
    st.sampled_from([1.0, 100.0, 1e-9]),
)
def test_agrees_with_sklearn(seed, num_in, num_out, decimals, positive, scale):
    rng = np.random.default_rng(seed)
    low, high = rng.standard_normal(num_in), rng.standard_normal(num_out) + 1
    if decimals is not None:
        low, high = low.round(decimals), high.round(decimals)
    low, high = low * scale, high * scale
    got = ood_metrics(torch.from_numpy(low), torch.from_numpy(high), positive=positive)
    assert got == pytest.approx(truth(low, high, positive), abs=TOLERANCE)


def test_agrees_with_sklearn_at_the_size_of_a_test_set():
    rng = np.random.default_rng(0)
    low, high = rng.gamma(2, size=20_000), rng.gamma(3, size=20_000)
    got = ood_metrics(torch.from_numpy(low), torch.from_numpy(high))
    assert got == pytest.approx(truth(low, high, "out"), abs=TOLERANCE)


def test_large_scores_are_not_tied_by_a_sigmoid():
    in_scores, out_scores = torch.arange(100, 200).float(), torch.arange(200, 300).float()
    assert ood_metrics(in_scores, out_scores) == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}


def test_a_constant_score_is_chance():
    low, high = torch.zeros(30), torch.zeros(10)
    assert auroc(low, high) == 0.5
    assert aupr(low, high) == pytest.approx(0.25, abs=1e-7)
    assert aupr(low, high, positive="in") == pytest.approx(0.75, abs=1e-7)
    assert fpr95(low, high) == 1.0


def test_fpr95_needs_exactly_nineteen_of_twenty():
    positives = torch.arange(20.0)  # the threshold is 1: all but the lowest
    assert fpr95(torch.tensor([0.5, 1.5]), positives) == 0.5
    # Of 21 rows 19.95 are needed, so 20.
    assert fpr95(torch.tensor([0.5, 1.5]), torch.arange(21.0)) == 0.5
    # 100 rows: 95 of them, and 0.95 * 100 must not become 96 by rounding.
    assert fpr95(torch.tensor([4.5, 5.0]), torch.arange(100.0)) == 0.5


def test_auroc_does_not_depend_on_the_positive_class():
    low, high = torch.tensor([0.1, 0.5, 0.3]), torch.tensor([0.4, 0.9])
    out, inside = ood_metrics(low, high), ood_metrics(low, high, positive="in")
    assert out["auroc"] == inside["auroc"] == pytest.approx(5 / 6, abs=1e-7)
    assert inside["aupr"] == pytest.approx(1 / 3 + 1 / 3 + 1 / 3 * 3 / 4, abs=1e-6)


def test_integer_scores_are_taken():
    assert auroc(torch.tensor([1, 2]), torch.tensor([3, 4])) == 1.0


def test_bad_input_is_refused():
    good = torch.tensor([0.5])
    with pytest.raises(UnknownName, match="positive = ood: is not known; choose one of: in, out"):
        ood_metrics(good, good, positive="ood")  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match=r"in_scores\[0\] = nan: must be finite"):
        auroc(torch.tensor([torch.nan]), good)
    with pytest.raises(InvalidData, match=r"out_scores\.shape = \(0,\)"):
        fpr95(good, torch.tensor([]))
    with pytest.raises(InvalidData, match=r"out_scores\.shape = \(1, 1\): must be \[B\]"):
        aupr(good, good[None])
