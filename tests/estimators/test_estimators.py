"""Estimators in a scikit-learn user's hands: frames, pipelines, searches, files."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

import gossamer
from gossamer.errors import CheckpointError, InvalidValue
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor

SMALL: dict[str, Any] = {"hidden": (16,), "sparsity": 0.5, "max_steps": 150, "random_state": 0}
FEW: dict[str, Any] = {**SMALL, "members": 4}
"""Of the regressor, whose networks are many by default."""
Estimator = SparseBayesClassifier | SparseBayesRegressor
BOTH = pytest.mark.parametrize("kind", [SparseBayesRegressor, SparseBayesClassifier])


def rows(kind: type[Estimator], count: int = 120) -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.random.default_rng(0).normal(size=(count, 3))
    y = 1000.0 + 50.0 * (x[:, 0] + 0.5 * x[:, 1])
    return x, y if kind is SparseBayesRegressor else np.where(y > 1000.0, "high", "low")


def table() -> tuple[dict[str, Any], NDArray[Any]]:
    generator = np.random.default_rng(1)
    size = generator.normal(size=150)
    colour = generator.choice(["red", "blue"], size=150)
    sold = np.datetime64("2024-01-01") + generator.integers(0, 300, size=150)
    size_there = np.where(np.arange(150) % 15 == 0, np.nan, size)
    columns = {
        "size": size_there,
        "colour": colour,
        "new": generator.random(150) < 0.5,
        "sold": sold.astype("datetime64[us]"),
    }
    return columns, np.where(colour == "red", 3.0, -3.0) + size


def answer(model: Estimator, x: Any) -> NDArray[Any]:
    is_real = isinstance(model, SparseBayesRegressor)
    return np.asarray(model.predict(x) if is_real else model.predict_proba(x))


@BOTH
def test_the_same_seed_gives_the_same_bits(kind: type[Estimator]) -> None:
    x, y = rows(kind)
    model = kind(**FEW).fit(x, y)
    first = answer(model, x)
    assert np.array_equal(first, answer(model, x))
    assert np.array_equal(first, answer(clone(model).fit(x, y), x))
    assert np.array_equal(first, answer(clone(model).fit(x[::-1], y[::-1]), x))
    assert not np.array_equal(first, answer(kind(**{**FEW, "random_state": 1}).fit(x, y), x))
    one_by_one = np.concatenate([answer(model, x[i : i + 1]) for i in range(20)])
    assert np.array_equal(first[:20], one_by_one)
    with ThreadPoolExecutor(2) as pool:
        assert all(np.array_equal(first, other) for other in pool.map(answer, [model] * 4, [x] * 4))


@BOTH
def test_pickle_joblib_and_file_give_the_same_answers(
    kind: type[Estimator], tmp_path: Path
) -> None:
    x, y = rows(kind)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = kind(**FEW, method_options={"average": 0.2}).fit(frame, y)
    first = answer(model, frame)
    assert np.array_equal(first, answer(pickle.loads(pickle.dumps(model)), frame))
    joblib.dump(model, tmp_path / "model.joblib")
    assert np.array_equal(first, answer(joblib.load(tmp_path / "model.joblib"), frame))

    model.save(tmp_path / "model.safetensors")
    found = kind.load(tmp_path / "model.safetensors")
    assert np.array_equal(first, answer(found, frame))
    assert found.get_params() == model.get_params()
    assert found.history_ == model.history_
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    columns = gossamer.load(tmp_path / "model.safetensors").predict_table(frame)
    if isinstance(model, SparseBayesClassifier):
        assert columns["label"] == model.predict(frame).tolist()
        assert found.classes_.tolist() == ["high", "low"]
    else:
        np.testing.assert_allclose(columns["mean"], first, rtol=1e-5)
    other = SparseBayesClassifier if kind is SparseBayesRegressor else SparseBayesRegressor
    with pytest.raises(CheckpointError, match="not of"):
        other.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pd", "pl", "arrow"])
def test_frames_of_all_sorts_are_read_alike(make: Any) -> None:
    columns, y = table()
    model = SparseBayesRegressor(**{**FEW, "max_steps": 600}).fit(make(columns), y)
    assert model.feature_names_in_.tolist() == list(columns)
    assert model.score(make(columns), y) > 0.8
    expected = SparseBayesRegressor(**{**FEW, "max_steps": 600}).fit(pd.DataFrame(columns), y)
    found, same = model.predict(make(columns)), expected.predict(pd.DataFrame(columns))
    np.testing.assert_allclose(found, same, rtol=1e-6)
    assert model.feature_importances_.shape == (4,)
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert model.selected_features_.dtype == bool


def test_objects_and_a_new_level() -> None:
    columns, y = table()
    x = np.stack([columns["colour"].astype(object), columns["size"].astype(object)], axis=1)
    model = SparseBayesRegressor(**FEW).fit(x, y)
    with pytest.warns(UserWarning, match="green"):
        assert np.isfinite(model.predict(np.array([["green", 0.1]], dtype=object))).all()
    strict = SparseBayesRegressor(**FEW, unknown="error").fit(x, y)
    with pytest.raises(ValueError, match="green"):
        strict.predict(np.array([["green", 0.1]], dtype=object))
    with pytest.raises(ValueError, match="missing"):
        SparseBayesRegressor(**FEW, missing="error").fit(x, y)


def test_in_a_pipeline_with_a_column_transformer() -> None:
    columns, y = table()
    frame = pd.DataFrame(columns)
    encode = ColumnTransformer(
        [("number", StandardScaler(), ["size"]), ("text", OneHotEncoder(), ["colour"])]
    )
    model = make_pipeline(encode, SparseBayesRegressor(**{**FEW, "max_steps": 600}))
    assert model.fit(frame, y).score(frame, y) > 0.8


def test_searches_and_cross_validation() -> None:
    x, y = rows(SparseBayesClassifier)
    scores = cross_val_score(SparseBayesClassifier(**SMALL), x, y, cv=3)
    assert scores.mean() > 0.85
    search = GridSearchCV(SparseBayesClassifier(**SMALL), {"hidden": [(8,), (16,)]}, cv=2)
    assert search.fit(x, y).best_params_["hidden"] in ((8,), (16,))


def test_weights_that_are_no_whole_numbers_count_in_proportion() -> None:
    # Every x has a 0 of weight 1/2 and a 4 of weight 3/2: the mean is 3.
    x = np.repeat(np.random.default_rng(0).normal(size=(100, 1)), 2, axis=0)
    y, weight = np.tile([0.0, 4.0], 100), np.tile([0.5, 1.5], 100)
    model = SparseBayesRegressor(**{**FEW, "max_steps": 1000}).fit(x, y, sample_weight=weight)
    assert model.predict(x).mean() == pytest.approx(3.0, abs=0.25)
    plain = SparseBayesRegressor(**{**FEW, "max_steps": 1000}).fit(x, y)
    assert plain.predict(x).mean() == pytest.approx(2.0, abs=0.25)


def test_balanced_classes_raise_the_rare_one() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 1))
    y = (x[:, 0] + generator.normal(size=400) > 2.2).astype(int)
    plain = SparseBayesClassifier(**SMALL).fit(x, y)
    balanced = SparseBayesClassifier(**SMALL, class_weight="balanced").fit(x, y)
    assert plain.predict(x).mean() < y.mean() * 1.5
    recall = balanced.predict(x)[y == 1].mean()
    assert recall > max(0.7, plain.predict(x)[y == 1].mean())


def test_several_outputs_have_answers_of_their_own() -> None:
    x, y = rows(SparseBayesRegressor)
    both = np.stack([y, -0.01 * y], axis=1)
    model = SparseBayesRegressor(**{**FEW, "max_steps": 800}).fit(x, both)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (120, 2)
    assert model.score(x, both) > 0.8
    assert model.predict_quantiles(x, [0.1, 0.9]).shape == (120, 2, 2)
    assert model.sample_y(x, 5).shape == (120, 2, 5)
    assert (std[:, 0] > 10 * std[:, 1]).all()


def test_the_parts_of_a_regression_agree() -> None:
    x, y = rows(SparseBayesRegressor)
    model = SparseBayesRegressor(**FEW).fit(x, y)
    dist, parts = model.predict_dist(x), model.predict_uncertainty(x)
    lower, upper = model.predict_interval(x, coverage=0.8)
    # Of 120 left-out rows: a staircase of 121 steps.
    np.testing.assert_allclose(dist.cdf(upper) - dist.cdf(lower), 0.8, atol=1 / 121)
    assert np.array_equal(model.predict_quantiles(x, 0.1), lower)
    np.testing.assert_allclose(parts["std"], np.hypot(parts["epistemic"], parts["aleatoric"]))
    np.testing.assert_allclose(dist.means.mean(0), dist.mean, rtol=1e-5)
    assert model.sample_y(x, 3).shape == (120, 3)


def test_calibration_scales_the_spread_to_what_rows_show() -> None:
    x, y = rows(SparseBayesRegressor)
    model = SparseBayesRegressor(**FEW, validation_fraction=0.0).fit(x, y)
    mean, before = model.predict(x, return_std=True)
    far = mean + 5.0 * before * np.random.default_rng(1).normal(size=len(x))
    assert model.calibrate(x, far) is model
    after_mean, after = model.predict(x, return_std=True)
    np.testing.assert_allclose(after_mean, mean, rtol=1e-6)
    assert 3.5 < np.median(after / before) < 6.0


def test_calibration_of_classes_keeps_labels() -> None:
    x, y = rows(SparseBayesClassifier)
    model = SparseBayesClassifier(**SMALL).fit(x, y)
    labels, before = model.predict(x), model.predict_uncertainty(x)["entropy"].mean()
    random = np.random.default_rng(0).choice(["high", "low"], size=len(x))
    model.calibrate(x, random)
    assert np.array_equal(model.predict(x), labels)
    assert model.predict_uncertainty(x)["entropy"].mean() > before
    draws = model.sample_y(x, 2000)
    np.testing.assert_allclose((draws == "high").mean(1), model.predict_proba(x)[:, 0], atol=0.05)


@BOTH
def test_partial_fits_end_where_one_fit_ends(kind: type[Estimator]) -> None:
    x, y = rows(kind)
    model = kind(**FEW).partial_fit(x[:60], y[:60]).partial_fit(x[60:], y[60:])
    assert np.array_equal(answer(model, x), answer(kind(**FEW).fit(x, y), x))
    with pytest.raises(InvalidValue, match="partial_fit"):
        pickle.loads(pickle.dumps(model)).partial_fit(x, y)


def _network(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 12), nn.Tanh(), nn.Linear(12, outputs))


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    x, y = rows(SparseBayesRegressor)
    settings = {**SMALL, "hidden": (1,)}
    model = SparseBayesRegressor("ssvi", module=_network, **settings).fit(x, y)
    assert np.array_equal(model.predict(x), pickle.loads(pickle.dumps(model)).predict(x))
    model.save(tmp_path / "own.safetensors")
    found = SparseBayesRegressor.load(tmp_path / "own.safetensors", module=_network(3, 1))
    assert np.array_equal(model.predict(x), found.predict(x))
    with pytest.raises(InvalidValue, match="network"):
        SparseBayesRegressor.load(tmp_path / "own.safetensors")
    given = SparseBayesRegressor("rigl", module=_network(3, 1), **settings).fit(x, y)
    network = gossamer.to_deterministic(given.posterior_.network())
    first, last = (network[place].weight.detach().double().abs() for place in (0, -1))
    paths = (last @ first).sum(0)
    np.testing.assert_allclose(given.feature_importances_, paths / paths.sum(), rtol=1e-5)
    assert np.array_equal(given.selected_features_, first.sum(0).numpy() > 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("quality", "superb"), ("method", "magic"), ("max_steps", 0), ("n_jobs", 0), ("missing", "?")],
)
def test_a_wrong_argument_is_named(name: str, value: Any) -> None:
    x, y = rows(SparseBayesRegressor)
    with pytest.raises(ValueError, match=name):
        SparseBayesRegressor(**{**FEW, name: value}).fit(x, y)


def test_a_fit_that_failed_has_not_fitted() -> None:
    x, y = rows(SparseBayesRegressor)
    model = SparseBayesRegressor(**{**FEW, "quality": "superb"})
    with pytest.raises(ValueError, match="quality"):
        model.fit(x, y)
    with pytest.raises(NotFittedError):
        model.predict(x)


def test_torch_generator_and_threads_stay_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = rows(SparseBayesRegressor)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    model = SparseBayesRegressor(**FEW, n_jobs=2, quality="good").fit(x, y)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert model.posterior_.max_samples == 4
    assert capsys.readouterr().out == ""
