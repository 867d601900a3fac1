"""Bayesian linear regression on features against scikit-learn, scipy and dense algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData
from gossamer.likelihoods import Gaussian
from gossamer.prediction import Posterior, mixture, posterior_of
from gossamer.prediction.finish.regression import Evidence


def body(outputs: int = 1, hidden: int = 6, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def data(count: int = 60, outputs: int = 1, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=noise, dtype=torch.float64)
    y = torch.stack([(k + 1) * x[:, 0].sin() - x[:, k] for k in range(outputs)], 1)
    y = y + 0.2 * torch.randn(count, outputs, generator=noise, dtype=torch.float64)
    return x, y[:, 0] if outputs == 1 else y


def features_of(net: nn.Sequential, x: torch.Tensor) -> np.ndarray:
    h = net[:-1](x).detach()
    return torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], 1).numpy()


def evidence_of(phi: np.ndarray, r: np.ndarray, noise: float | None = None) -> Evidence:
    values, vectors = np.linalg.eigh(phi.T @ phi)
    return Evidence(
        torch.tensor(values.clip(0)),
        torch.tensor(vectors.T @ phi.T @ r),
        float(r @ r),
        len(r),
        noise,
    )


def log_evidence(phi: np.ndarray, r: np.ndarray, tau: float, sigma: float) -> float:
    """The density of the targets under their joint Gaussian, by scipy."""
    covariance = sigma**2 * np.eye(len(r)) + phi @ phi.T / tau
    return float(multivariate_normal(np.zeros(len(r)), covariance).logpdf(r))


@pytest.mark.parametrize("noise", [None, 0.3])
def test_the_evidence_is_scipys_and_so_is_its_maximum(noise) -> None:
    net, (x, y) = body(), data()
    phi, r = features_of(net, x), y.numpy()
    evidence = evidence_of(phi, r, noise)
    for ratio in (1e-3, 0.1, 30.0):
        sigma = evidence.std(ratio)
        truth = log_evidence(phi, r, ratio / sigma**2, sigma)
        assert evidence.log_evidence(ratio) == pytest.approx(truth, rel=1e-8)

    def loss(v):
        return -log_evidence(phi, r, math.exp(v[0]), noise or math.exp(v[1]))

    found = minimize(loss, [0.0, -1.0], method="Nelder-Mead", options={"xatol": 1e-7})
    ratio = evidence.best_ratio()
    assert evidence.log_evidence(ratio) == pytest.approx(-found.fun, abs=1e-6)
    assert ratio / evidence.std(ratio) ** 2 == pytest.approx(math.exp(found.x[0]), rel=1e-3)
    if noise is None:
        assert evidence.std(ratio) == pytest.approx(math.exp(found.x[1]), rel=1e-3)


def test_held_out_rows_correct_the_networks_own_weights() -> None:
    """Conjugate truth: prior at the trained weights, posterior by explicit inverses."""
    net, (x, y) = body(outputs=2), data(outputs=2)
    posterior = gs.last_layer(net, (x, y), likelihood="gaussian")
    head, new = posterior.finish.head, data(9, seed=7)[0]
    found = posterior.predict(new)
    phi, more = features_of(net, x), features_of(net, new)
    left = (y - net(x).detach()).numpy()
    for column in range(2):
        sigma, tau = float(head.noise[column]), float(head.prior[column])
        covariance = np.linalg.inv(phi.T @ phi / sigma**2 + tau * np.eye(7))
        shift = covariance @ phi.T @ left[:, column] / sigma**2
        mean = net(new).detach().numpy()[:, column] + more @ shift
        std = np.sqrt(np.einsum("bi,ij,bj->b", more, covariance, more))
        assert np.allclose(found.mean[:, column], mean, rtol=1e-6, atol=1e-8)
        assert np.allclose(found.epistemic[:, column], std, rtol=1e-6)
        assert np.allclose(found.aleatoric[:, column], sigma, rtol=1e-6)
    assert posterior.finish_figures == {"temperature": 1.0, "last_layer_scale": 1.0}


def test_training_rows_give_bayesian_ridge() -> None:
    """scikit-learn's evidence with flat hyperpriors, on the same features, bias and all."""
    net, rows, held_out = body(), data(200), data(100, seed=3)
    posterior = gs.last_layer(net, held_out, rows=rows, likelihood="gaussian")
    phi = features_of(net, rows[0])
    ridge = BayesianRidge(
        fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, tol=1e-10, max_iter=3000
    ).fit(phi, rows[1].numpy())
    head = posterior.finish.head
    assert float(head.noise) == pytest.approx(ridge.alpha_**-0.5, rel=1e-3)
    assert float(head.prior) == pytest.approx(ridge.lambda_, rel=1e-2)
    new = data(20, seed=8)[0]
    mean, std = ridge.predict(features_of(net, new), return_std=True)
    found = posterior.predict(new)
    assert np.allclose(found.mean, mean, atol=1e-4)
    # Held-out rows widen it all by one factor.
    factor = posterior.finish.temperature
    assert np.allclose(found.std, factor * std, rtol=2e-3)
    assert 0.5 < factor < 2.0


def test_a_noise_that_was_given_stays() -> None:
    net, rows = body(), data()
    posterior = gs.last_layer(posterior_of(net, Gaussian(0.7)), rows)
    assert float(posterior.finish.head.noise) == pytest.approx(0.7)


def test_rows_that_say_nothing_leave_the_network_as_it_is() -> None:
    net = body()
    x, _ = data(400)
    noise = torch.randn(400, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    phi = torch.tensor(features_of(net, x))
    noise = noise - phi @ torch.linalg.lstsq(phi, noise).solution  # no feature explains it
    posterior = gs.last_layer(net, (x, net(x).detach()[:, 0] + 0.3 * noise), likelihood="gaussian")
    found = posterior.predict(x)
    assert torch.allclose(found.mean, net(x).detach()[:, 0], atol=1e-6)
    assert float(found.epistemic.max()) < 1e-3
    assert float(posterior.finish.head.noise) == pytest.approx(0.3, rel=0.1)


def test_few_held_out_rows_do_not_throw_the_training_away() -> None:
    """Five rows for seven weights: a prior at 0 would forget what the network learnt."""
    torch.manual_seed(0)
    x, y = data(400)
    net = body()
    method = gs.build("sgd", net, num_data=300, total_steps=400, likelihood="gaussian", lr=0.01)
    for _ in range(400):
        method.step((x[:300], y[:300, None]))
    test = (x[320:], y[320:])
    plain = method.posterior().predict(test[0])
    error = float((plain.mean - test[1]).square().mean().sqrt())
    few = gs.last_layer(method, (x[300:305], y[300:305, None])).predict(test[0])
    assert float((few.mean - test[1]).square().mean().sqrt()) < 1.1 * error


def test_noisy_networks_and_mixtures() -> None:
    torch.manual_seed(0)
    rows = data()
    members: list[Posterior] = []
    for seed in (0, 1):
        bnn = gs.to_bayesian(body(seed=seed), 0.0, posterior_std=0.1)
        members.append(posterior_of(bnn, Gaussian()))
    both = gs.last_layer(mixture(members), rows, num_samples=6)
    found = both.predict(rows[0], 6)
    parts = [m.predict(rows[0], 3, seed=s) for m, s in zip(both.members, _seeds(0, 2), strict=True)]
    mean = torch.stack([p.mean for p in parts]).mean(0)
    assert torch.allclose(found.mean, mean, atol=1e-12)
    within = torch.stack([p.std.square() for p in parts]).mean(0)
    between = torch.stack([(p.mean - mean).square() for p in parts]).mean(0)
    assert torch.allclose(found.std.square(), within + between, rtol=1e-9)
    assert float((found.mean - rows[1]).square().mean().sqrt()) < 0.6


def _seeds(seed: int, count: int) -> list[int]:
    from gossamer.ops import fold_seed

    return [fold_seed(seed, number) for number in range(count)]


def test_refusals() -> None:
    net, (x, y) = body(), data()
    with pytest.raises(InvalidData, match="target shape"):
        gs.last_layer(net, (x, torch.stack([y, y], 1)), likelihood="gaussian")
    with pytest.raises(InvalidData, match="held-out targets: must be finite"):
        gs.last_layer(net, (x, y / 0.0), likelihood="gaussian")
    with pytest.raises(InvalidData, match="the same rows"):
        gs.last_layer(net, (x, y), rows=(x, y[:3]), likelihood="gaussian")
