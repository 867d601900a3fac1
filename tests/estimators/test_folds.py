"""Small tables of classes: rows judge in folds, by fits that never saw them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from gossamer.sklearn import SparseBayesClassifier, folds, training
from gossamer.sklearn.clock import Clock
from gossamer.sklearn.rows import RawRows
from gossamer.train import Examples

SMALL: dict[str, Any] = {"hidden": (16,), "max_steps": 150, "random_state": 0}


def table(count: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Three classes that two columns tell mostly."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 2))
    noisy = x + 0.8 * generator.normal(size=x.shape)
    return x, np.array(["low", "mid", "top"])[np.digitize(noisy[:, 0], [-0.6, 0.6])]


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Examples and posteriors of all fits; the first is that of all rows."""
    seen: list[Any] = []
    plain = training.fit

    def spied(examples: Examples, *args: Any, **settings: Any) -> Any:
        result = plain(examples, *args, **settings)
        seen.append((examples, result.method.posterior()))
        return result

    monkeypatch.setattr(training, "fit", spied)
    return seen


def test_every_row_is_judged_by_a_fit_without_it(judges: list[Any]) -> None:
    x, y = table(120, 0)
    model = SparseBayesClassifier(**SMALL).fit(x, y)
    (whole, _), *others = judges
    assert (len(whole.x), len(others)) == (120, folds.FOLDS)
    assert whole.validation is None
    probs = torch.full((120, 3), math.nan, dtype=torch.float64)
    for examples, posterior in others:
        learnt = {tuple(row) for row in examples.x.tolist()}
        missing = [place for place, row in enumerate(whole.x.tolist()) if tuple(row) not in learnt]
        assert 23 <= len(missing) <= 25
        count = model.posterior_.about["num_samples"]
        found = posterior.predict(whole.x[missing], count, seed=model.posterior_.about["seed"])
        assert bool(probs[missing].isnan().all())  # nobody has judged them yet
        probs[missing] = found.probs.double()
    assert not bool(probs.isnan().any())

    def loss(log_temperature: float) -> float:
        soft = (probs.log() / math.exp(log_temperature)).log_softmax(1)
        nll = -float(soft[torch.arange(120), whole.y].mean())
        std = 0.25 if log_temperature < 0.0 else 1.0
        return nll + 0.5 * (log_temperature / std) ** 2 / 120

    best = minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-8})
    finish = model.posterior_.finish
    assert finish.temperature == pytest.approx(math.exp(best.x), rel=1e-3)
    soft = (probs.log() / finish.temperature).softmax(1)
    own = 1.0 - soft[torch.arange(120), whole.y]
    calibration: Any = finish.calibration
    np.testing.assert_allclose(calibration.scores, own.sort().values, atol=1e-5)


def test_sets_hold_new_labels_and_coverage_says_how_often() -> None:
    held = []
    for seed in range(4):
        model = SparseBayesClassifier(**SMALL).fit(*table(150, seed))
        x, y = table(2000, 100 + seed)
        sets = model.predict_set(x, 0.9)
        held.append(sets[np.arange(2000), np.searchsorted(model.classes_, y)].mean())
        assert abs(model.coverage_[0.9] - 0.9) < 0.07
        assert sets.mean() < 0.9
    # 150 rows each: the mean over four tables varies by about 0.015.
    assert 0.85 < np.mean(held) < 0.96


def test_copies_are_in_one_fold_and_weights_are_copies(judges: list[Any]) -> None:
    x, y = table(60, 0)
    weight = np.random.default_rng(1).integers(1, 4, size=60)
    by_weight = SparseBayesClassifier(**SMALL).fit(x, y, sample_weight=weight)
    for examples, _ in judges[1:]:
        learnt = {tuple(row) for row in examples.x.tolist()}
        total = len(judges[0][0].x) - len(examples.x)
        missing = [row for row in judges[0][0].x.tolist() if tuple(row) not in learnt]
        assert len(missing) == total > 0
    copies = SparseBayesClassifier(**SMALL).fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    assert np.array_equal(by_weight.predict_proba(x), copies.predict_proba(x))
    assert by_weight.coverage_ == copies.coverage_


def test_rows_of_next_to_no_weight_judge_nothing() -> None:
    x, y = table(150, 0)
    wrong = np.arange(150) % 3 == 0
    labels = np.where(wrong, np.roll(np.array(["low", "mid", "top"]), 1)[np.arange(150) % 3], y)
    weight = np.where(wrong, 1e-6, 1.0)
    model = SparseBayesClassifier(**SMALL).fit(x, labels, sample_weight=weight)
    alone = SparseBayesClassifier(**SMALL).fit(x[~wrong], y[~wrong])
    assert model.posterior_.finish.temperature == pytest.approx(
        alone.posterior_.finish.temperature, rel=0.5
    )


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"method": "rigl"}, 120), ({"validation_fraction": 0.0}, 120), ({}, 200)],
)
def test_others_are_fitted_once(judges: list[Any], settings: dict[str, Any], count: int) -> None:
    SparseBayesClassifier(**SMALL, **settings).fit(*table(count, 0))
    assert len(judges) == 1


@pytest.mark.parametrize(
    ("count", "weight", "expected"),
    [(150, None, True), (200, None, False), (18, None, False), (150, 2.0, False), (300, 0.0, True)],
)
def test_copies_and_weights_are_counted_alike(
    count: int, weight: float | None, expected: bool
) -> None:
    x, weights = np.zeros((count, 2)), None
    if weight is not None:  # of every second row
        weights = np.where(np.arange(count) % 2 == 0, weight, 1.0)
    rows = RawRows(x, np.zeros(count, dtype=np.int64), weights)
    assert folds.is_folded("classification", rows) is expected
    assert not folds.is_folded("regression", rows)


def test_fits_share_what_time_is_left() -> None:
    clock = Clock(60.0)
    assert clock.share(6) == pytest.approx(10.0, rel=0.01)
    assert Clock(None).share(6) is None
