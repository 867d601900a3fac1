"""Split conformal and CV+ as MAPIE has them. MAPIE is no requirement: install it to run these."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

from gossamer.prediction.conformal.cross import cv_plus
from gossamer.prediction.conformal.real import RealCalibration, standardised

pytestmark = pytest.mark.slow


def rows(n, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, 3))
    return x, x.sum(1) + generator.normal(size=n)


class Given(RegressorMixin, BaseEstimator):
    """A model that was fitted elsewhere: its mean is the sum of the inputs."""

    def fit(self, x, y):
        self.n_features_in_ = x.shape[1]
        return self

    def predict(self, x):
        return x.sum(1)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_split_conformal(coverage) -> None:
    mapie = pytest.importorskip("mapie.regression")
    x, y = rows(150)
    new, _ = rows(20, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mapie.SplitConformalRegressor(
            Given().fit(x, y), confidence_level=coverage, prefit=True
        )
        truth = model.conformalize(x, y).predict_interval(new)[1][:, :, 0]
    one = torch.ones(150, dtype=torch.float64)
    z = standardised(torch.tensor(x.sum(1)), one, torch.tensor(y))
    mean = torch.tensor(new.sum(1))
    found = RealCalibration.of(z).interval(mean, torch.ones_like(mean), coverage)
    np.testing.assert_allclose(torch.stack(found, 1).numpy(), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("folds", [5, 40])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_cv_plus(folds, coverage) -> None:
    mapie = pytest.importorskip("mapie.regression")
    x, y = rows(40)
    new, _ = rows(20, 1)
    parts = KFold(folds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mapie.CrossConformalRegressor(
            LinearRegression(), confidence_level=coverage, method="plus", cv=parts
        )
        truth = model.fit_conformalize(x, y).predict_interval(new)[1][:, :, 0]
    fold, mean, at_new = np.empty(40, int), np.empty(40), []
    for number, (seen, left) in enumerate(parts.split(x)):
        fitted = LinearRegression().fit(x[seen], y[seen])
        fold[left], mean[left] = number, fitted.predict(x[left])
        at_new.append(fitted.predict(new))
    given = [torch.tensor(a) for a in (y, fold, mean, np.stack(at_new))]
    found = cv_plus(*given, coverage)
    np.testing.assert_allclose(torch.stack(found, 1).numpy(), truth, rtol=0, atol=1e-10)
