"""One temperature from held-out rows, against scipy; what it changes, and what it must not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp, softmax
from scipy.stats import norm
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from gossamer.prediction import Finish, NoiseDraws, Posterior, posterior_of
from gossamer.prediction.finish.choice import minimise, minimise_over


def best(nll, count, cold=0.25) -> float:
    """The minimum over log T by scipy, with the prior: std ``cold`` below 0 and 1 above it."""

    def loss(u):
        return nll(u) + 0.5 * (u / (cold if u < 0 else 1.0)) ** 2 / count

    bounds = (math.log(0.05), math.log(20))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return math.exp(found.x)


def sharp(inputs=4, classes=3, factor=4.0) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Linear(inputs, classes)
    with torch.no_grad():
        net.weight.mul_(factor)
    return net


def labels_at(logits: torch.Tensor, temperature: float, seed: int = 1) -> torch.Tensor:
    chances = (logits.detach().double() / temperature).softmax(1)
    return torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(seed))[:, 0]


def test_the_temperature_is_scipys() -> None:
    net = sharp()
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(2))
    y = labels_at(net(x), 2.5)
    logits = net(x).detach().double().numpy()

    def nll(u):
        z = logits / math.exp(u)
        return float((logsumexp(z, 1) - z[np.arange(400), y]).mean())

    found = gs.tempered(net, (x, y)).finish.temperature
    assert found == pytest.approx(best(nll, 400), rel=1e-4)
    assert 1.8 < found < 3.5


def test_many_samples_are_averaged_before_the_loss() -> None:
    torch.manual_seed(0)
    bnn = gs.to_bayesian(nn.Linear(4, 3), 0.0, posterior_std=1.5)
    x = torch.randn(300, 4)
    y = torch.arange(300) % 3
    outputs = []
    for sample in range(6):
        from gossamer.ops import fold_seed

        with gs.sampling(bnn.eval(), seed=fold_seed(7, sample), noise="weight"):
            outputs.append(bnn(x).detach().double().numpy())
    logits = np.stack(outputs)

    def nll(u):
        p = softmax(logits / math.exp(u), axis=2).mean(0)
        return float(-np.log(p[np.arange(300), y]).mean())

    found = gs.tempered(bnn, (x, y), num_samples=6, seed=7)
    assert found.finish.temperature == pytest.approx(best(nll, 300), rel=1e-3)
    probs = found.predict(x, 6, seed=7).probs.double().numpy()
    truth = softmax(logits / found.finish.temperature, axis=2).mean(0)
    assert np.abs(probs - truth).max() < 1e-5


def test_one_logit() -> None:
    net = nn.Sequential(sharp(4, 1, 6.0), nn.Flatten(0))
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(3))
    z = net(x).detach().double().numpy()
    y = torch.tensor(np.random.default_rng(0).random(500) < expit(z / 3)).long()
    sign = np.where(y.numpy() == 1, 1.0, -1.0)
    found = gs.tempered(net, (x, y), likelihood="bernoulli").finish.temperature
    truth = best(lambda u: float(np.log1p(np.exp(-sign * z / math.exp(u))).mean()), 500)
    assert found == pytest.approx(truth, rel=1e-4)


def test_a_calibrated_network_keeps_its_answers() -> None:
    net = sharp(factor=3.0)
    x = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(4))
    found = gs.tempered(net, (x, labels_at(net(x), 1.0, seed=2))).finish.temperature
    assert found == pytest.approx(1.0, abs=0.03)


def test_few_rows_that_are_all_right_do_not_ask_for_certainty() -> None:
    """Their likelihood rises to T = 0; the prior keeps T finite, and less so the more there are."""
    found = {}
    for count in (20, 200, 20_000):
        x = torch.randn(count, 3, generator=torch.Generator().manual_seed(3))
        y = x.argmax(1)
        found[count] = gs.tempered(nn.Identity(), (x, y)).finish.temperature
    assert 0.5 < found[20] < 1.0
    assert 0.1 < found[200] < found[20]
    assert found[20_000] < 0.5 * found[200]


def test_labels_stay_and_scores_follow_the_new_logits() -> None:
    net, x = sharp(), torch.randn(50, 4)
    posterior = posterior_of(net).finished(Finish(2.0))
    before, after = posterior_of(net).predict(x), posterior.predict(x)
    assert torch.equal(before.label, after.label)
    logits = net(x).detach() / 2.0
    assert torch.allclose(after.probs, logits.softmax(1), atol=1e-7)
    assert torch.allclose(after.energy, -logits.logsumexp(1), atol=1e-6)
    assert posterior.finish_figures == {"temperature": 2.0}
    assert posterior_of(net).finish_figures == {}


@pytest.mark.parametrize("noise_std", [0.3, "learn", "head"])
def test_real_targets_are_widened_around_their_mean(noise_std) -> None:
    torch.manual_seed(5)
    bnn = gs.to_bayesian(nn.Linear(3, 2 if noise_std == "head" else 1), 0.0, posterior_std=0.4)
    posterior = posterior_of(bnn, Gaussian(noise_std))
    x = torch.randn(300, 3)
    plain = posterior.predict(x, 5, seed=1)
    y = plain.mean + 2.0 * torch.randn(300, generator=torch.Generator().manual_seed(6))
    means, noise = plain.samples.double().numpy(), plain.noise.double().detach().numpy()
    centre = means.mean(0)

    def nll(u):
        t = math.exp(u)
        logs = norm.logpdf(y.numpy(), centre + t * (means - centre), t * noise)
        return float((math.log(5) - logsumexp(logs, 0)).mean())

    found = gs.tempered(posterior, (x, y), num_samples=5, seed=1)
    factor = found.finish.temperature
    assert factor == pytest.approx(best(nll, 300, cold=1.0), rel=1e-4)
    wide = found.predict(x, 5, seed=1)
    assert torch.allclose(wide.mean, plain.mean, atol=1e-6)
    assert torch.allclose(wide.std, factor * plain.std, rtol=1e-4)
    assert torch.allclose(wide.samples.mean(0), plain.mean, atol=1e-5)


def test_an_earlier_temperature_is_replaced() -> None:
    net = sharp()
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(2))
    rows = (x, labels_at(net(x), 2.0))
    once = gs.tempered(net, rows)
    assert gs.tempered(once, rows).finish.temperature == once.finish.temperature


def test_a_class_per_position() -> None:
    torch.manual_seed(0)
    net = nn.Conv1d(2, 3, 1)
    x, y = torch.randn(40, 2, 7), torch.randint(3, (40, 7))
    logits = net(x).detach().double()

    def nll(u):
        return float(nn.functional.cross_entropy(logits / math.exp(u), y))

    found = gs.tempered(net, (x, y), class_dim=1).finish.temperature
    assert found == pytest.approx(best(nll, 280), rel=1e-3)


def test_moments_know_the_temperature() -> None:
    torch.manual_seed(0)
    bnn = gs.to_bayesian(nn.Linear(4, 1), 0.0, posterior_std=0.5)
    posterior, x = posterior_of(bnn, Gaussian(0.2)), torch.randn(9, 4)
    plain, wide = posterior.predict_moments(x), posterior.finished(Finish(3.0)).predict_moments(x)
    assert torch.allclose(wide.std, 3.0 * plain.std, rtol=1e-5)


class Counts(nn.Module):
    def forward(self, x):
        return x.sum(1)


def test_refusals() -> None:
    net, x = nn.Linear(4, 3), torch.randn(10, 4)
    y = torch.arange(10) % 3
    with pytest.raises(InvalidValue, match="neither logits nor a noise"):
        gs.tempered(Counts(), (x, y), likelihood="poisson")
    for rows in (None, (x,), x):
        with pytest.raises(InvalidValue, match="must be a pair: inputs and a tensor of targets"):
            gs.tempered(net, rows)
    with pytest.raises(InvalidData, match="the same rows"):
        gs.tempered(net, (x, y[:9]))
    with pytest.raises(InvalidData, match="the same rows"):
        gs.tempered(net, (x[:0], y[:0]))
    with pytest.raises(InvalidData, match=r"labels must lie in \[0, 3\)"):
        gs.tempered(net, (x, y + 1))
    with pytest.raises(InvalidData, match="must be integers"):
        gs.tempered(net, (x, y.float()))
    with pytest.raises(InvalidData, match="held-out inputs: must be finite"):
        gs.tempered(net, (x * torch.nan, y))
    real = Posterior(NoiseDraws(nn.Linear(4, 1)), Gaussian())
    with pytest.raises(InvalidData, match="held-out targets: must be finite"):
        gs.tempered(real, (x, torch.full((10,), torch.inf)))
    with pytest.raises(InvalidData, match="target shape"):
        gs.tempered(real, (x, torch.randn(10, 2)))
    with pytest.raises(InvalidValue, match="num_samples = 0"):
        gs.tempered(net, (x, y), num_samples=0)
    with pytest.raises(InvalidValue, match="temperature = 0"):
        Finish(0.0)
    with pytest.raises(InvalidValue, match="neither logits nor a noise"):
        Posterior(NoiseDraws(Counts()), Poisson(), finish=Finish(2.0)).predict(x)


def test_nothing_else_is_touched() -> None:
    bnn = gs.to_bayesian(nn.Linear(4, 3), 0.5)
    before, noise = {k: v.clone() for k, v in bnn.state_dict().items()}, torch.get_rng_state()
    posterior = posterior_of(bnn)
    gs.tempered(posterior, (torch.ones(5, 4), torch.arange(5) % 3))
    assert posterior.finish.temperature == 1.0
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(torch.equal(v, before[k]) for k, v in bnn.state_dict().items())
    assert isinstance(posterior.likelihood, Categorical)
    assert not isinstance(posterior.likelihood, Bernoulli)


@pytest.mark.parametrize(
    ("f", "low", "high", "truth"),
    [
        (lambda u: (u - 0.3) ** 2, -3, 3, 0.3),
        (lambda u: math.cosh(u + 1.7), -3, 3, -1.7),
        (lambda u: -math.exp(-((u - 2.0) ** 2)), -3, 3, 2.0),
        (lambda u: abs(u - 1.1) ** 1.5, -3, 3, 1.1),
        (lambda u: u, -3, 3, -3.0),
        (lambda u: -u, -3, 3, 3.0),
    ],
)
def test_minima(f, low, high, truth) -> None:
    assert minimise_over(f, low, high, parts=12) == pytest.approx(truth, abs=1e-5)
    if abs(truth) < 3:
        assert minimise(f, low, high, 1e-7) == pytest.approx(truth, abs=1e-5)
