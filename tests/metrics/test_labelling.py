"""Orders and confusions of classes against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from gossamer.metrics import average_precision, confusion_matrix, mae, r2, roc_auc


def draw(rows: int, classes: int, seed: int, *, ties: bool = False) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[y]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if ties:
        # In eighths, which are exact, and whose rows still add up to 1.
        probs = np.stack([p := np.round(probs[:, 0] * 8) / 8, 1 - p], 1)
    return torch.from_numpy(probs), torch.from_numpy(y)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_two_classes(seed: int, ties: bool) -> None:
    probs, y = draw(200, 2, seed, ties=ties)
    score = probs[:, 1].numpy()
    assert roc_auc(probs, y) == pytest.approx(sk.roc_auc_score(y, score), abs=1e-12)
    wanted = sk.average_precision_score(y, score)
    assert average_precision(probs, y) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("classes", [3, 7])
def test_several_classes(classes: int) -> None:
    probs, y = draw(300, classes, 5)
    given = probs.numpy()
    wanted = sk.roc_auc_score(y, given, multi_class="ovr", average="macro")
    assert roc_auc(probs, y) == pytest.approx(wanted, abs=1e-12)
    wanted = sk.average_precision_score(np.eye(classes)[y.numpy()], given, average="macro")
    assert average_precision(probs, y) == pytest.approx(wanted, abs=1e-12)
    assert confusion_matrix(probs, y).tolist() == sk.confusion_matrix(y, given.argmax(1)).tolist()


def test_classes_that_no_row_has_are_left_out() -> None:
    probs, y = draw(100, 4, 1)
    kept = y != 2
    found, labels = probs[kept], y[kept]
    each = [sk.roc_auc_score(labels == c, found[:, c]) for c in (0, 1, 3)]
    assert roc_auc(found, labels) == pytest.approx(np.mean(each), abs=1e-12)
    assert roc_auc(probs[:1], y[:1]) is None
    assert average_precision(probs[:1], y[:1]) is None


def test_errors_of_numbers() -> None:
    rng = np.random.default_rng(0)
    for shape in ((50,), (50, 3)):
        y, mean = rng.normal(size=shape), rng.normal(size=shape)
        given = torch.from_numpy(mean), torch.from_numpy(y)
        assert mae(*given) == pytest.approx(sk.mean_absolute_error(y, mean), abs=1e-12)
        assert r2(*given) == pytest.approx(sk.r2_score(y, mean), abs=1e-12)
    assert r2(torch.zeros(4), torch.ones(4)) is None
