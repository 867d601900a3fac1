from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_accuracy

from gossamer.metrics import accuracy, brier, nll, nll_from_log_probs

# Both sides are float64 means of at most some hundred numbers of size 1.
TOLERANCE = 1e-12


def draw(seed: int, num_rows: int, num_classes: int, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_rows, num_classes, generator=generator, dtype=dtype)
    target = torch.randint(num_classes, (num_rows,), generator=generator)
    return logits.softmax(dim=1), target


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(2, 12))
def test_agrees_with_sklearn_and_brute_force(seed, num_rows, num_classes):
    probs, target = draw(seed, num_rows, num_classes)
    p, y = probs.numpy(), target.numpy()
    onehot = np.eye(num_classes)[y]
    assert accuracy(probs, target) == pytest.approx(accuracy_score(y, p.argmax(1)), abs=TOLERANCE)
    expected_nll = log_loss(y, p, labels=list(range(num_classes)))
    assert nll(probs, target) == pytest.approx(expected_nll, rel=TOLERANCE)
    expected_brier = ((p - onehot) ** 2).sum(1).mean()
    assert brier(probs, target) == pytest.approx(expected_brier, rel=TOLERANCE)


def test_accuracy_is_the_micro_average_of_torchmetrics():
    probs, target = draw(0, 500, 7)
    expected = multiclass_accuracy(probs, target, num_classes=7, average="micro")
    # torchmetrics divides in float32.
    assert accuracy(probs, target) == pytest.approx(float(expected), abs=1e-7)


def test_ties_go_to_the_lowest_class():
    assert accuracy(torch.tensor([[0.5, 0.5]]), torch.tensor([0])) == 1.0
    assert accuracy(torch.tensor([[0.5, 0.5]]), torch.tensor([1])) == 0.0


@pytest.mark.parametrize(
    ("dtype", "smallest"),
    [
        (torch.float32, np.finfo(np.float32).smallest_normal),
        (torch.float64, np.finfo(np.float64).smallest_normal),
        (torch.float16, np.finfo(np.float32).smallest_normal),
        (torch.bfloat16, np.finfo(np.float32).smallest_normal),
    ],
)
def test_nll_of_a_zero_is_that_of_the_smallest_normal_number(dtype, smallest):
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype)
    expected = -math.log(float(smallest)) / 2
    assert nll(probs, torch.tensor([0, 1])) == pytest.approx(expected, rel=TOLERANCE)


def test_perfect_predictions_score_plain_zero():
    probs, target = torch.eye(3), torch.arange(3)
    scores = [nll(probs, target), nll_from_log_probs(probs.log(), target), brier(probs, target)]
    assert [math.copysign(1, score) for score in scores] == [1, 1, 1]
    assert scores == [0.0, 0.0, 0.0]


def test_nll_from_log_probs_keeps_what_probabilities_lose():
    logits = torch.tensor([[0.0, -500.0, 3.0]])
    log_probs = logits.double().log_softmax(dim=1)
    expected = 500 + math.log(1 + math.exp(3) + math.exp(-500))
    assert nll_from_log_probs(log_probs, torch.tensor([1])) == pytest.approx(expected, rel=1e-12)
    assert nll(logits.softmax(dim=1), torch.tensor([1])) < 88


def test_nll_from_log_probs_equals_nll_where_both_are_exact():
    probs, target = draw(3, 100, 5)
    expected = nll(probs, target)
    assert nll_from_log_probs(probs.log(), target) == pytest.approx(expected, rel=TOLERANCE)


def test_log_probability_of_minus_infinity_is_infinite_only_when_true():
    log_probs = torch.tensor([[0.0, -torch.inf]])
    assert nll_from_log_probs(log_probs, torch.tensor([0])) == 0.0
    assert nll_from_log_probs(log_probs, torch.tensor([1])) == math.inf


def test_brier_of_two_columns_is_twice_the_binary_score():
    probs, target = draw(4, 50, 2)
    binary = ((probs[:, 1] - target) ** 2).mean()
    assert brier(probs, target) == pytest.approx(2 * float(binary), rel=TOLERANCE)


def test_float32_inputs_are_summed_in_float64():
    probs = torch.tensor([[0.9, 0.1]]).repeat(200_000, 1)
    target = torch.zeros(200_000, dtype=torch.int64)
    expected = -math.log(float(np.float32(0.9)))
    # A float32 sum of 200,000 terms would be off by 1e-5.
    assert nll(probs, target) == pytest.approx(expected, rel=1e-12)
