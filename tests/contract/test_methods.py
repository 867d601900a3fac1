"""What every method must do. Parametrised by the table, so a new row joins by itself.

Methods of the package run again with options that change their posterior (``variants``), and three
methods of the test's own (``throwaway``) run through all of it too: what they do a new method
may do without touching the package.
"""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

import gossamer as gs
from contract.throwaway import MOVES_BUDGET, THROWAWAY, Gate, gated_parts
from contract.variants import VARIANTS
from gossamer.errors import InvalidData, InvalidValue, NonFinite
from gossamer.inference import METHODS, Batch, SwapInfo
from gossamer.nn import at_mean, sparse_layers, stochastic_modules
from reference.method_runs import CONVERTIBLE, base, build, clusters, has, network, run

JOINT = ("rigl_x2", "ngvi_x2", "ssvi_x2", "sgd_x2", "rigl_c2", "ngvi_c2", "ssvi_c2")
"""Methods with members: what all methods must do these must do too."""

ENTRIES = {
    **METHODS,
    **VARIANTS,
    **THROWAWAY,
    **{name: METHODS[base(name)] for name in JOINT},
}
every_method = pytest.mark.parametrize("name", ENTRIES)


def additions_of(name: str) -> list[str | None]:
    if name in MOVES_BUDGET:
        return ["grad", "grad_mean", "grad_multi"]  # random draws need a fixed budget
    settings = {field.name for field in dataclasses.fields(ENTRIES[name].config)}
    return ["grad", "grad_mean", "grad_multi", "random"] if "addition" in settings else [None]


ADDITIONS = [(name, addition) for name in ENTRIES for addition in additions_of(name)]


def leaves(state, path=""):
    """Every leaf of a nested state with its path; containers must be plain."""
    if isinstance(state, dict):
        for key, value in state.items():
            assert type(key) in (str, int), path
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from leaves(value, f"{path}/{i}")
    else:
        yield path, state


def assert_same_state(one, two) -> None:
    ours, theirs = dict(leaves(one)), dict(leaves(two))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == theirs[path].dtype, path
            assert torch.equal(value, theirs[path]), path
        else:
            assert value == theirs[path], path


@every_method
def test_build(name):
    net = network()
    before = copy.deepcopy(net.state_dict())
    method = build(name, net=net)
    assert method.name == base(name)
    assert isinstance(method.model, nn.Module)
    assert isinstance(method.likelihood, gs.Categorical)
    assert method.posterior().max_samples is None or method.posterior().max_samples >= 1
    assert isinstance(method.posterior().draws.by_noise, bool)
    run(method, 2)
    assert type(net[0]) is nn.Linear, "the network is copied"
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert METHODS[base(name)].about


@every_method
def test_a_step_reports_plain_numbers(name):
    method = build(name)
    for info in run(method, 8):
        for field in ("loss", "nll", "kl", "kl_weight", "lr"):
            value = getattr(info, field)
            assert type(value) is float, field
            assert math.isfinite(value), field
        assert type(info.accuracy) is float
        assert 0.0 <= info.accuracy <= 1.0
        assert info.kl >= 0.0
        assert info.swap is None or isinstance(info.swap, SwapInfo)


@every_method
def test_steps_learn_an_easy_problem(name):
    method = build(name, total_steps=150)
    x, y = clusters(seed=1)
    rows = torch.arange(60)

    def nll() -> float:
        return -float(gs.predict(method, x, 8).probs[rows, y].log().mean())

    before = nll()
    infos = run(method, 150)
    after = nll()
    assert after < 0.5 * before
    assert infos[-1].nll < infos[0].nll
    assert float((gs.predict(method, x, 8).label == y).float().mean()) > 0.95


@every_method
def test_sampling(name):
    method = build(name)
    run(method, 3)
    x, _ = clusters(10)
    method.model.eval()
    outside = method.model(x)

    def drawn(index: int, seed: int) -> torch.Tensor:
        with method.posterior().draws.sample(index, seed=seed, noise="weight") as net:
            return net(x).detach()

    assert torch.equal(drawn(0, 7), drawn(0, 7))
    if method.posterior().max_samples is None:
        assert not torch.equal(drawn(0, 7), drawn(1, 8))
    with pytest.raises(KeyError), method.posterior().draws.sample(0, seed=1, noise="weight"):
        raise KeyError
    assert torch.equal(method.model(x), outside), "the context leaves no trace"


@every_method
def test_the_seed_fixes_everything(name):
    one, two, other = build(name), build(name), build(name, seed=1)
    states = []
    for method in (one, two, other):
        torch.manual_seed(5)
        run(method, 8)
        states.append(method.state_dict())
    assert_same_state(states[0], states[1])
    weights = [torch.cat([p.flatten() for p in m.model.parameters()]) for m in (one, other)]
    assert not torch.equal(*weights)


@every_method
def test_structure_has_a_generator_of_its_own(name):
    """Equal generators give equal supports and weights, wherever torch's own generator stands."""
    made, net = [], network()
    for seed in (1, 2):
        method = build(name, seed=seed, net=net, generator=torch.Generator().manual_seed(7))
        made.append(method.model.state_dict())
    assert_same_state(*made)


@every_method
def test_state_is_plain(name):
    method = build(name)
    run(method, 4)
    for path, value in leaves(method.state_dict()):
        plain = type(value) in (int, float, str, bool, type(None))
        assert plain or isinstance(value, torch.Tensor), (path, type(value))


@pytest.mark.parametrize(("name", "addition"), ADDITIONS)
@pytest.mark.parametrize("stop", [0, 2, 3, 7])
def test_resuming_is_bit_equal(name, addition, stop):
    """Saved before the first step, armed before a swap (2), right after one (3), and later.

    The state goes into a method built with another seed, so with another support and weights.
    """
    options = {} if addition is None else {"addition": addition}
    straight = build(name, **options)
    torch.manual_seed(9)
    run(straight, stop)
    state, noise = copy.deepcopy(straight.state_dict()), torch.get_rng_state()
    infos = run(straight, 8)
    end = torch.get_rng_state()
    resumed = build(name, seed=123, **options)
    resumed.load_state_dict(state)
    torch.set_rng_state(noise)
    assert run(resumed, 8) == infos
    assert torch.equal(torch.get_rng_state(), end)
    assert_same_state(resumed.state_dict(), straight.state_dict())
    x, _ = clusters(12)
    one, two = gs.predict(straight, x, 3), gs.predict(resumed, x, 3)
    assert torch.equal(one.samples, two.samples)
    if addition is not None:
        swaps = [info.swap for info in infos if info.swap is not None]
        assert sum(layer.added for swap in swaps for layer in swap.layers.values()) > 0


@every_method
def test_loading_does_not_tie_two_methods_together(name):
    one, two = build(name), build(name, seed=1)
    run(one, 2)
    two.load_state_dict(one.state_dict())
    before = copy.deepcopy(one.state_dict())
    run(two, 4)
    assert_same_state(one.state_dict(), before)


@every_method
def test_the_state_of_another_method_is_refused(name):
    others = [other for other in ENTRIES if other != name]
    states = {other: build(other).state_dict() for other in others}
    method = build(name)
    before = copy.deepcopy(method.state_dict())
    assert before["method"] == base(name)
    for state in states.values():
        with pytest.raises(InvalidValue, match=f"was not saved by a {base(name)} run"):
            method.load_state_dict(state)
    assert_same_state(method.state_dict(), before)


@every_method
@pytest.mark.parametrize("sparsity", [0.3, 0.61, 0.9])
def test_the_number_of_weights_is_exact_and_constant(name, sparsity):
    if not has(name, "sparsity"):
        method = build(name)
        nnz = [layer.nnz for layer in sparse_layers(method.model).values()]
        members = getattr(method, "members", [method])
        assert sum(nnz) == len(members) * CONVERTIBLE, "a dense method keeps all"
        return
    # A method that prunes has a constant number as long as nothing falls below its threshold.
    fixed = {"prune_threshold": 0.0} if has(name, "prune_threshold") else {}
    method = build(name, sparsity=sparsity, **fixed)
    start = {n: layer.nnz for n, layer in sparse_layers(method.model).items()}
    assert sum(start.values()) == round((1 - sparsity) * CONVERTIBLE)
    for _ in range(12):
        run(method, 1)
        now = {n: layer.nnz for n, layer in sparse_layers(method.model).items()}
        assert sum(now.values()) == sum(start.values())
        assert now == start or name in MOVES_BUDGET
    assert gs.summary(method.model).nnz == sum(start.values())
    if name in MOVES_BUDGET:
        assert now != start, "weights went from one layer to another"


@every_method
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian", "poisson"])
def test_every_likelihood(name, likelihood):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    method = build(name, net=net, likelihood=likelihood)
    x, y = clusters()
    target = (y > 0).float()
    infos = [method.step((x, target)) for _ in range(12)]
    assert infos[-1].nll < infos[0].nll  # the loss may rise with the weight of its KL
    assert (infos[0].accuracy is None) == (likelihood != "bernoulli")
    pred = gs.predict(method, x[:5], 3)
    first = pred.probs if likelihood == "bernoulli" else pred.mean
    assert first.shape == ((5, 2) if likelihood == "bernoulli" else (5,))


@every_method
def test_a_batch_of_one_row(name):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    method = build(name, net=net, likelihood="gaussian")
    assert math.isfinite(method.step((torch.randn(1, 4), torch.randn(1))).loss)


@every_method
def test_bad_batches_change_nothing(name):
    method = build(name, net=nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
    run(method, 2)
    x, y = clusters()
    before = copy.deepcopy(dict(method.model.state_dict()))
    with pytest.raises(NonFinite, match="check inputs and targets"):
        method.step((x * math.nan, y))
    with pytest.raises(InvalidData, match="labels must lie in"):
        method.step((x, y + 1))
    with pytest.raises(InvalidData, match="target shape"):
        method.step((x, y[:-1]))
    for key, value in method.model.state_dict().items():
        assert torch.equal(value, before[key]), key


@every_method
def test_whatever_draws_is_seeded_counted_and_shown(name):
    """Sampling, the KL and the summary ask modules, not classes: a test's own one is in all."""
    method = build(name)
    run(method, 2)
    model, (x, _) = method.model.eval(), clusters(7)
    means = model(x)
    noisy = stochastic_modules(model)
    for noise in ("weight", "local"):
        with gs.sampling(model, seed=3, noise=noise):
            one = model(x)
        with gs.sampling(model, seed=3, noise=noise):
            two = model(x)
        with gs.sampling(model, seed=4, noise=noise):
            other = model(x)
        assert torch.equal(one, two)
        assert torch.equal(one, other) == (not noisy)
        assert torch.equal(one, means) == (not noisy)
    assert torch.equal(model(x), means)
    with torch.no_grad():
        total = sum(float(module.kl_divergence()) for module in noisy.values())
        assert float(gs.kl_divergence(model)) == pytest.approx(total, rel=1e-5)
    shown = gs.summary(model)
    rows = {row.name for row in shown.rows} | {row.name for row in shown.noisy}
    assert {name or "root" for name in noisy} <= rows
    assert all(name in str(shown) for name in noisy)


@every_method
def test_weights_of_examples(name):
    """An example of weight 2 counts as two, one of weight 0 not at all; without noise exactly."""
    x, y = clusters(12)
    rows = torch.tensor([0, 0, 1, 2, 4, 4])
    counts = torch.bincount(rows, minlength=6).float()
    plain = build(name, net=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
    weighted = copy.deepcopy(plain)
    step = {}
    for method, batch in (
        (plain, Batch(x[rows], y[rows])),
        (weighted, Batch(x[:6], y[:6], counts)),
    ):
        torch.manual_seed(0)
        with at_mean(method.model):
            step[method] = method.step(batch)
    assert step[weighted].nll == pytest.approx(step[plain].nll, rel=1e-5)
    for ours, theirs in zip(weighted.model.parameters(), plain.model.parameters(), strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    with pytest.raises(InvalidData, match=r"weight shape = \(3,\): must be \(6,\)"):
        plain.step((x[:6], y[:6], torch.ones(3)))
    with pytest.raises(InvalidData, match=r"weight.*finite and not negative"):
        plain.step((x[:6], y[:6], torch.tensor([1.0, 1, 1, 1, 1, -1])))


@every_method
def test_accumulating_parts_swaps_as_the_whole_batch_does(name):
    """Gradients of the parts are one gradient, also for what enters the support."""
    net = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3)).double()
    x, y = clusters(20)
    methods = [build(name, net=net, accumulate=count) for count in (1, 3)]
    for method in methods:
        torch.manual_seed(4)
        with at_mean(method.model):
            infos = [method.step((x.double(), y)) for _ in range(7)]
    one, three = (sparse_layers(method.model) for method in methods)
    for key, layer in one.items():
        assert layer.support.same_as(three[key].support), key
    if has(name, "addition"):
        assert sum(s.added for i in infos if i.swap for s in i.swap.layers.values()) > 0


@every_method
def test_a_step_that_fails_does_not_move_the_schedules(name):
    """Its KL weight and learning rate are those of the next try."""
    one, two = (build(name, accumulate=3) for _ in range(2))
    x, y = clusters(9)
    broken = x.clone()
    broken[-1] = math.nan
    with pytest.raises(NonFinite):
        two.step((broken, y))
    infos = [method.step((x, y)) for method in (one, two)]
    assert infos[0].kl_weight == infos[1].kl_weight
    assert infos[0].lr == infos[1].lr


LATER = ("csg", "cv_", "ensemble")
"""Parts of the names of methods that the first version had not, or whose states it named."""


@pytest.mark.parametrize("name", [n for n in METHODS if not any(part in n for part in LATER)])
def test_states_of_the_first_version_still_load(name):
    """They call backends engines, and those of gradient methods have no name."""
    one, two = build(name), build(name, seed=1)
    run(one, 4)
    state = copy.deepcopy(one.state_dict())
    state["engines"] = state.pop("backends")
    if "elbo" in state:
        del state["method"]
    two.load_state_dict(state)
    assert_same_state(two.state_dict(), one.state_dict())


@every_method
def test_a_posterior_goes_through_a_file(name, tmp_path):
    """Modules of the test's own too, also where units have left."""
    method = build(name)
    run(method, 8)
    x, _ = clusters(9)
    posterior = method.posterior()
    posterior.save(tmp_path / "it.safetensors")
    plain = network()
    if name == "gated":
        plain.insert(1, Gate(16))
    loaded = gs.load(tmp_path / "it.safetensors", network=plain)
    assert torch.equal(loaded.predict(x, 3).samples, posterior.predict(x, 3).samples)


@every_method
def test_accumulating_parts_is_the_step_of_the_whole_batch(name):
    """Without noise and BatchNorm the gradients agree to rounding, uneven parts included."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = clusters(10)
    methods = [build(name, net=net, accumulate=count) for count in (1, 3)]
    infos = []
    for method in methods:
        torch.manual_seed(4)
        with at_mean(method.model):
            infos.append(method.step((x, y)))
    one, three = infos
    assert three.loss == pytest.approx(one.loss, rel=1e-5)
    assert three.nll == pytest.approx(one.nll, rel=1e-5)
    assert three.kl == pytest.approx(one.kl, rel=1e-5)
    assert three.accuracy == pytest.approx(one.accuracy)
    for ours, theirs in zip(*(m.model.parameters() for m in methods), strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_units_really_left():
    """The gated method dropped units: its vectors and both layers are shorter, Adam's too."""
    method = build("gated", prune_threshold=9.0)
    run(method, 20)
    before, gate, after = gated_parts(method.model)
    kept = gate.alive.numel()
    assert 0 < kept < 16
    assert gate.mean.numel() == gate.log_std.numel() == kept
    assert method.optimizer.state[gate.mean]["exp_avg"].numel() == kept
    rows = before.support.positions() // 4
    columns = after.support.positions() % 16
    assert set(rows.tolist()) | set(columns.tolist()) <= set(gate.alive.tolist())
    assert gs.predict(method, clusters(5)[0], 3).probs.shape == (5, 3)


def test_the_chain_feels_its_prior():
    """A narrow Laplace prior leaves smaller weights than a wide one: the energy has it."""
    sizes = {}
    for scale in (0.05, 5.0):
        method = build("l1_chain", scale=scale, total_steps=150)
        run(method, 150)
        layers = sparse_layers(method.model).values()
        sizes[scale] = sum(float(layer.leading().detach().abs().sum()) for layer in layers)
    assert sizes[0.05] < 0.6 * sizes[5.0]
