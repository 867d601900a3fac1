"""NaturalGradient as an optimiser: against ivon-opt and exact posteriors."""

from __future__ import annotations

import copy
import math

import ivon._ivon as ivon
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases.classes import N, problem
from gossamer.ops import normal_like
from gossamer.optim import NaturalGradient
from reference.linear_law import Quadratic


class _SameNoise:
    """torch for ivon-opt, but for normals, which are Gossamer's of the same generator."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def randn(count, device=None, dtype=None):
        return normal_like(torch.randint(2**63 - 1, ()), torch.empty(count, dtype=dtype))


@pytest.mark.parametrize("draws", [1, 3])
def test_steps_are_those_of_ivon(monkeypatch, draws):
    """Step by step the published implementation, given the same normals; several draws too."""
    monkeypatch.setattr(ivon, "torch", _SameNoise())
    ours, x, y = problem()
    theirs = copy.deepcopy(ours)
    mine = NaturalGradient(
        ours.parameters(),
        0.3,
        num_data=N,
        update="ivon",
        betas=(0.9, 0.99),
        initial_curvature=0.5,
        weight_decay=0.01,
        max_step=None,
    )
    published = ivon.IVON(
        theirs.parameters(), 0.3, ess=N, hess_init=0.5, beta1=0.9, beta2=0.99, weight_decay=0.01
    )
    for step in range(60):
        rows = torch.randint(N, (32,), generator=torch.Generator().manual_seed(step))
        torch.manual_seed(step)
        mine.zero_grad()
        for _ in range(draws):
            with mine.sampled():
                (F.cross_entropy(ours(x[rows]), y[rows]) / draws).backward()
        mine.step()
        torch.manual_seed(step)
        for _ in range(draws):
            with published.sampled_params(train=True):
                published.zero_grad()
                F.cross_entropy(theirs(x[rows]), y[rows]).backward()
        published.step()
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-9, atol=1e-11)
        h = mine.state[ours.weight]["curvature"].flatten()
        torch.testing.assert_close(h, published.param_groups[0]["hess"], rtol=1e-9, atol=1e-11)


CHAINS = 300


def settle(opt, w, loss: Quadratic, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and curvature, averaged over chains and the second half of the steps."""
    hessian, centre = torch.from_numpy(loss.hessian), torch.from_numpy(loss.centre)
    mean, h = torch.zeros(2, len(centre), dtype=torch.float64)
    for step in range(steps):
        with opt.sampled():
            w.grad = (w.detach() - centre) @ hessian
        opt.step()
        if 2 * step >= steps:
            mean += w.detach().mean(0) / (steps // 2)
            h += opt.state[w]["curvature"].mean(0) / (steps // 2)
    return mean.numpy(), h.numpy()


@pytest.mark.parametrize("update", ["ivon", "adam"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_curvature_of_a_quadratic_is_exact(update, temperature):
    """h → diag(H) without the prior, μ → the mode; whatever starts the curvature, at any T."""
    hessian = np.array([[1.0, 0.5, 0.1], [0.5, 0.6, 0.0], [0.1, 0.0, 0.2]])
    loss = Quadratic(hessian, np.array([1.0, -2.0, 0.5]), decay=0.02)
    w = nn.Parameter(torch.zeros(CHAINS, 3, dtype=torch.float64))
    opt = NaturalGradient(
        [w],
        0.1 if update == "ivon" else 0.01,
        num_data=N,
        update=update,
        betas=(0.9, 0.998),
        initial_curvature=2.0,
        weight_decay=loss.decay,
        temperature=temperature,
        generator=torch.Generator().manual_seed(3),
    )
    mean, h = settle(opt, w, loss, 6000)
    # The second-order term of the step on h biases its mean by (1-β)E(ĥ - h)²/(2(h + d)), a percent
    # here; it grows where the prior holds the mode off the likelihood's optimum.
    np.testing.assert_allclose(h, np.diag(hessian), rtol=0.03)
    np.testing.assert_allclose(mean, loss.mode, atol=0.01)
    std = opt.std_of(w).mean(0).numpy()
    wanted = (N / temperature * np.diag(loss.precision)) ** -0.5
    np.testing.assert_allclose(std, wanted, rtol=0.02)


def test_linear_regression_has_its_exact_diagonal_posterior():
    """Mean of the conjugate posterior, and one over the root of the diagonal of its precision."""
    torch.manual_seed(0)
    noise, prior = 0.4, 3.0
    x = torch.randn(N, 4, dtype=torch.float64) @ torch.diag(
        torch.tensor([1.0, 0.5, 2.0, 1.0]).double()
    )
    y = x @ torch.tensor([1.0, -1.0, 0.5, 0.0]).double() + noise * torch.randn(N).double()
    precision = x.T @ x / noise**2 + prior * torch.eye(4).double()
    exact_mean = torch.linalg.solve(precision, x.T @ y / noise**2)
    net = nn.Linear(4, 1, bias=False).double()
    opt = NaturalGradient(
        net.parameters(),
        0.2,
        num_data=N,
        update="ivon",
        betas=(0.9, 0.995),
        initial_curvature=10.0,
        weight_decay=prior / N,
        generator=torch.Generator().manual_seed(3),
    )
    means, stds = [], []
    for step in range(6000):
        opt.param_groups[0]["lr"] = 0.2 * (1.0 - step / 6000)
        with opt.sampled():
            opt.zero_grad()
            (0.5 * (net(x).squeeze(1) - y).square().mean() / noise**2).backward()
        opt.step()
        if step >= 4000:
            means.append(net.weight.detach().flatten().clone())
            stds.append(opt.std_of(net.weight).flatten())
    std = torch.stack(stds).mean(0)
    exact_std = precision.diagonal().rsqrt()
    torch.testing.assert_close(std, exact_std, rtol=0.04, atol=0.0)
    error = (torch.stack(means).mean(0) - exact_mean) / exact_std
    assert float(error.abs().max()) < 0.15, "in posterior standard deviations"


def test_without_noise_it_is_torch_adam():
    """At a vanishing temperature Adam's rule with weight_decay is torch's."""
    ours, x, y = problem()
    theirs = copy.deepcopy(ours)
    mine = NaturalGradient(
        ours.parameters(), 0.02, num_data=N, weight_decay=0.01, temperature=1e-24
    )
    adam = torch.optim.Adam(theirs.parameters(), 0.02, weight_decay=0.01)
    for _ in range(40):
        with mine.sampled():
            mine.zero_grad()
            F.cross_entropy(ours(x), y).backward()
        mine.step()
        adam.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        adam.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-7, atol=1e-9)


def test_twice_the_learning_rate_does_not_diverge():
    """Features of very different size: IVON as published is lost at this rate, guarded not."""
    scales = torch.logspace(-1, 1.5, 6).double()
    losses = {}
    for guard in (None, 1.0):
        net, x, y = problem()
        opt = NaturalGradient(
            net.parameters(),
            4.0,
            num_data=N,
            update="ivon",
            betas=(0.9, 0.9995),
            initial_curvature=1.0,
            weight_decay=1e-3,
            max_step=guard,
            generator=torch.Generator().manual_seed(0),
        )
        for _ in range(400):
            with opt.sampled():
                opt.zero_grad()
                F.cross_entropy(net(x * scales), y).backward()
            opt.step()
        losses[guard] = F.cross_entropy(net(x * scales), y).item()
    start = math.log(3)
    assert losses[None] > 10 * start
    assert losses[1.0] < 0.8 * start
