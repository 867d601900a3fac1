from __future__ import annotations

import json

import pytest
import torch

from gossamer import metrics
from gossamer.errors import InvalidData, InvalidValue
from gossamer.metrics import ClassificationMetrics, RegressionMetrics


def classes(num_rows=101, num_classes=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num_rows, num_classes, generator=generator)
    target = torch.randint(num_classes, (num_rows,), generator=generator)
    return logits.to(dtype).softmax(dim=1), target


def mixture(num_rows=101, outputs=()):
    generator = torch.Generator().manual_seed(1)
    means = torch.randn(3, num_rows, *outputs, generator=generator)
    stds = torch.rand(3, num_rows, *outputs, generator=generator) + 0.1
    return means, stds, torch.randn(num_rows, *outputs, generator=generator)


@pytest.mark.parametrize("size", [1, 40, 101])
def test_classification_batches_give_the_functions_values(size):
    probs, target = classes()
    shell = ClassificationMetrics(num_bins=10)
    for start in range(0, 101, size):
        shell.update(probs[start : start + size], target[start : start + size])
    expected = {
        "accuracy": metrics.accuracy(probs, target),
        "nll": metrics.nll(probs, target),
        "brier": metrics.brier(probs, target),
        "ece": metrics.ece(probs, target, 10),
        "adaptive_ece": metrics.adaptive_ece(probs, target, 10),
        "classwise_ece": metrics.classwise_ece(probs, target, 10),
        "marginal_calibration_error": metrics.marginal_calibration_error(probs, target),
    }
    assert shell.compute() == expected  # the same rows in the same order: the same bits
    assert json.loads(json.dumps(expected, allow_nan=False)) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_predictions_are_kept_in_float32_apart_from_the_callers_memory(dtype):
    probs, target = classes(dtype=dtype)
    shell = ClassificationMetrics()
    shell.update(probs.requires_grad_(), target)
    before = shell.compute()
    with torch.no_grad():
        probs.fill_(0.25)
        target.fill_(0)
    assert shell.compute() == before
    assert [(kept.dtype, kept.requires_grad) for kept in shell._probs] == [(torch.float32, False)]


@pytest.mark.parametrize("outputs", [(), (2,)])
@pytest.mark.parametrize("size", [1, 40, 101])
def test_regression_batches_give_the_functions_values(outputs, size):
    means, stds, target = mixture(outputs=outputs)
    shell = RegressionMetrics(level=0.8)
    for start in range(0, 101, size):
        rows = slice(start, start + size)
        shell.update(means[:, rows], stds[:, rows], target[rows])
    expected = {
        "rmse": metrics.rmse(means.double().mean(dim=0), target),
        "nll": metrics.gaussian_mixture_nll(means, stds, target),
        "crps": metrics.gaussian_mixture_crps(means, stds, target),
        "coverage": metrics.gaussian_mixture_coverage(means, stds, target, level=0.8),
    }
    assert shell.compute() == pytest.approx(expected, rel=1e-12)  # float64 sums in another order


def test_reset_forgets():
    shell, other = ClassificationMetrics(), RegressionMetrics()
    shell.update(*classes())
    shell.reset()
    shell.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert shell.compute()["accuracy"] == 1.0
    other.update(*mixture(outputs=(2,)))
    other.reset()
    other.update(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1))
    assert other.compute()["rmse"] == 1.0


def test_a_refused_batch_leaves_the_sums_alone():
    shell = RegressionMetrics()
    shell.update(*mixture())
    before = shell.compute()
    with pytest.raises(InvalidData, match=r"target\.shape"):
        shell.update(*mixture(outputs=(2,)))
    means, stds, target = mixture()
    with pytest.raises(InvalidData, match=r"stds\[0, 0\]"):
        shell.update(means, -stds, target)
    assert shell.compute() == before


def test_bad_use_is_refused():
    for empty in (ClassificationMetrics(), RegressionMetrics()):
        with pytest.raises(InvalidData, match="batches = 0: must be at least 1; call update"):
            empty.compute()
    shell = ClassificationMetrics()
    shell.update(*classes(num_classes=4))
    with pytest.raises(InvalidData, match=r"probs\.shape = \(101, 3\): must have C = 4"):
        shell.update(*classes(num_classes=3))
    with pytest.raises(InvalidValue, match=r"level = 0: must lie in \(0, 1\)"):
        RegressionMetrics(level=0)
    with pytest.raises(InvalidValue, match="num_bins = 0"):
        ClassificationMetrics(num_bins=0)
