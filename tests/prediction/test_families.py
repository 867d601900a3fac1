"""Predictions of every likelihood of numbers, against scipy.stats and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.likelihoods import Heteroscedastic, NegativeBinomial, StudentT, make_likelihood
from gossamer.prediction.combine import combine, merge
from gossamer.prediction.prediction import RealPrediction

DOUBLE = torch.float64
OUTPUTS = torch.tensor([[0.3, 2.0, -1.0], [0.9, 2.5, 3.0], [0.1, -1.0, 0.5]], dtype=DOUBLE)
"""Three samples of three rows."""


def likelihoods():
    return {
        "gaussian": gs.Gaussian(0.7),
        "student_t": StudentT(scale=0.7, degrees_of_freedom=3.5),
        "near_two": StudentT(scale=0.3, degrees_of_freedom=2.1),
        "poisson": gs.Poisson(),
        "shifted": gs.Poisson(offset=2.0),
        "negative_binomial": NegativeBinomial(0.6),
        "small": NegativeBinomial(1e-4, offset=1.0),
    }


def truth(name, outputs):
    """Frozen distributions of scipy of the samples of one row."""
    if name == "gaussian":
        return [stats.norm(o, 0.7) for o in outputs]
    if name == "student_t":
        return [stats.t(3.5, o, 0.7) for o in outputs]
    if name == "near_two":
        return [stats.t(2.1, o, 0.3) for o in outputs]
    if name in ("poisson", "shifted"):
        return [stats.poisson(np.exp(o + 2.0 * (name == "shifted"))) for o in outputs]
    alpha, offset = (0.6, 0.0) if name == "negative_binomial" else (1e-4, 1.0)
    means = np.exp(outputs + offset)
    return [stats.nbinom(1 / alpha, 1 / (1 + alpha * m)) for m in means]


@pytest.fixture(params=list(likelihoods()))
def case(request):
    found = combine(likelihoods()[request.param], OUTPUTS)
    assert isinstance(found, RealPrediction)
    rows = [truth(request.param, OUTPUTS[:, row].numpy()) for row in range(3)]
    target = torch.tensor([1.0, 4.0, 0.0], dtype=DOUBLE)
    return found, rows, target


def mass(part, value):
    return part.logpmf(value) if hasattr(part.dist, "pmf") else part.logpdf(value)


def test_mean_and_std(case):
    found, rows, _ = case
    for row, parts in enumerate(rows):
        means, variances = np.array([p.mean() for p in parts]), np.array([p.var() for p in parts])
        assert float(found.mean[row]) == pytest.approx(means.mean(), rel=1e-12)
        total = variances.mean() + means.var()
        assert float(found.std[row]) == pytest.approx(total**0.5, rel=1e-10)
        assert float(found.aleatoric[row]) == pytest.approx(variances.mean() ** 0.5, rel=1e-10)


def test_log_prob(case):
    found, rows, target = case
    values = found.log_prob(target)
    for row, parts in enumerate(rows):
        wanted = np.logaddexp.reduce([mass(p, float(target[row])) for p in parts]) - np.log(3)
        assert float(values[row]) == pytest.approx(wanted, rel=1e-8)


def test_distribution_function_and_quantiles(case):
    found, rows, target = case
    values = found.cdf(target)
    for row, parts in enumerate(rows):
        wanted = np.mean([p.cdf(float(target[row])) for p in parts])
        assert float(values[row]) == pytest.approx(wanted, rel=1e-9)
    for probability in (0.001, 0.05, 0.5, 0.95, 0.999):
        at = found.quantile(probability)
        for row, parts in enumerate(rows):
            here = np.mean([p.cdf(float(at[row])) for p in parts])
            if found.counts:
                below = np.mean([p.cdf(float(at[row]) - 1) for p in parts])
                assert below < probability <= here
            else:
                assert here == pytest.approx(probability, abs=1e-9)


def test_interval_holds_its_mass(case):
    found, rows, _ = case
    lower, upper = found.interval(0.9)
    for row, parts in enumerate(rows):
        step = 1 if found.counts else 0
        held = np.mean([p.cdf(float(upper[row])) - p.cdf(float(lower[row]) - step) for p in parts])
        assert held >= 0.9 - 1e-9 if found.counts else held == pytest.approx(0.9, abs=1e-9)


def test_crps(case):
    found, rows, target = case
    values = found.crps(target)
    for row, parts in enumerate(rows):
        y = float(target[row])

        def cdf(x, parts=parts):
            return np.mean([p.cdf(x) for p in parts], axis=0)

        if found.counts:
            k = np.arange(0, 4000)
            wanted = ((cdf(k) - (k >= y)) ** 2).sum()
        else:
            below = integrate.quad(lambda x: cdf(x) ** 2, -np.inf, y, epsabs=1e-10, limit=400)[0]
            above = integrate.quad(lambda x: (1 - cdf(x)) ** 2, y, np.inf, epsabs=1e-10, limit=400)[
                0
            ]
            wanted = below + above
        assert float(values[row]) == pytest.approx(wanted, rel=2e-5)


def test_crps_of_many_far_components_of_a_t():
    means = torch.linspace(-60.0, 60.0, 25, dtype=DOUBLE)[:, None]
    likelihood = StudentT(scale=0.2, degrees_of_freedom=5.0)
    found = combine(likelihood, means)
    grid = np.linspace(-200, 200, 800_001)
    cdf = stats.t(5.0, means.numpy(), 0.2).cdf(grid).mean(0)
    wanted = integrate.trapezoid((cdf - (grid >= 3.0)) ** 2, grid)
    assert float(found.crps(torch.tensor([3.0]))[0]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_crps_of_large_counts_takes_a_part_of_them(name):
    log_rate = torch.log(torch.tensor([[40_000.0], [60_000.0]], dtype=DOUBLE))
    options = {"dispersion": 0.05} if name == "negative_binomial" else {}
    found = combine(make_likelihood(name, **options), log_rate)
    k = np.arange(0, 300_000)
    if options:
        parts = [stats.nbinom(20.0, 1 / (1 + 0.05 * r)).cdf(k) for r in (4e4, 6e4)]
    else:
        parts = [stats.poisson(r).cdf(k) for r in (4e4, 6e4)]
    wanted = ((np.mean(parts, axis=0) - (k >= 45_000)) ** 2).sum()
    assert float(found.crps(torch.tensor([45_000.0]))[0]) == pytest.approx(wanted, rel=1e-3)


def test_columns_share_a_draw():
    found = combine(StudentT(0.5, 4.0), torch.randn(3, 5, 2, dtype=DOUBLE))
    y = torch.randn(5, 2, dtype=DOUBLE)
    each = stats.t(4.0, found.samples.numpy(), 0.5).logpdf(y.numpy()).sum(-1)
    wanted = np.logaddexp.reduce(each, axis=0) - np.log(3)
    assert found.log_prob(y).numpy() == pytest.approx(wanted, rel=1e-9)
    assert found.crps(y).shape == (5, 2)


def test_units_and_mixtures_keep_the_shape():
    first = combine(StudentT(0.5, 4.0), OUTPUTS)
    scaled = first.to_scale(100.0, 20.0)
    y = torch.tensor([1.0, 2.0, 0.0], dtype=DOUBLE)
    assert scaled.log_prob(100.0 + 20.0 * y).numpy() == pytest.approx(
        (first.log_prob(y) - np.log(20.0)).numpy(), rel=1e-9
    )
    assert scaled.crps(100.0 + 20.0 * y).numpy() == pytest.approx(20.0 * first.crps(y).numpy())
    both = merge([first, combine(StudentT(1.0, 9.0), OUTPUTS)])
    parts = [stats.t(4.0, OUTPUTS.numpy(), 0.5), stats.t(9.0, OUTPUTS.numpy(), 1.0)]
    wanted = np.mean([p.cdf(y.numpy()).mean(0) for p in parts], axis=0)
    assert both.cdf(y).numpy() == pytest.approx(wanted, rel=1e-9)


def test_heteroscedastic_is_the_noise_head():
    outputs = torch.randn(3, 6, 2, dtype=DOUBLE)
    ours, wanted = combine(Heteroscedastic(), outputs), combine(gs.Gaussian("head"), outputs)
    for name in ("mean", "std", "samples", "noise"):
        assert torch.equal(getattr(ours, name), getattr(wanted, name))
    target = torch.randn(6, dtype=DOUBLE)
    value = Heteroscedastic().log_lik(outputs[0], target)
    assert torch.equal(value, gs.Gaussian("head").log_lik(outputs[0], target))


class TestLogLik:
    def test_student(self):
        likelihood = StudentT(0.4, 3.0)
        output, target = torch.randn(5, 1, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
        wanted = stats.t(3.0, output[:, 0].numpy(), 0.4).logpdf(target.numpy())
        assert likelihood.log_lik(output, target).numpy() == pytest.approx(wanted, rel=1e-7)

    def test_negative_binomial(self):
        output, target = torch.randn(5, 1, dtype=DOUBLE), torch.tensor([0, 3, 7, 1, 40])
        wanted = stats.nbinom(2.0, 1 / (1 + 0.5 * output[:, 0].exp().numpy())).logpmf(
            target.numpy()
        )
        found = NegativeBinomial(0.5).log_lik(output, target)
        assert found.numpy() == pytest.approx(wanted, rel=1e-7)

    def test_float32_survives_a_small_dispersion(self):
        found = NegativeBinomial(1e-6).log_lik(torch.full((1, 1), 2.0), torch.tensor([6]))
        assert float(found) == pytest.approx(stats.poisson(np.exp(2.0)).logpmf(6), rel=1e-4)

    @pytest.mark.parametrize("name", ["student_t", "negative_binomial"])
    def test_what_is_learnt_has_a_gradient(self, name):
        likelihood = make_likelihood(name)
        loss = -likelihood.log_lik(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 2.0, 9.0])).sum()
        loss.backward()
        found = [parameter.grad for parameter in likelihood.parameters()]
        assert len(found) == (2 if name == "student_t" else 1)
        assert all(grad is not None and float(grad) != 0.0 for grad in found)

    @pytest.mark.parametrize("wrong", [2.0, 1.0, float("inf"), float("nan")])
    def test_degrees_of_freedom_without_variance(self, wrong):
        with pytest.raises(InvalidValue, match=r"degrees_of_freedom.*above 2"):
            StudentT(degrees_of_freedom=wrong)

    def test_other_words_than_learn(self):
        with pytest.raises(UnknownName, match="dispersion"):
            NegativeBinomial("head")
        with pytest.raises(InvalidValue, match="scale = -1"):
            StudentT(scale=-1.0)
        with pytest.raises(InvalidValue, match="offset"):
            gs.Poisson(offset=float("inf"))

    @pytest.mark.parametrize("wrong", [-1.0, 0.5, float("nan")])
    def test_counts(self, wrong):
        with pytest.raises(InvalidData, match="negative_binomial target must be a whole"):
            NegativeBinomial().log_lik(torch.zeros(2), torch.tensor([1.0, wrong]))


@pytest.mark.parametrize("name", ["student_t", "heteroscedastic", "negative_binomial", "poisson"])
def test_a_file_brings_the_likelihood_back(name, tmp_path):
    columns = 2 if name == "heteroscedastic" else 1
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, columns))
    method = gs.build("ssvi", net, num_data=20, total_steps=5, likelihood=name, sparsity=0.5)
    x, y = torch.randn(20, 3), torch.randint(4, (20,)).float()
    for _ in range(5):
        method.step((x, y))
    before = gs.predict(method, x)
    method.posterior().save(tmp_path / "p.safetensors")
    after = gs.load(tmp_path / "p.safetensors", network=net).predict(x)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.log_prob(y), after.log_prob(y))


def test_last_layer_is_refused_and_temperature_widens():
    x, y = torch.randn(40, 3), torch.randn(40)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    likelihood = StudentT(0.1, 5.0)
    with pytest.raises(InvalidValue, match=r"student_t: has no Gaussian last layer.*use tempered"):
        gs.last_layer(net, (x, y), likelihood=likelihood)
    found = gs.tempered(net, (x, y), likelihood=likelihood)
    plain = gs.predict(net, x, likelihood=likelihood)
    ratio = found.predict(x).std / plain.std
    assert ratio.numpy() == pytest.approx(np.full(40, found.finish.temperature), rel=1e-5)
    assert found.finish.temperature > 2.0


def test_targets_of_another_shape_are_refused():
    found = combine(gs.Gaussian(0.5), OUTPUTS)
    with pytest.raises(InvalidData, match="target shape"):
        found.log_prob(torch.zeros(4))
    with pytest.raises(InvalidData, match="must be a whole number"):
        combine(gs.Poisson(), OUTPUTS).log_prob(torch.tensor([0.5, 1.0, 2.0]))
