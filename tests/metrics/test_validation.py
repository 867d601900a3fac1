"""Every metric of class probabilities refuses the same input, in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gossamer.errors import InvalidData
from gossamer.metrics import (
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    marginal_calibration_error,
    nll,
    nll_from_log_probs,
    reliability_curve,
    rmse,
)

ALL = [
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    marginal_calibration_error,
    nll,
    reliability_curve,
]
HALF = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
ZERO = torch.tensor([0, 0])

BAD = {
    "logits": (torch.tensor([[0.5, 0.5], [3.0, -2.0]]), ZERO, r"probs\[1, 0\] = 3.0: must lie in"),
    "negative": (torch.tensor([[1.5, -0.5]]), ZERO[:1], r"probs\[0, 0\] = 1.5: must lie in"),
    "sum": (torch.tensor([[0.5, 0.5], [0.5, 0.25]]), ZERO, r"sum of probs\[1\] = 0.75: a row"),
    "nan": (torch.tensor([[0.5, torch.nan]]), ZERO[:1], r"probs\[0, 1\] = nan: must be finite"),
    "one column": (torch.ones(2, 1), ZERO, r"probs\.shape = \(2, 1\): must be \[B, C\].*columns"),
    "vector": (torch.ones(2), ZERO, r"probs\.shape = \(2,\): must be \[B, C\]"),
    "integers": (torch.tensor([[1, 0]]), ZERO[:1], r"probs\.dtype = torch.int64: must be floating"),
    "empty": (torch.ones(0, 2), ZERO[:0], r"probs\.shape = \(0, 2\): must hold at least one"),
    "array": (np.array([[0.5, 0.5]]), ZERO[:1], r"probs = ndarray: must be a torch tensor"),
    "label too high": (HALF, torch.tensor([0, 2]), r"target\[1\] = 2: must lie in \[0, 2\)"),
    "label negative": (HALF, torch.tensor([-1, 0]), r"target\[0\] = -1: must lie in \[0, 2\)"),
    "float labels": (HALF, torch.tensor([0.0, 1.0]), r"target\.dtype = torch.float32: must be an"),
    "one-hot labels": (HALF, torch.tensor([[1, 0], [0, 1]]), r"target\.shape = \(2, 2\): must be"),
    "too few labels": (HALF, ZERO[:1], r"target\.shape = \(1,\): must be \[B\] = \(2,\)"),
}


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("case", BAD)
def test_bad_probabilities_and_labels_are_refused(metric, case):
    probs, target, message = BAD[case]
    with pytest.raises(InvalidData, match=message) as raised:
        metric(probs, target)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (torch.tensor([[0.5, 0.5]]), r"sum of log_probs\[0\] = 3.29.*log_softmax"),
        (torch.tensor([[torch.nan, 0.0]]), r"log_probs\[0, 0\] = nan: must not be NaN"),
        (torch.tensor([[torch.inf, 0.0]]), r"log_probs\[0, 0\] = inf: must not be NaN or \+inf"),
    ],
)
def test_bad_log_probabilities_are_refused(log_probs, message):
    with pytest.raises(InvalidData, match=message):
        nll_from_log_probs(log_probs, ZERO[:1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_softmax_in_every_dtype_passes(dtype):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(64, 100, generator=generator).to(dtype).softmax(dim=1)
    assert 0 < brier(probs, probs.argmax(dim=1)) < 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integer_labels_of_every_width_pass(dtype):
    assert accuracy(HALF, ZERO.to(dtype)) == 1.0


def test_gradients_are_not_tracked_or_needed():
    probs = torch.tensor([[0.5, 0.5]], requires_grad=True)
    assert brier(probs, ZERO[:1]) == 0.5
    assert probs.grad is None


def test_complex_and_bool_numbers_are_refused():
    for dtype in (torch.complex64, torch.bool):
        with pytest.raises(InvalidData, match=r"mean = torch\..*: must hold real numbers"):
            rmse(torch.ones(2).to(dtype), torch.ones(2))
