"""``NaturalGradient`` in loops: draws, parts, scaling, resuming, groups, swaps, settings."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from cases.classes import N, problem
from gossamer.errors import InvalidValue, NonFinite, UnknownName
from gossamer.nn import weights_of
from gossamer.optim import NaturalGradient


def small(generator=None, **settings):
    net, x, y = problem(torch.float32)
    settings = {
        "num_data": N,
        "generator": generator or torch.Generator().manual_seed(5),
        **settings,
    }
    return net, NaturalGradient(net.parameters(), 0.01, **settings), x, y


def gradient_at_draw(opt, loss, scale=1.0):
    with opt.sampled():
        (loss() * scale).backward()


def test_means_outside_and_back_to_the_bit():
    net, opt, _, _ = small()
    before = net.weight.detach().clone()
    with opt.sampled():
        inside = net.weight.detach().clone()
        with pytest.raises(InvalidValue, match="is entered twice"), opt.sampled():
            pass
        with pytest.raises(InvalidValue, match="step: needs the means; leave sampled"):
            opt.step()
    assert torch.equal(net.weight, before)
    z = (inside - before) / opt.std_of(net.weight)
    assert 0.5 < float(z.std()) < 1.6
    with pytest.raises(RuntimeError, match="mine"), opt.sampled():
        raise RuntimeError("mine")
    assert torch.equal(net.weight, before)


def test_gradients_from_outside_are_refused():
    net, opt, x, y = small()
    F.cross_entropy(net(x), y).backward()
    before = net.weight.detach().clone()
    with pytest.raises(InvalidValue, match=r"gradients of group 0: were not computed at a draw"):
        opt.step()
    assert torch.equal(net.weight, before)
    with opt.sampled():
        loss = F.cross_entropy(net(x * net.weight.sum()), y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def states_after(loop, steps=4):
    net, opt, x, y = small()
    for _ in range(steps):
        loop(net, opt, x, y)
    return {"mean": net.weight.detach().clone(), **opt.state[net.weight]}


def assert_alike(one, two, rtol=1e-5):
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, two[name], rtol=rtol, atol=1e-7, msg=name)
        else:
            assert value == two[name]


def plain_loop(net, opt, x, y):
    opt.zero_grad()
    gradient_at_draw(opt, lambda: F.cross_entropy(net(x), y))
    opt.step()


def test_parts_of_a_batch_are_one_gradient():
    def parts(net, opt, x, y):
        opt.zero_grad()
        with opt.sampled():
            for rows in torch.arange(N).split(100):
                (F.cross_entropy(net(x[rows]), y[rows]) / 4).backward()
        opt.step()

    assert_alike(states_after(plain_loop), states_after(parts))


@pytest.mark.parametrize("draws", [1, 2])
def test_loss_scaling_and_clipping_reach_the_curvature(draws):
    """Scaled up by 1024 in the passes and down before the step: nothing changes."""

    def loop(scale, clip):
        def run(net, opt, x, y):
            opt.zero_grad()
            for _ in range(draws):
                gradient_at_draw(opt, lambda: F.cross_entropy(net(x), y) / draws, scale)
            net.weight.grad.mul_(clip / scale)
            opt.step()

        return run

    one, two = states_after(loop(1.0, 1.0)), states_after(loop(1024.0, 1.0))
    assert_alike(one, two)
    clipped = states_after(loop(1.0, 0.25), steps=1)
    whole = states_after(loop(1.0, 1.0), steps=1)
    beta, h0, d = 0.998, 0.5, 3e-4
    # To first order in 1-β the change of h is linear in the gradient.
    change = [(s["curvature"] - h0 * beta) / (1 - beta) for s in (clipped, whole)]
    correction = [0.5 * (1 - beta) * (c - h0) ** 2 / (h0 + d) for c in change]
    hats = [c - k for c, k in zip(change, correction, strict=True)]
    torch.testing.assert_close(hats[0], 0.25 * hats[1], rtol=0.03, atol=3e-3)


@pytest.mark.parametrize("change", ["values", "processes"])
def test_several_draws_refuse_gradients_that_changed_otherwise(change):
    """Clipped value by value, or averaged with another process's: ε⊙grad would not be theirs."""

    def changed(net, opt, x, y):
        opt.zero_grad()
        for _ in range(2):
            gradient_at_draw(opt, lambda: F.cross_entropy(net(x), y) / 2)
        before, mean = net.weight.grad.clone(), net.weight.detach().clone()
        if change == "values":
            nn.utils.clip_grad_value_(net.parameters(), float(before.abs().median()))
        else:
            net.weight.grad.add_(before.flip(0)).div_(2.0)
        with pytest.raises(InvalidValue, match="other than by one factor"):
            opt.step()
        assert torch.equal(net.weight, mean), "nothing has moved"

    states_after(changed, steps=1)


def test_a_step_that_was_given_up_leaves_no_noise():
    """A loss scaler skips a step; the next one must know nothing of its draw."""

    def skipping(net, opt, x, y):
        state = opt.generator.get_state()
        opt.zero_grad()
        gradient_at_draw(opt, lambda: F.cross_entropy(net(x), y) * 5.0)
        opt.generator.set_state(state)
        plain_loop(net, opt, x, y)

    assert_alike(states_after(plain_loop), states_after(skipping), rtol=0.0)


def test_zeroing_inside_the_context_or_by_the_module_is_the_same():
    def inside(net, opt, x, y):
        with opt.sampled():
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
        opt.step()

    def by_module(net, opt, x, y):
        with opt.sampled():
            net.zero_grad()
            F.cross_entropy(net(x), y).backward()
        opt.step()

    def by_closure(net, opt, x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss.item()

        assert opt.step(closure) > 0.0

    wanted = states_after(plain_loop)
    for loop in (inside, by_module, by_closure):
        assert_alike(wanted, states_after(loop), rtol=0.0)


def test_resuming_is_bit_equal_also_through_copies_and_pickles():
    net, opt, x, y = small()
    for _ in range(3):
        plain_loop(net, opt, x, y)
    twin_net = copy.deepcopy(net)
    saved, noise = copy.deepcopy(opt.state_dict()), opt.generator.get_state()
    pair = pickle.loads(pickle.dumps((net, opt)))
    for _ in range(3):
        plain_loop(net, opt, x, y)
    twin = NaturalGradient(twin_net.parameters(), 0.5, num_data=7, generator=torch.Generator())
    twin.load_state_dict(saved)
    twin.generator.set_state(noise)
    for _ in range(3):
        plain_loop(twin_net, twin, x, y)
        plain_loop(*pair, x, y)
    for other_net, other in ((twin_net, twin), pair):
        assert torch.equal(other_net.weight, net.weight)
        for name, value in opt.state[net.weight].items():
            found = other.state[other_net.weight][name]
            assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


def test_equal_generators_give_equal_draws_wherever_torchs_own_stands():
    found = []
    for seed in (1, 2):
        net, opt, x, y = small(torch.Generator().manual_seed(9))
        torch.manual_seed(seed)
        plain_loop(net, opt, x, y)
        found.append(net.weight.detach().clone())
    assert torch.equal(*found)


def test_groups_have_their_own_size_and_plain_ones_no_noise():
    a, b, c = (nn.Parameter(torch.zeros(2000)) for _ in range(3))
    opt = NaturalGradient(
        [
            {"params": [a], "num_data": 100},
            {"params": [b], "num_data": 10_000, "temperature": 4.0},
            {"params": [c], "noisy": False},
        ],
        0.1,
        num_data=1,
        initial_curvature=1.0,
        weight_decay=0.0,
    )
    with opt.sampled():
        spreads = [float(p.detach().std()) for p in (a, b, c)]
    assert spreads[0] == pytest.approx(0.1, rel=0.06)
    assert spreads[1] == pytest.approx(0.02, rel=0.06)
    assert spreads[2] == 0.0
    assert opt.std_of(c) is None
    assert opt.std_of(torch.zeros(3)) is None


def test_frozen_parameters_and_missing_gradients_stay():
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3), requires_grad=False)
    opt = NaturalGradient([a, b], 0.1, num_data=10)
    with opt.sampled():
        assert torch.equal(b, torch.ones(3))
    opt.step()
    assert torch.equal(a, torch.ones(3))


def test_single_weights_cannot_rest():
    layer = nn.Linear(3, 2)
    opt = NaturalGradient(layer.parameters(), 1e-2, num_data=10)
    with pytest.raises(InvalidValue, match="requires_grad_"):
        opt.set_frozen(layer.weight, torch.ones(2, 3, dtype=torch.bool))
    opt.set_frozen(layer.weight, None)
    assert "moving" not in opt.state[layer.weight]


def test_swaps_carry_the_posterior():
    """Fresh weights: μ = 0, m = 0, h and v the mean of the survivors; the rest follow."""
    net = gs.to_sparse(nn.Linear(20, 10, bias=False), sparsity=0.7)
    opt = NaturalGradient(net.parameters(), 0.05, num_data=200)
    subspace = gs.Subspace(net, opt, total_steps=100, update_every=5)
    assert subspace.removal == "snr_abs"
    x, y = torch.randn(64, 20), torch.randint(10, (64,))
    (weight,) = weights_of(net)
    for step in range(5):
        with opt.sampled():
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
        opt.step()
        if step == 4:
            before = {
                "positions": net.support.positions().clone(),
                "ratio": (weight.values.abs() / opt.std_of(weight.values)).detach().clone(),
                **{k: v.clone() for k, v in opt.state[weight.values].items() if k != "step"},
            }
        info = subspace.step()
    added = info.layers[""].added
    assert added > 3
    after, now = net.support.positions(), opt.state[weight.values]
    stays = torch.isin(before["positions"], after)
    fresh = ~torch.isin(after, before["positions"])
    assert int(fresh.sum()) == added
    gone = before["ratio"][~stays]
    assert float(gone.max()) <= float(before["ratio"].sort().values[int(0.3 * 60)])
    for name, wanted in (("exp_avg", 0.0), ("curvature", None), ("exp_avg_sq", None)):
        kept = before[name][stays]
        assert torch.equal(now[name][~fresh], kept)
        value = kept.mean() if wanted is None else torch.tensor(wanted)
        torch.testing.assert_close(now[name][fresh], value.expand(added))
    assert torch.equal(weight.values[fresh], torch.zeros(added))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"update": "sgd"}, "update"),
        ({"betas": (0.9, 1.0)}, "beta2 = 1.0: must lie in"),
        ({"square_beta": -0.1}, "square_beta"),
        ({"initial_curvature": 0.0}, "initial_curvature = 0.0: must be finite and > 0"),
        ({"temperature": 0.0}, "temperature = 0.0: must be finite and > 0"),
        ({"max_step": -1.0}, "max_step"),
        ({"num_data": 0}, "num_data = 0: must be at least 1"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises((InvalidValue, UnknownName), match=message):
        NaturalGradient([nn.Parameter(torch.zeros(2))], 0.1, **{"num_data": 5, **settings})


def test_a_gradient_that_is_not_finite_moves_nothing():
    net, opt, x, y = small()
    plain_loop(net, opt, x, y)
    before = copy.deepcopy((net.weight.detach(), opt.state_dict()["state"]))
    gradient_at_draw(opt, lambda: F.cross_entropy(net(x) * math.inf, y))
    with pytest.raises(NonFinite):
        opt.step()
    assert torch.equal(net.weight, before[0])
    for name, value in opt.state_dict()["state"][0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[1][0][name])), name
