"""Who takes part: our estimator with its defaults, and what a user would pick instead.

Each is a function of a table and a seed that fits and forecasts. None is tuned for a set.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import StandardScaler

from gossamer.errors import MissingDependency
from gossamer.experiments.gossamer.tabular.deep_ensemble import DeepEnsemble, EnsembleSettings
from gossamer.experiments.gossamer.tabular.forecast import LEVELS, Forecast
from gossamer.experiments.gossamer.tabular.sets import Table
from gossamer.sklearn import SparseBayesRegressor

_GP_ROWS = 2000
"""Rows of a Gaussian process: its fit takes their third power."""


class Told(NamedTuple):
    """What a contender gave.

    Attributes:
        forecast: Of the rows that judge.
        fit_seconds: Processor time of the fit.
        predict_seconds: That of the forecast.
    """

    forecast: Forecast
    fit_seconds: float
    predict_seconds: float


class Rival(NamedTuple):
    """A contender.

    Attributes:
        key: Its name in files.
        label: Its name for a reader.
        run: From a table and a seed to its answer.
        kind: ``ours``, ``neural`` (and Gaussian processes), or ``other``.
        needs: A package that the tabular extra brings, or ``None``.
    """

    key: str
    label: str
    run: Callable[[Table, int], Told]
    kind: str
    needs: str | None = None


def _timed(fit: Callable[[], Callable[[], Forecast]]) -> Told:
    began = time.process_time()
    forecast = fit()
    fitted = time.process_time()
    found = forecast()
    return Told(found, fitted - began, time.process_time() - fitted)


def _ours(quality: str) -> Callable[[Table, int], Told]:
    def run(data: Table, seed: int) -> Told:
        def fit() -> Callable[[], Forecast]:
            model = SparseBayesRegressor(quality=quality, random_state=seed).fit(data.x, data.y)

            def forecast() -> Forecast:
                found = model.predict_dist(data.x_test)
                intervals = {level: found.interval(level) for level in LEVELS}
                return Forecast(found.mean, found.std, intervals)

            return forecast

        return _timed(fit)

    return run


def _ridge(data: Table, seed: int) -> Told:
    def fit() -> Callable[[], Forecast]:
        scale = StandardScaler().fit(data.x)
        model = BayesianRidge().fit(scale.transform(data.x), data.y)
        return lambda: Forecast.normal(
            *model.predict(scale.transform(data.x_test), return_std=True)
        )

    return _timed(fit)


def _gaussian_process(data: Table, seed: int) -> Told:
    def fit() -> Callable[[], Forecast]:
        scale = StandardScaler().fit(data.x)
        rows = np.random.default_rng(seed).permutation(len(data.x))[:_GP_ROWS]
        lengths = np.ones(data.x.shape[1])
        kernel = ConstantKernel() * RBF(lengths, (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 1e1))
        model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length at its bound: a column without effect
            model.fit(scale.transform(data.x[rows]), data.y[rows])
        return lambda: Forecast.normal(
            *model.predict(scale.transform(data.x_test), return_std=True)
        )

    return _timed(fit)


def _boosting(data: Table, seed: int) -> Told:
    """Gradient boosting, and one more for every end of an interval."""

    def fit() -> Callable[[], Forecast]:
        def model(**options: Any) -> HistGradientBoostingRegressor:
            return HistGradientBoostingRegressor(random_state=seed, **options).fit(data.x, data.y)

        mean = model()
        ends = {
            level: [model(loss="quantile", quantile=q) for q in ((1 - level) / 2, (1 + level) / 2)]
            for level in LEVELS
        }

        def forecast() -> Forecast:
            intervals = {}
            for level, pair in ends.items():
                first, second = (end.predict(data.x_test) for end in pair)
                intervals[level] = (np.minimum(first, second), np.maximum(first, second))
            return Forecast.of_quantiles(mean.predict(data.x_test), intervals)

        return forecast

    return _timed(fit)


def _ngboost(data: Table, seed: int) -> Told:
    package = _package("ngboost")

    def fit() -> Callable[[], Forecast]:
        model = package.NGBRegressor(random_state=seed, verbose=False).fit(data.x, data.y)

        def forecast() -> Forecast:
            found = model.pred_dist(data.x_test).params
            return Forecast.normal(found["loc"], found["scale"])

        return forecast

    return _timed(fit)


def _mapie(data: Table, seed: int) -> Told:
    """Cross-conformal intervals (CV+) around gradient boosting."""
    package = _package("mapie.regression")

    def fit() -> Callable[[], Forecast]:
        model = package.CrossConformalRegressor(
            HistGradientBoostingRegressor(random_state=seed),
            confidence_level=list(LEVELS),
            method="plus",
            cv=10,
            random_state=seed,
        ).fit_conformalize(data.x, data.y)

        def forecast() -> Forecast:
            mean, ends = model.predict_interval(data.x_test)
            intervals = {
                level: (ends[:, 0, place], ends[:, 1, place]) for place, level in enumerate(LEVELS)
            }
            return Forecast.of_quantiles(np.asarray(mean, dtype=np.float64), intervals)

        return forecast

    return _timed(fit)


def _ensemble(data: Table, seed: int) -> Told:
    def fit() -> Callable[[], Forecast]:
        model = DeepEnsemble(EnsembleSettings(), seed).fit(data.x, data.y)
        return lambda: Forecast.normal(*model.predict(data.x_test))

    return _timed(fit)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            name.partition(".")[0], "is not installed", "pip install gossamer[tabular]"
        ) from error


RIVALS: tuple[Rival, ...] = (
    Rival("ours", "**SparseBayesRegressor**, defaults", _ours("fast"), "ours"),
    Rival("ensemble", "deep ensemble of 5", _ensemble, "neural"),
    Rival("gp", "Gaussian process", _gaussian_process, "neural"),
    Rival("ngboost", "NGBoost", _ngboost, "other", "ngboost"),
    Rival("boosting", "gradient boosting, quantiles", _boosting, "other"),
    Rival("mapie", "gradient boosting, MAPIE", _mapie, "other", "mapie"),
    Rival("ridge", "Bayesian ridge", _ridge, "other"),
)
