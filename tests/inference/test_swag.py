"""SWAG: the stationary law of SGD, what is collected when, norms of the mean, resume."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.prediction import LowRankDraws, NoiseDraws
from gossamer.train import RunConfig, load_run, train
from reference.method_runs import clusters, network


def make(net: nn.Module | None = None, *, seed: int = 0, total_steps: int = 40, **options):
    torch.manual_seed(seed)
    options = {"num_data": 60, "lr": 0.02, **options}
    return gs.build("swag", network() if net is None else net, total_steps=total_steps, **options)


def run(method, steps: int, first: int = 0) -> None:
    """Steps on batches that differ from step to step."""
    x, y = clusters()
    for step in range(first, first + steps):
        rows = torch.randperm(60, generator=torch.Generator().manual_seed(step))[:20]
        method.step((x[rows], y[rows]))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_stationary_variance_of_sgd_on_a_quadratic(momentum):
    """Var = ηs²/(a(2 - ηa)) for gradients aw + sε; with momentum β by the 2x2 Lyapunov equation.

    That is what SWAG reports: a property of the optimiser, not of a posterior.
    """
    a, s, rate, width = 2.0, 0.7, 0.25, 400
    method = make(
        nn.Linear(1, width, bias=False),
        likelihood=gs.Gaussian(1.0),
        total_steps=2500,
        optimizer="sgd",
        momentum=momentum,
        lr=0.1,
        swa_lr=rate,
        start=0.1,
        collect_every=15,
        weight_decay=0.0,
        rank=2,
    )
    generator = torch.Generator().manual_seed(5)
    x = torch.full((1, 1), a**0.5)
    for _ in range(2500):
        # The gradient of ½(w x - y)² is a w - x y: noise of variance s².
        method.step((x, s / a**0.5 * torch.randn(1, width, generator=generator)))
    moments = method.moments
    assert moments.count == 150
    (name,) = moments.mean
    # State (w, v): v ← βv + aw + sε, w ← w - ηv.
    step = np.array([[1 - rate * a, -rate * momentum], [a, momentum]])
    push = np.array([-rate * s, s])
    kron = np.eye(4) - np.kron(step, step)
    wanted = np.linalg.solve(kron, np.outer(push, push).flatten())[0]
    if momentum == 0.0:
        assert wanted == pytest.approx(rate * s**2 / (a * (2 - rate * a)))
    # 400 weights x 150 looks: a standard error of 0.6 %, with the correlation of looks below 1 %.
    assert float(moments.variance(name).mean()) == pytest.approx(wanted, rel=0.03)


def test_what_is_collected_is_the_path_of_the_weights():
    """Against numpy over a recorded path: mean, variance, and the last K around that mean."""
    method = make(start=0.5, collect_every=3, rank=4, total_steps=40)
    path = []
    for step in range(40):
        run(method, 1, step)
        if step + 1 > 20 and (step + 1 - 20) % 3 == 0:
            state = {n: p.detach().double().numpy().copy() for n, p in _named(method)}
            path.append(state)
    draws = method.posterior().draws
    assert isinstance(draws, LowRankDraws)
    assert [c.name for c in draws.centres] == [name for name, _ in _named(method)]
    assert len(path) == method.moments.count == 6
    for centre in draws.centres:
        seen = np.array([state[centre.name] for state in path])
        np.testing.assert_allclose(centre.mean.numpy(), seen.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            centre.variance.numpy(), seen.var(0, ddof=1), rtol=1e-3, atol=1e-12
        )
        np.testing.assert_array_equal(torch.stack(centre.points).numpy(), seen[-4:])


def _named(method):
    return [(n, p) for n, p in method.model.named_parameters() if p.requires_grad]


def test_when():
    """About thirty collections by default; until there are two the network itself predicts."""
    method = make(total_steps=130, start=0.5)
    assert (method.start_step, method.every) == (65, 2)
    run(method, 67)
    assert method.moments.count == 1
    posterior = method.posterior()
    assert isinstance(posterior.draws, NoiseDraws)
    assert posterior.max_samples == 1
    run(method, 63)
    assert method.moments.count == 32
    assert len(method.moments.last) == 20
    assert method.posterior().draws.rank == 20
    assert method.posterior().max_samples is None
    with pytest.raises(InvalidValue, match="leaves 1 collections after step 20"):
        make(collect_every=15)
    with pytest.raises(InvalidValue, match="leaves 0 collections"):
        make(total_steps=1)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_learning_rate(schedule):
    """From ``lr`` to ``swa_lr`` by ``start``, then constant."""
    method = make(total_steps=40, swa_lr=0.005, lr_schedule=schedule, start=0.5)
    x, y = clusters()
    rates = [method.step((x, y)).lr for _ in range(40)]
    assert rates[20:] == pytest.approx([0.005] * 20)
    if schedule == "constant":
        assert rates[:20] == pytest.approx([0.02] * 20)
    else:
        middle = 0.005 + 0.015 * 0.5 * (1 + np.cos(np.pi * np.arange(20) / 20))
        assert rates[:20] == pytest.approx(list(middle))
    warmed = make(total_steps=40, lr_warmup=0.25)
    assert warmed.step((x, y)).lr == pytest.approx(0.002)


def test_the_norms_are_those_of_the_mean():
    """Running statistics of the averaged weights, not of an iterate: two updates by hand."""
    method = make(total_steps=24, start=0.5, collect_every=6, lr=0.05)
    x, _ = clusters()
    weights: list[tuple[torch.Tensor, torch.Tensor]] = []
    wanted: dict[str, torch.Tensor] = {}
    run(method, 12)
    for end in (18, 24):
        run(method, 6, end - 6)
        first, norm = method.model[0], method.model[1]
        weights.append((first.weight.detach().clone(), first.bias.detach().clone()))
        weight, bias = (torch.stack(parts).mean(0) for parts in zip(*weights, strict=True))
        rows = torch.randperm(60, generator=torch.Generator().manual_seed(end - 1))[:20]
        inner = x[rows] @ weight.T + bias
        for key, value in (("running_mean", inner.mean(0)), ("running_var", inner.var(0))):
            before = wanted.get(key, norm.get_buffer(key).clone())  # at first the iterate's own
            wanted[key] = 0.9 * before + 0.1 * value
            torch.testing.assert_close(method.norms[f"1.{key}"], wanted[key], rtol=1e-4, atol=1e-5)
        assert int(norm.num_batches_tracked) == end, "the network itself is left alone"
    assert float((weights[0][0] - weights[1][0]).abs().max()) > 0.05, "the test can tell"
    assert int(method.norms["1.num_batches_tracked"]) == 2
    with method.posterior().draws.sample(0, seed=1, noise="weight") as net:
        assert torch.equal(net[1].running_mean, method.norms["1.running_mean"])
        assert not torch.equal(net[1].running_mean, norm.running_mean)


def test_dropout_of_the_network_draws_nothing_more():
    """The passes at the mean are without it, so that torch's generator is where sgd's is."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    ends = []
    for name, options in (("swag", {"start": 0.2, "rank": 3}), ("sgd", {})):
        method = gs.build(name, net, num_data=60, total_steps=20, **options)
        torch.manual_seed(1)
        run(method, 20)
        ends.append(torch.get_rng_state())
    assert torch.equal(*ends)


@pytest.mark.parametrize("stop", [20, 23, 29])
def test_resume_in_the_middle_of_collection(stop):
    """Before the first, right after one, and between two: bit for bit."""
    options = {"collect_every": 3, "rank": 3, "sparsity": 0.3}
    straight = make(**options)
    run(straight, stop)
    state = copy.deepcopy(straight.state_dict())
    resumed = make(seed=9, **options)
    resumed.load_state_dict(state)
    for method in (straight, resumed):
        run(method, 40 - stop, stop)
    x, _ = clusters(9)
    one, two = (gs.predict(m, x, 5).samples for m in (straight, resumed))
    assert torch.equal(one, two)
    ours, theirs = (m.state_dict()["swag"] for m in (straight, resumed))
    for name, tensor in ours["norms"].items():
        assert torch.equal(tensor, theirs["norms"][name])
    assert ours["moments"]["count"] == theirs["moments"]["count"] == 6
    missing = {k: v for k, v in state.items() if k != "swag"}
    with pytest.raises(InvalidValue, match="was not saved by a swag run"):
        resumed.load_state_dict(missing)


def test_the_noise_of_real_targets_is_averaged():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    method = make(net, likelihood="gaussian", collect_every=4)
    x, y = clusters()
    raw = []
    for step in range(40):
        method.step((x, y.float()))
        if step + 1 > 20 and (step + 1 - 20) % 4 == 0:
            raw.append(float(method.likelihood.raw_noise_std.detach()))
    found = float(method.posterior().likelihood.raw_noise_std.detach())
    assert found == pytest.approx(np.mean(raw), rel=1e-5)
    assert found != float(method.likelihood.raw_noise_std.detach())


def test_shared_and_frozen_parameters():
    """A weight under two names is drawn once; what is not trained stays as it is."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    head = nn.Linear(4, 3)
    head.bias.requires_grad_(False)
    method = make(nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head), start=0.2)
    run(method, 40)
    with method.posterior().draws.sample(0, seed=3, noise="weight") as net:
        assert net[0].weight_values is net[2].weight_values
        assert not torch.equal(net[0].weight_values, method.model[0].weight_values)
        assert torch.equal(net[4].bias, head.bias)


@pytest.mark.parametrize("options", [{"rank": 0}, {"scale": 0.0}, {"sparsity": 0.6}])
def test_a_finished_run_predicts_from_its_file(tmp_path, options):
    config = RunConfig(
        data="digits", method="swag", method_options=options, epochs=2, batch_size=128
    )
    train(config, tmp_path / "run")
    posterior = gs.load(tmp_path / "run")
    assert posterior.max_samples == (1 if "scale" in options else None)
    x = torch.rand(7, 64)
    found = posterior.predict(x, 4)
    assert torch.equal(load_run(tmp_path / "run").posterior.predict(x, 4).samples, found.samples)


@pytest.mark.parametrize(
    "options", [{"rank": 1}, {"rank": -1}, {"swa_lr": 0.0}, {"lr": 0.0}, {"collect_every": 0}]
)
def test_refusals(options):
    with pytest.raises(InvalidValue, match=next(iter(options))):
        make(**options)
