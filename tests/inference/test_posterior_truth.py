"""Chains against known posteriors: conjugate regression, and logistic regression by quadrature.

The samplers run as the methods run them: cycles, kept samples, ``predict``. A linear layer with C
outputs that all see the same target is C independent chains in one, so that one run gives honest
standard errors: those of a mean over independent chains. Batches are full.

**A falling step would heat**: v is a displacement, √(Δt²) in size, and what is left of it from a
larger step is too large for a smaller one. The optimisers scale v with the step; the exact variance
at the end of a cycle comes from the recursion of second moments (``cycle_excess``), within
``BIAS`` of the posterior's in these runs.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs

CHAINS, CYCLES, LENGTH = 2000, 2, 500
BIAS = 0.01
METHODS = {
    "cv_sghmc": {"betas": (0.3, 1.0), "tau_lr": 0.01},
    "csghmc": {"betas": (0.3, 1.0)},
}
every_sampler = pytest.mark.parametrize("name", METHODS)


def run(name: str, likelihood, x: Tensor, y: Tensor, *, precision: float, **settings):
    """A run that keeps the end of every cycle; a cycle is long enough to forget its start."""
    torch.manual_seed(1)
    settings = {"total_steps": CYCLES * LENGTH, "cycles": CYCLES, **METHODS[name], **settings}
    net = nn.Linear(x.shape[1], CHAINS, bias=False)
    nn.init.zeros_(net.weight)
    method = gs.build(
        name,
        net,
        num_data=len(x),
        likelihood=likelihood,
        samples_per_cycle=1,
        weight_decay=precision / len(x),
        **settings,
    )
    target = y[:, None].expand(-1, CHAINS)
    for _ in range(settings["total_steps"]):
        method.step((x, target))
    return method


def assert_agrees(found: Tensor, mean: Tensor, variance: Tensor, bias: float = BIAS) -> None:
    """Mean and variance of draws [S, B, C], within 4 standard errors over C, and ``bias``."""
    offset = (found.double() - mean[:, None]) / variance.sqrt()[:, None]
    for power, truth, what in ((1, 0.0, "mean"), (2, 1.0, "variance")):
        per_chain = offset.pow(power).mean(0)  # [B, C]
        error = per_chain.std(1) / CHAINS**0.5
        off = (per_chain.mean(1) - truth).abs()
        assert bool((off < 4.0 * error + bias).all()), (what, off, error)
        assert float(error.max()) < 0.04, f"too weak to say anything about the {what}: {error}"


def regression():
    """Three correlated inputs, and their noisy linear response."""
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(40, 1, generator=generator)
    x = (common + torch.randn(40, 3, generator=generator)) / 2**0.5
    noise = torch.randn(40, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5, 0.0]) + 0.7 * noise


@every_sampler
def test_linear_regression_has_its_exact_predictive(name):
    x, y = regression()
    noise, precision = 0.7, 2.0
    wide = x.double()
    covariance = torch.linalg.inv(
        wide.T @ wide / noise**2 + precision * torch.eye(3, dtype=torch.float64)
    )
    centre = covariance @ wide.T @ y.double() / noise**2
    x_new = torch.cat([torch.eye(3), torch.ones(1, 3), torch.tensor([[1.0, -1.0, 0.5]])])
    variance = ((x_new.double() @ covariance) * x_new.double()).sum(1)
    lr = {"cv_sghmc": 0.2, "csghmc": 0.1}[name]
    method = run(name, gs.Gaussian(noise_std=noise), x, y, precision=precision, lr=lr)
    found = [
        x_new.double() @ sample["weight_values"].double().view(CHAINS, 3).T
        for sample in method.samples
    ]
    kept = torch.stack(found)
    assert_agrees(kept, x_new.double() @ centre, variance)
    pred = gs.predict(method, x_new, CYCLES)
    torch.testing.assert_close(pred.mean.double(), kept.mean(0), rtol=1e-4, atol=1e-5)
    spread = pred.std.double().square() - kept.var(0, correction=0)
    torch.testing.assert_close(spread, torch.full_like(spread, noise**2), rtol=1e-4, atol=1e-4)


def logistic():
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(30, 2, generator=generator) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]])
    chance = torch.sigmoid(x @ torch.tensor([1.5, -1.0]))
    return x, (torch.rand(30, generator=generator) < chance).float()


def quadrature(x, y, x_new, precision: float):
    """Mean and variance of the chance at new points, from a grid over both weights."""
    side = torch.linspace(-7.0, 9.0, 801, dtype=torch.float64)
    w = torch.cartesian_prod(side, side - 1.0)
    logits = w @ x.double().T
    sign = 2.0 * y.double() - 1.0
    log_density = nn.functional.logsigmoid(sign * logits).sum(1) - precision / 2 * w.square().sum(1)
    mass = torch.softmax(log_density, 0)
    chance = torch.sigmoid(w @ x_new.double().T)
    mean = mass @ chance
    return mean, mass @ chance.square() - mean.square()


@every_sampler
def test_logistic_regression_has_the_predictive_of_a_quadrature(name):
    x, y = logistic()
    x_new = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0], [0.5, 0.5], [-0.3, -1.0]])
    method = run(name, "bernoulli", x, y, precision=1.0, lr=0.8)
    found = []
    for index in range(CYCLES):
        with torch.no_grad(), method.posterior().draws.sample(index, seed=0, noise="weight") as net:
            found.append(torch.sigmoid(net(x_new).double()))
    assert_agrees(torch.stack(found), *quadrature(x, y, x_new, precision=1.0))


def nuts(x, y, x_new, precision: float):
    """Mean and variance of the chance at new points by a long run of numpyro's NUTS.

    Returns them with the standard error of the mean, relative to the standard deviation.
    """
    numpyro = pytest.importorskip("numpyro")
    import jax

    jax.config.update("jax_enable_x64", True)

    def model(inputs, target):
        normal = numpyro.distributions.Normal(0.0, precision**-0.5)
        w = numpyro.sample("w", normal.expand([inputs.shape[1]]).to_event(1))
        numpyro.sample("y", numpyro.distributions.Bernoulli(logits=inputs @ w), obs=target)

    kernel = numpyro.infer.NUTS(model)
    chain = numpyro.infer.MCMC(
        kernel,
        num_warmup=2_000,
        num_samples=20_000,
        num_chains=4,
        chain_method="sequential",
        progress_bar=False,
    )
    chain.run(jax.random.PRNGKey(0), x.double().numpy(), y.double().numpy())
    draws = chain.get_samples(group_by_chain=True)["w"]
    effective = float(numpyro.diagnostics.effective_sample_size(jax.numpy.asarray(draws)).min())
    w = torch.tensor(draws.tolist(), dtype=torch.float64).flatten(0, 1)
    chance = torch.sigmoid(w @ x_new.double().T)
    return chance.mean(0), chance.var(0), effective**-0.5


@pytest.mark.slow
@every_sampler
def test_logistic_regression_in_eight_dimensions_agrees_with_nuts(name):
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(120, 8, generator=generator)
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]  # correlated inputs, correlated weights
    weights = torch.randn(8, generator=generator)
    y = (torch.rand(120, generator=generator) < torch.sigmoid(x @ weights)).float()
    x_new = torch.randn(6, 8, generator=generator)
    mean, variance, error = nuts(x, y, x_new, precision=1.0)
    method = run(name, "bernoulli", x, y, precision=1.0, lr=0.5)
    found = []
    for index in range(CYCLES):
        with torch.no_grad(), method.posterior().draws.sample(index, seed=0, noise="weight") as net:
            found.append(torch.sigmoid(net(x_new).double()))
    assert error < 0.01
    assert_agrees(torch.stack(found), mean, variance, bias=BIAS + 4.0 * error)


@pytest.mark.parametrize("temperature", [0.25, 2.0])
def test_the_temperature_scales_the_variance(temperature):
    x, y = regression()
    wide = x.double()
    covariance = torch.linalg.inv(wide.T @ wide / 0.49 + 2.0 * torch.eye(3, dtype=torch.float64))
    centre = covariance @ wide.T @ y.double() / 0.49
    method = run("csghmc", gs.Gaussian(0.7), x, y, precision=2.0, lr=0.1, temperature=temperature)
    found = torch.stack([s["weight_values"].view(CHAINS, 3).T for s in method.samples])
    assert_agrees(found, centre, temperature * covariance.diagonal())


def test_the_quadrature_is_converged():
    """Half the points give the same numbers: the grid is no source of error."""
    x, y = logistic()
    x_new = torch.tensor([[1.0, 0.5]])
    mean, variance = quadrature(x, y, x_new, 1.0)
    side = torch.linspace(-9.0, 9.0, 401, dtype=torch.float64)
    w = torch.cartesian_prod(side, side)
    target = y.double().expand(len(w), -1)
    loss = nn.functional.binary_cross_entropy_with_logits(
        w @ x.double().T, target, reduction="none"
    ).sum(1)
    mass = torch.softmax(-loss - 0.5 * w.square().sum(1), 0)
    chance = torch.sigmoid(w @ x_new[0].double())
    assert math.isclose(float(mean), float(mass @ chance), rel_tol=1e-8)
    second = float(mass @ chance.square() - (mass @ chance) ** 2)
    assert math.isclose(float(variance), second, rel_tol=1e-8)


def cycle_excess(
    curvature: float, lr: float, beta1: float, length: int, *, scaled: bool = True, cycles: int = 2
) -> float:
    """Var(w) at the end of a cycle over the posterior's, for SGHMC from (w, v) = 0, exactly."""
    moments, before = torch.zeros(2, 2, dtype=torch.float64), lr
    for step in range(length * cycles):
        dt2 = 0.5 * lr * (1.0 + math.cos(math.pi * (step % length) / length))
        factor = math.sqrt(dt2 / before) if scaled else 1.0
        scaling = torch.diag(torch.tensor([1.0, factor], dtype=torch.float64))
        moments, before = scaling @ moments @ scaling, dt2
        pull = dt2 * curvature
        move = torch.tensor([[1.0 - pull, beta1], [-pull, beta1]], dtype=torch.float64)
        moments = move @ moments @ move.T + 2.0 * (1.0 - beta1) * dt2
    return float(moments[0, 0]) * curvature


@pytest.mark.parametrize(("beta1", "length", "least", "most"), [
    (0.3, 500, 0.98, 1.02),
    (0.7, 80, 0.95, 1.05),
    (0.9, 80, 0.9, 1.1),
])  # fmt: skip
def test_the_end_of_a_cycle_is_as_hot_as_the_recursion_says(beta1, length, least, most):
    """And that is close to its temperature, although the step has fallen all the way."""
    x, y = regression()
    wide, noise, precision = x.double(), 0.7, 2.0
    hessian = wide.T @ wide / noise**2 + precision * torch.eye(3, dtype=torch.float64)
    centre = torch.linalg.solve(hessian, wide.T @ y.double() / noise**2)
    method = run(
        "csghmc",
        gs.Gaussian(noise),
        x,
        y,
        precision=precision,
        lr=0.1,
        betas=(beta1, 1.0),
        total_steps=2 * length,
    )
    values, vectors = torch.linalg.eigh(hessian)
    excess = torch.tensor(
        [cycle_excess(float(v) / len(x), 0.1, beta1, length) for v in values], dtype=torch.float64
    )
    assert float(excess.min()) > least
    assert float(excess.max()) < most
    if beta1 == 0.9:  # what the scaling is for
        left = [cycle_excess(float(v) / len(x), 0.1, beta1, length, scaled=False) for v in values]
        assert min(left) > 1.4
    w = method.samples[-1]["weight_values"].double().view(CHAINS, 3)
    along = ((w - centre) @ vectors).T  # [3, C], uncorrelated
    assert_agrees(along[None], torch.zeros(3, dtype=torch.float64), excess / values, bias=0.0)
