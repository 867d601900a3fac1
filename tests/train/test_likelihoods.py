"""Likelihoods that a run knows by name: what it trains, and what its metrics are of."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import stats

from gossamer.errors import InvalidData, InvalidValue
from gossamer.train import RunConfig, load_run, train
from gossamer.train.assembly import load_dataset

SETTINGS = {
    "target": "y",
    "epochs": 4,
    "model_options": {"hidden": [16]},
    "method_options": {"sparsity": 0.3},
    "device": "cpu",
}


def table(path, targets, seed=0):
    draws = np.random.default_rng(seed).normal(size=(len(targets), 2))
    lines = [f"{a:.4f},{b:.4f},{y}" for (a, b), y in zip(draws, targets, strict=True)]
    path.write_text("a,b,y\n" + "\n".join(lines) + "\n")
    return str(path)


def counts(rows=150):
    a = np.random.default_rng(0).normal(size=(rows, 2))[:, 0]
    return np.random.default_rng(1).poisson(np.exp(3.0 + 0.5 * a))


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_counts_are_trained_as_they_are(name, tmp_path):
    data = table(tmp_path / "c.csv", counts())
    config = RunConfig(data=data, likelihood=name, **{**SETTINGS, "epochs": 30})
    metrics = train(config, tmp_path / "run").metrics
    dataset = load_dataset(config)
    assert torch.equal(dataset.y_train, dataset.y_train.round())
    assert dataset.preparation.target.scale == (1.0,)
    run = load_run(tmp_path / "run")
    found = run.posterior.predict(dataset.x_test, config.num_samples, seed=config.seed)
    y = dataset.y_test.numpy()
    rates = found.samples.double().numpy()
    if name == "poisson":
        each = stats.poisson(rates).logpmf(y)
        cdf = [stats.poisson(rates).cdf]
    else:
        alpha = found.shape.double().numpy()
        frozen = stats.nbinom(1 / alpha, 1 / (1 + alpha * rates))
        each, cdf = frozen.logpmf(y), [frozen.cdf]
    nll = -(np.logaddexp.reduce(each, axis=0) - np.log(len(rates))).mean()
    assert metrics["nll"] == pytest.approx(nll, rel=1e-5)
    grid = np.arange(0, 400)[:, None, None]
    steps = (cdf[0](grid).mean(1) - (grid[:, 0] >= y)) ** 2
    assert metrics["crps"] == pytest.approx(steps.sum(0).mean(), rel=1e-5)
    # The offset is the log of the mean count, so that training begins at a sensible rate.
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    wanted = float(dataset.y_train.double().mean().log())
    assert written["facts"]["likelihood_options"]["offset"] == pytest.approx(wanted)
    spread = float(np.std(y))
    assert metrics["rmse"] < 1.1 * spread


def test_few_counts_stay_numbers(tmp_path):
    data = table(tmp_path / "c.csv", np.arange(100) % 4)
    dataset = load_dataset(RunConfig(data=data, likelihood="poisson", target="y"))
    assert dataset.task == "regression"
    assert load_dataset(RunConfig(data=data, target="y")).task == "classification"


@pytest.mark.parametrize("wrong", ["-1", "2.5"])
def test_what_is_no_count_is_named_by_its_row(wrong, tmp_path):
    data = table(tmp_path / "c.csv", [*range(7), wrong, *range(50)])
    config = RunConfig(data=data, likelihood="poisson", **SETTINGS)
    with pytest.raises(InvalidData, match=r"target 'y', row 7 = .*: a count must be a whole"):
        load_dataset(config)


@pytest.mark.parametrize("name", ["student_t", "heteroscedastic"])
def test_measured_values(name, tmp_path):
    noise = np.random.default_rng(2).standard_t(3, size=120)
    data = table(tmp_path / "r.csv", [f"{1000 + 50 * v:.3f}" for v in noise])
    config = RunConfig(data=data, likelihood=name, **SETTINGS)
    metrics = train(config, tmp_path / "run").metrics
    dataset = load_dataset(config)
    run = load_run(tmp_path / "run")
    found = run.posterior.predict(dataset.x_test, config.num_samples, seed=config.seed)
    ready = dataset.preparation
    y = ready.target_to_original(dataset.y_test.double()).numpy()
    means = ready.target_to_original(found.samples.double()).numpy()
    stds = ready.scale_to_original(found.noise.double()).numpy()
    if name == "student_t":
        df = found.shape.double().numpy()
        each = stats.t(df, means, stds * np.sqrt((df - 2) / df))
    else:
        each = stats.norm(means, stds)
        assert found.noise.std() > 0.0  # every row has its own
    nll = -(np.logaddexp.reduce(each.logpdf(y), axis=0) - np.log(len(means))).mean()
    assert metrics["nll"] == pytest.approx(nll, rel=1e-5)
    pit = each.cdf(y).mean(0)
    assert metrics["coverage"] == pytest.approx((np.abs(pit - 0.5) <= 0.45).mean())


@pytest.mark.parametrize(
    ("likelihood", "finish", "message"),
    [
        ("student_t", "last_layer", "normal noise, which student_t has not.*finish=temperature"),
        ("heteroscedastic", "last_layer", "no closed form.*finish=temperature"),
        ("negative_binomial", "temperature", "does not apply to counts"),
    ],
)
def test_what_cannot_combine_is_refused_before_training(likelihood, finish, message, tmp_path):
    data = table(tmp_path / "c.csv", counts(60))
    config = RunConfig(data=data, likelihood=likelihood, finish=finish, **SETTINGS)
    with pytest.raises(InvalidValue, match=message):
        train(config, tmp_path / "run")


def test_classes_have_no_such_noise(tmp_path):
    with pytest.raises(InvalidValue, match=r"student_t: does not fit classification"):
        train(RunConfig(data="digits", likelihood="student_t"), tmp_path / "run")
