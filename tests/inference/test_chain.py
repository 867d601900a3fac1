"""Cycles, kept samples and what predictions make of them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.chain import ChainConfig, sample_steps

CHAINS = ["csgld", "csghmc", "cv_sghmc", "em_mcmc"]
every_chain = pytest.mark.parametrize("name", CHAINS)
ROWS, TOTAL = 30, 40


def data(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(ROWS) % 3
    return 2.0 * torch.eye(3, 5)[y] + torch.randn(ROWS, 5, generator=generator), y


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def build(name: str, *, seed: int = 0, net: nn.Module | None = None, **settings):
    torch.manual_seed(seed)
    settings = {"num_data": ROWS, "total_steps": TOTAL, "lr": 0.02, **settings}
    return gs.build(name, network() if net is None else net, **settings)


# --- when samples are kept ------------------------------------------------------------------------


def brute_force_steps(total: int, cycles: int, per_cycle: int, every: int | None) -> set[int]:
    """Walk through the run; ``t mod C`` in exact thirds, quarters, ... of a step."""
    members: dict[int, list[int]] = {}
    for t in range(total):  # step number t + 1 is taken at time t
        members.setdefault(t * cycles // total, []).append(t + 1)
    gap = every if every is not None else max(1, total // cycles // 20)
    found: set[int] = set()
    for steps in members.values():
        found |= set(steps[::-1][::gap][:per_cycle])
    return found


@given(
    total=st.integers(1, 400),
    cycles=st.integers(1, 12),
    per_cycle=st.integers(1, 6),
    every=st.none() | st.integers(1, 50),
)
def test_samples_are_the_last_steps_of_every_cycle(total, cycles, per_cycle, every):
    cycles = min(cycles, total)
    config = ChainConfig(cycles=cycles, samples_per_cycle=per_cycle, sample_every=every)
    found = sample_steps(config, total)
    assert found == brute_force_steps(total, cycles, per_cycle, every)
    assert total in found
    assert cycles <= len(found) <= cycles * per_cycle
    assert all(1 <= step <= total for step in found)


def test_the_papers_twelve_samples():
    config = ChainConfig(cycles=4, samples_per_cycle=3)
    assert sorted(sample_steps(config, 400)) == sorted(
        100 * c - 5 * i for c in (1, 2, 3, 4) for i in (0, 1, 2)
    )


@every_chain
@pytest.mark.parametrize(("total", "cycles", "explore"), [(40, 4, 0.5), (17, 3, 0.3), (10, 1, 1.0)])
def test_step_and_temperature_follow_the_formula(name, total, cycles, explore):
    method = build(name, total_steps=total, cycles=cycles, explore=explore, temperature=0.7)
    x, y = data()
    for t in range(total):
        info = method.step((x, y))
        length = total / cycles
        phase = math.fmod(t * cycles, total) / cycles  # t mod C without rounding C
        wanted = 0.5 * 0.02 * (1.0 + math.cos(math.pi * phase / length))
        assert info.lr == pytest.approx(wanted, rel=1e-12)
        for group in method.optimizer.param_groups:
            assert group["lr"] == pytest.approx(wanted, rel=1e-12)
            explores = t * cycles % total < explore * total
            assert group["temperature"] == (0.0 if explores else 0.7)


@pytest.mark.parametrize("name", ["csgld", "csghmc"])
def test_exploring_is_descent(name):
    """At temperature 0 two seeds walk the same way; the rest of the cycle parts them."""
    x, y = data()
    net = network()
    one, two = (build(name, net=net, cycles=2, explore=0.5) for _ in range(2))
    for number, method in enumerate((one, two)):
        torch.manual_seed(number)
        for _ in range(10):
            method.step((x, y))
    assert torch.equal(one.model[0].leading(), two.model[0].leading())
    for method in (one, two):
        method.step((x, y))
    assert not torch.equal(one.model[0].leading(), two.model[0].leading())


# --- what is kept, and what predictions make of it ------------------------------------------------


@every_chain
@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_predictions_average_the_kept_networks(name, sparsity):
    x, y = data()
    method = build(name, cycles=2, samples_per_cycle=2, sample_every=3, sparsity=sparsity)
    x_new = torch.randn(7, 5)
    nets, steps = [], []
    assert method.posterior().max_samples == 1
    for number in range(1, TOTAL + 1):
        method.step((x, y))
        if number in method.sample_steps:
            steps.append(number)
            nets.append(copy.deepcopy(method.model).eval())
    assert steps == [17, 20, 37, 40]
    assert method.posterior().max_samples == len(method.samples) == 4
    with torch.no_grad():
        probs = torch.stack([net(x_new).softmax(-1) for net in nets])
    for count in (1, 2, 4, 9):
        found = gs.predict(method, x_new, count)
        kept = probs[-min(count, 4) :]
        torch.testing.assert_close(found.probs, kept.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.samples, kept.flip(0), rtol=1e-5, atol=1e-6)


@every_chain
def test_before_the_first_sample_the_present_network_predicts(name):
    method = build(name)
    x, y = data()
    method.step((x, y))
    with torch.no_grad():
        wanted = method.model.eval()(x).softmax(-1)
    found = gs.predict(method, x, 5)
    assert found.samples.shape[0] == 1
    torch.testing.assert_close(found.probs, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [*CHAINS, "cv_adam"])
@pytest.mark.parametrize("steps", [1, 12])
def test_sampling_leaves_no_trace(name, steps):
    keeps = {} if name == "cv_adam" else {"samples_per_cycle": 2, "sample_every": 2}
    method = build(name, cycles=4, **keeps)
    x, y = data()
    for _ in range(steps):
        method.step((x, y))
    method.model(x).sum().backward()
    parameters = {
        n: (id(p), p.detach().clone(), p.grad.clone()) for n, p in method.model.named_parameters()
    }
    state, noise = copy.deepcopy(method.state_dict()), torch.get_rng_state()

    def check() -> None:
        assert torch.equal(torch.get_rng_state(), noise)
        for n, p in method.model.named_parameters():
            identity, value, grad = parameters[n]
            assert id(p) == identity
            assert torch.equal(p.detach(), value), n
            assert p.grad is not None, n
            assert torch.equal(p.grad, grad), n
        for key, value in method.model.state_dict().items():
            assert torch.equal(value, state["model"][key]), key

    gs.predict(method, x, 3)
    check()
    with pytest.raises(KeyError), method.posterior().draws.sample(0, seed=1, noise="weight"):
        raise KeyError
    check()
    with torch.inference_mode():
        gs.predict(method, x, 3)
    check()
    method.step((x, y))


def test_a_sample_that_does_not_exist():
    method = build("csghmc", cycles=40)
    x, y = data()
    method.step((x, y))
    method.step((x, y))
    with pytest.raises(IndexError), method.posterior().draws.sample(2, seed=0, noise="weight"):
        pass


@pytest.mark.parametrize("name", [*CHAINS, "cv_adam"])
def test_the_noise_of_the_likelihood_is_trained_without_noise(name):
    """Same weights for two seeds means same likelihood parameters, though the weights then part."""
    x, y = data()
    net, found = network(), []
    net[2] = nn.Linear(8, 1)
    for seed in (1, 2):
        method = (
            build(name, net=net, likelihood="gaussian", betas=(0.0, 1.0))
            if name != "csgld"
            else build(name, net=net, likelihood="gaussian")
        )
        start = method.likelihood.raw_noise_std.detach().clone()
        with torch.no_grad():
            output = method.model(x)
        raw = start.clone().requires_grad_()
        std = nn.functional.softplus(raw)
        nll = -torch.distributions.Normal(output.squeeze(1), std).log_prob(y.float()).mean()
        (grad,) = torch.autograd.grad(nll, raw)
        torch.manual_seed(seed)
        method.step((x, y.float()))
        torch.testing.assert_close(
            method.likelihood.raw_noise_std.detach(), start - 0.02 * grad, rtol=1e-5, atol=1e-7
        )
        found.append(method)
    assert not torch.equal(found[0].model[0].leading(), found[1].model[0].leading())


@every_chain
def test_a_batch_with_nan_changes_nothing(name):
    method = build(name)
    x, y = data()
    for _ in range(5):
        method.step((x, y))
    state, noise = copy.deepcopy(method.state_dict()), torch.get_rng_state()
    with pytest.raises(NonFinite):
        method.step((x * math.nan, y))
    assert torch.equal(torch.get_rng_state(), noise)
    method.step((x, y))
    other = build(name, seed=3)
    other.load_state_dict(state)
    torch.set_rng_state(noise)
    other.step((x, y))
    for key, value in other.model.state_dict().items():
        assert torch.equal(value, method.model.state_dict()[key]), key


@pytest.mark.parametrize("folder", [False, True])
def test_samples_within_a_budget(folder, tmp_path):
    x, y = data()
    free = build("csghmc", cycles=4)
    settings = {"sample_folder": str(tmp_path)} if folder else {}
    tight = build("csghmc", cycles=4, budget_mb=600 / 2**20, **settings)
    for method in (free, tight):
        torch.manual_seed(1)
        for step in range(TOTAL):
            if method is tight and not folder and step == 9:
                with pytest.raises(InvalidValue, match="budget"):
                    method.step((x, y))
                return
            method.step((x, y))
    assert tight.samples.nbytes <= 600 < free.samples.nbytes
    assert torch.equal(gs.predict(free, x, 12).samples, gs.predict(tight, x, 12).samples)
    state = copy.deepcopy(tight.state_dict())
    again = build("csghmc", seed=5, cycles=4)
    again.load_state_dict(state)
    assert torch.equal(gs.predict(again, x, 12).samples, gs.predict(tight, x, 12).samples)


@every_chain
def test_dense_weights_that_do_not_move_are_kept_once(name):
    net = network()
    net[0].weight.requires_grad_(False)
    whole = {"prune_threshold": 0.0} if name == "em_mcmc" else {}
    method = build(name, net=net, cycles=4, samples_per_cycle=1, **whole)
    x, y = data()
    for _ in range(TOTAL):
        method.step((x, y))
    frozen = 8 * 5 * 4
    changing = (8 + 8 * 3 + 3) * 4
    assert method.samples.nbytes_unshared == 4 * (frozen + changing)
    assert method.samples.nbytes == frozen + 4 * changing


# --- CV-Adam draws from its Gaussian --------------------------------------------------------------


def test_cv_adam_draws_have_mean_mu_and_spread_alpha_tau():
    method = build("cv_adam", alpha=0.3, alpha_end=0.1, tau_lr=1.0)
    x, y = data()
    for _ in range(25):
        method.step((x, y))
    draws = 1500
    held: dict[str, list[torch.Tensor]] = {n: [] for n, _ in method.model.named_parameters()}
    for seed in range(draws):
        with method.posterior().draws.sample(0, seed=seed, noise="weight") as net:
            for n, p in net.named_parameters():
                held[n].append(p.detach().clone())
    factor = 0.5 * (1.0 + math.cos(math.pi * 24 / TOTAL))
    alpha = 0.1 + 0.2 * factor
    worst = []
    for n, p in method.model.named_parameters():
        state = method.optimizer.state[p]
        found = torch.stack(held[n]).double()
        std = alpha / (1.0 + torch.exp(-state["rho"].double()))
        worst.append((found.mean(0) - state["mean"]).div(std / draws**0.5).abs().max())
        worst.append((found.std(0) / std - 1.0).mul((2 * draws) ** 0.5).abs().max())
    assert max(worst) < 4.5, "in standard errors, over 67 weights"
    together = torch.cat([torch.stack(h).flatten(1) for h in held.values()], 1).double()
    correlation = torch.corrcoef(together.T)
    correlation.fill_diagonal_(0.0)
    assert float(correlation.abs().max()) * draws**0.5 < 5.5, "weights are independent"


def test_cv_adam_has_any_number_of_samples_and_keeps_none():
    method = build("cv_adam")
    x, y = data()
    for _ in range(TOTAL):
        method.step((x, y))
    assert method.posterior().max_samples is None
    assert "samples" not in method.state_dict()
    assert gs.predict(method, x, 20).samples.shape[0] == 20


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("csghmc", {"lr": -1.0}, "lr"),
        ("csghmc", {"temperature": -0.1}, "temperature"),
        ("csgld", {"temperature": math.nan}, "temperature"),
        ("csghmc", {"weight_decay": -1e-3}, "weight_decay"),
        ("csghmc", {"cycles": 0}, "cycles"),
        ("csghmc", {"cycles": TOTAL + 1}, "cycles.*40 steps"),
        ("csghmc", {"samples_per_cycle": 0}, "samples_per_cycle"),
        ("csghmc", {"sample_every": 0}, "sample_every"),
        ("csghmc", {"explore": 1.5}, "explore"),
        ("csghmc", {"budget_mb": 0.0}, "budget_mb"),
        ("csghmc", {"betas": (1.0, 1.0)}, "betas"),
        ("cv_sghmc", {"noise_scale": 1.0}, "exactly one"),
        ("cv_sghmc", {"temperature": None}, "exactly one"),
        ("cv_sghmc", {"tau_lr": -1.0}, "tau_lr"),
        (
            "cv_sghmc",
            {"temperature": None, "noise_scale": 1.0, "explore": 0.5},
            "explore.*noise_scale",
        ),
        ("em_mcmc", {"preset": "paper", "explore": 0.5}, "explore.*noise_scale"),
        ("cv_adam", {"alpha": 0.0}, "alpha"),
        ("cv_adam", {"alpha_end": math.inf}, "alpha_end"),
    ],
)
def test_bad_settings_are_refused_by_name(name, settings, message):
    with pytest.raises(InvalidValue, match=message):
        build(name, **settings)
