"""Sets of labels, and what ``calibrate`` does to intervals and to what was known of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gossamer.errors import InvalidData, InvalidValue
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor
from gossamer.train import refit

SMALL: dict[str, Any] = {"hidden": (16,), "max_steps": 150, "random_state": 0}
FEW: dict[str, Any] = {**SMALL, "members": 4}


def _classes(count: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Three classes whose labels are mostly, not always, told by the columns."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 2))
    noisy = x + 0.8 * generator.normal(size=x.shape)
    return x, np.array(["low", "mid", "top"])[np.digitize(noisy[:, 0], [-0.6, 0.6])]


def _numbers(count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, 2))
    return x, x[:, 0] + 0.3 * generator.normal(size=count)


def test_sets_hold_the_label_as_often_as_they_say() -> None:
    model = SparseBayesClassifier(**SMALL, validation_fraction=0.0).fit(*_classes(300, 0))
    x, y = _classes(3000, 2)
    with pytest.raises(InvalidValue, match=r"predict_set: .*19 rows.*; call calibrate"):
        model.predict_set(x)
    model.calibrate(*_classes(400, 1))
    for coverage in (0.8, 0.95):
        found = model.predict_set(x, coverage)
        assert found.shape == (3000, 3)
        assert found.dtype == bool
        inside = found[np.arange(3000), np.searchsorted(model.classes_, y)].mean()
        # 400 rows decide: the coverage of new ones varies by about 0.02 and 0.011.
        assert coverage - 0.05 < inside < coverage + 0.05
        assert found.mean() < 0.9
        assert found[np.arange(3000), model.predict_proba(x).argmax(1)].all()
    posterior = model.posterior_
    assert posterior.preparation is not None
    rows = posterior.preparation.prepare(x[:512])
    own: Any = posterior.predict(rows, posterior.about["num_samples"], seed=posterior.about["seed"])
    assert np.array_equal(own.label_set(0.8).numpy(), model.predict_set(x[:512], 0.8))


def test_rows_that_fit_held_out_decide_sets_where_they_are_enough() -> None:
    x, y = _classes(300, 0)
    model = SparseBayesClassifier(**SMALL).fit(x, y)
    assert model.predict_set(x, 0.95).any(1).all()
    with pytest.raises(InvalidValue, match=r"coverage = 0\.99: needs 99"):
        model.predict_set(x, 0.99)
    with pytest.raises(InvalidValue, match="coverage"):
        model.predict_set(x, 1.0)
    there = model.posterior_
    with pytest.raises(InvalidData, match=r"12 rows: must be 19 .*sets of labels.*30 rows"):
        model.calibrate(x[:12], y[:12])
    assert model.posterior_ is there


def test_few_rows_do_not_throw_a_calibration_away() -> None:
    x, y = _numbers(120)
    model = SparseBayesRegressor(**FEW).fit(x, y)
    before, coverage = model.predict_interval(x), dict(model.coverage_)
    assert set(coverage) == {0.5, 0.9, 0.95}
    with pytest.raises(InvalidData, match=r"18 rows: must be 19 .*120 rows"):
        model.calibrate(x[:18], y[:18])
    assert model.coverage_ == coverage
    assert np.array_equal(model.predict_interval(x), before)
    model.calibrate(x[:19], 3.0 * y[:19])
    assert model.coverage_ == {}
    assert (np.diff(model.predict_interval(x), axis=0) > np.diff(before, axis=0)).all()


def test_few_rows_set_a_spread_that_nothing_else_decided() -> None:
    x, y = _numbers(120)
    model = SparseBayesRegressor("sgd", **SMALL).fit(x, y)
    before = model.predict(x, return_std=True)[1]
    after = model.calibrate(x[:12], 10.0 * y[:12]).predict(x, return_std=True)[1]
    assert (after > 2.0 * before).all()


@pytest.mark.parametrize("count", [19, 20])
def test_levels_that_cannot_be_had_are_left_out(count: int, tmp_path: Path) -> None:
    x, y = _numbers(count)
    model = SparseBayesRegressor(**FEW).fit(x, y)
    assert 0.5 in model.coverage_
    assert 0.95 not in model.coverage_
    model.save(tmp_path / "model.safetensors")
    found = SparseBayesRegressor.load(tmp_path / "model.safetensors")
    assert found.coverage_ == model.coverage_
    assert found.notes_ == model.notes_


def test_held_out_rows_decide_the_intervals_of_every_method() -> None:
    x, y = _numbers(400)
    model = SparseBayesRegressor("ssvi", hidden=(16,), max_steps=300, random_state=0).fit(x, y)
    calibration: Any = model.posterior_.finish.calibration
    assert calibration.rows == 40
    new_x = np.random.default_rng(5).normal(size=(2000, 2))
    new_y = new_x[:, 0] + 0.3 * np.random.default_rng(6).normal(size=2000)
    lower, upper = model.predict_interval(new_x, 0.8)
    # 40 rows decide: the coverage of new ones varies by 0.06.
    assert 0.65 < ((lower <= new_y) & (new_y <= upper)).mean() < 0.95


@pytest.mark.parametrize("weight", [1e-6, 1e-3])
def test_rows_of_next_to_no_weight_widen_nothing(weight: float) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    y, bad = x[:, 0] + 0.1 * generator.normal(size=200), np.arange(200) % 4 == 0
    y[bad] += 20.0 * generator.normal(size=50)
    settings: dict[str, Any] = {"hidden": (64,), "max_steps": 300, "random_state": 0}
    model = SparseBayesRegressor(**settings).fit(x, y, sample_weight=np.where(bad, weight, 1.0))
    alone = SparseBayesRegressor(**settings).fit(x[~bad], y[~bad])
    for one in (model, alone):
        lower, upper = one.predict_interval(x[~bad], 0.9)
        assert 0.2 < (upper - lower).mean() < 1.5
        assert one.predict(x, return_std=True)[1].mean() < 0.5


def test_a_refit_counts_held_out_rows_as_their_weights_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    plain = refit.all_rows

    def spied(examples: Any) -> Any:
        seen.append((examples, plain(examples)))
        return seen[-1][1]

    monkeypatch.setattr(refit, "all_rows", spied)
    x, y = _classes(200, 0)
    weight = 1e-3 * np.random.default_rng(1).uniform(0.5, 1.5, 200)
    SparseBayesClassifier(**SMALL, refit=True).fit(x, y, sample_weight=weight)
    first, second = seen[0]
    held_out = float(second.weight.sum() - first.weight.sum())
    assert held_out == pytest.approx(weight.sum() - float(first.weight.sum()), rel=1e-4)
    assert 0.0 < held_out < 0.2 * weight.sum()
