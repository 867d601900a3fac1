"""The optimisers as optimisers: loops, schedules, priors, saving, refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from gossamer.core.langevin import noise_scale
from gossamer.core.schedule import Cyclical
from gossamer.errors import InvalidValue, NonFinite
from gossamer.optim import CVSGHMC, SGHMC, SGLD, CVAdam, Langevin

BUILD = {
    "sgld": lambda p, **o: SGLD(p, **{"lr": 0.01, "num_data": 50, **o}),
    "sghmc": lambda p, **o: SGHMC(p, **{"lr": 0.01, "num_data": 50, **o}),
    "cv_sghmc": lambda p, **o: CVSGHMC(
        p, **{"lr": 0.01, "num_data": 50, "temperature": 1.0, "tau_lr": 1.0, **o}
    ),
    "printed": lambda p, **o: CVSGHMC(
        p, **{"lr": 0.01, "num_data": 50, "noise_scale": 0.14, "tau_lr": 1.0, **o}
    ),
    "cv_adam": lambda p, **o: CVAdam(
        p, **{"lr": 0.01, "num_data": 50, "alpha": 0.1, "tau_lr": 1.0, **o}
    ),
}
EVERY = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD.keys())


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)


def train(net: nn.Module, opt: Langevin, steps: int) -> None:
    """A plain loop on fixed data."""
    generator = torch.Generator().manual_seed(0)
    dtype = next(net.parameters()).dtype
    x = torch.randn(50, 4, generator=generator).to(dtype)
    y = x.sum(1, keepdim=True)
    for _ in range(steps):
        opt.zero_grad()
        (0.5 * (net(x) - y) ** 2).mean().backward()
        opt.step()


def weights(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_loop_learns(build, dtype):
    net = network(dtype)
    # The posterior of a million points is narrow: what is left of the loss is the fit.
    small = {"noise_scale": 1e-3} if build is BUILD["printed"] else {}
    opt = build(net.parameters(), lr=0.1, num_data=10**6, **small)
    if isinstance(opt, CVAdam):
        opt.param_groups[0].update(lr=1.0, alpha=1e-3)
    train(net, opt, 700)
    x = torch.linspace(-1, 1, 40).reshape(10, 4).to(dtype)
    assert float(((net(x) - x.sum(1, keepdim=True)) ** 2).mean().detach()) < 0.05
    for p in net.parameters():
        for value in opt.state[p].values():
            assert value.shape == p.shape
            assert value.dtype == dtype


@EVERY
def test_saved_and_loaded_it_goes_on_bit_for_bit(build):
    net = network()
    opt = build(net.parameters(), weight_decay=0.1)
    opt.set_decay(net[0].weight, torch.rand(3, 4))
    train(net, opt, 5)
    saved, state, noise = copy.deepcopy(net), copy.deepcopy(opt.state_dict()), torch.get_rng_state()
    train(net, opt, 5)
    again = build(saved.parameters(), lr=0.5)
    again.load_state_dict(state)
    torch.set_rng_state(noise)
    train(saved, again, 5)
    assert same(weights(net), weights(saved))
    for p, q in zip(net.parameters(), saved.parameters(), strict=True):
        assert opt.state[p].keys() == again.state[q].keys()
        assert same(list(opt.state[p].values()), list(again.state[q].values()))


@EVERY
def test_a_generator_of_ones_own(build):
    """The same draws from the same seed, and torch's default generator is not touched."""
    ends = []
    for seed in (7, 7, 8):
        net = network()
        before = torch.get_rng_state()
        opt = build(net.parameters(), generator=torch.Generator().manual_seed(seed))
        train(net, opt, 3)
        assert torch.equal(torch.get_rng_state(), before)
        assert not any("generator" in group for group in opt.state_dict()["param_groups"])
        ends.append(weights(net))
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


@EVERY
def test_a_copy_steps(build):
    net = network()
    opt = copy.deepcopy(build(net.parameters(), generator=torch.Generator()))
    assert opt.generator is None
    train(net, opt, 1)


@EVERY
def test_a_closure(build):
    net = network()
    opt = build(net.parameters())
    x = torch.ones(2, 4)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    expected = float(net(x).square().mean().detach())
    assert float(opt.step(closure).detach()) == pytest.approx(expected)
    assert net[0].weight.grad is not None
    assert opt.step() is None


@EVERY
def test_torchs_warm_restarts_are_the_papers_cycles(build):
    """Δt² = ½Δt₀²(1 + cos(π (t mod C)/C)), whatever the optimiser."""
    opt = build([nn.Parameter(torch.ones(2))], lr=0.3)
    schedule, formula = CosineAnnealingWarmRestarts(opt, T_0=7), Cyclical(21, 3)
    for t in range(21):
        assert opt.param_groups[0]["lr"] == pytest.approx(0.3 * formula(t), abs=1e-15)
        by_hand = 0.15 * (1 + math.cos(math.pi * (t % 7) / 7))
        assert opt.param_groups[0]["lr"] == pytest.approx(by_hand, abs=1e-15)
        opt.step()
        schedule.step()


@pytest.mark.parametrize("build", [BUILD["sghmc"], BUILD["cv_sghmc"], BUILD["printed"]])
def test_lr_is_the_square_of_the_time_step(build):
    """From rest at temperature 0 the first velocity is -β₂gΔt²; v then goes with the step.

    Not in the printed form, which keeps the displacement that a larger step left.
    """
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    off = {"noise_scale": 0.0} if build is BUILD["printed"] else {"temperature": 0.0}
    opt = build([w], lr=0.04, betas=(0.5, 2.0), **off)
    w.grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    opt.step()
    v = opt.state[w]["momentum_buffer"]
    # Algorithm 2 starts its velocity at N(0, 0.001²).
    assert torch.allclose(v, -2.0 * 0.04 * w.grad, rtol=0, atol=0.003)
    is_printed = build is BUILD["printed"]
    for lr, share in ((0.01, 0.5), (0.0, 0.0)):
        opt.param_groups[0]["lr"] = lr
        before, speed = w.detach().clone(), v.clone()
        opt.step()
        kept = 0.5 * (1.0 if is_printed else share) * speed
        assert torch.allclose(v, kept - 2.0 * lr * w.grad, rtol=0, atol=1e-15)
        assert torch.isfinite(w).all()
        assert torch.equal(w, before) == (not is_printed and lr == 0.0)
    opt.param_groups[0]["lr"] = 0.04  # a schedule that restarts from 0: nothing to scale
    opt.step()
    assert torch.isfinite(w).all()


@EVERY
def test_a_decay_per_weight_takes_the_place_of_the_groups(build):
    """A constant tensor gives the very steps of the number; None goes back to the number."""
    ends = []
    for tensor in (False, True):
        torch.manual_seed(0)
        w = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
        opt = build([w], weight_decay=9.0 if tensor else 0.7)
        w.grad = torch.zeros_like(w)
        if tensor:
            opt.set_decay(w, torch.full((6,), 0.7))
        for _ in range(4):
            opt.step()
        ends.append(w.detach().clone())
    # 0.7 was given in float32 to a float64 parameter.
    assert torch.allclose(*ends, rtol=0, atol=1e-7)
    assert opt.state[w]["decay"].dtype == torch.float64
    opt.set_decay(w, None)
    assert "decay" not in opt.state[w]
    opt.step()
    assert not torch.equal(w, ends[1])


@EVERY
def test_a_decay_pulls_its_own_weight(build):
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))
    quiet = {"noise_scale": 0.0} if build is BUILD["printed"] else {"temperature": 0.0}
    opt = build([w], tau_lr=0.0, **quiet) if "tau_lr" in _defaults(build) else build([w], **quiet)
    if isinstance(opt, CVAdam):
        opt.param_groups[0]["alpha"] = 1e-12
    given = torch.tensor([0.0, 5.0], dtype=torch.float64)
    opt.set_decay(w, given)
    given.fill_(1e9)  # a copy was taken
    w.grad = torch.zeros_like(w)
    for _ in range(50):
        opt.step()
    assert float(w[0].detach()) == pytest.approx(1.0, abs=0.01)
    assert 0.0 < float(w[1].detach()) < 0.7


def _defaults(build) -> dict[str, object]:
    return build([nn.Parameter(torch.ones(1))]).defaults


@EVERY
def test_a_group_without_noise_and_prior(build):
    """Descent with momentum (none for SGLD); the random numbers of the others are not used up."""
    noisy, quiet = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    opt = build(
        [{"params": [noisy]}, {"params": [quiet], "noisy": False, "lr": 0.1}], weight_decay=0.5
    )
    torch.manual_seed(0)
    grad, w, v = torch.tensor([1.0, 2.0, -1.0]), torch.ones(3), torch.zeros(3)
    beta1, beta2 = opt.param_groups[1].get("betas", (0.0, 1.0))
    for _ in range(3):
        noisy.grad, quiet.grad = grad, grad
        opt.step()
        v = beta1 * v - beta2 * 0.1 * grad
        w = w + v
    assert torch.allclose(quiet.detach(), w, rtol=0, atol=1e-6)
    assert set(opt.state[quiet]) <= {"momentum_buffer"}
    alone = nn.Parameter(torch.ones(3))
    torch.manual_seed(0)
    single = build([alone], weight_decay=0.5)
    for _ in range(3):
        alone.grad = grad
        single.step()
    assert torch.equal(alone, noisy)


def test_exact_noise_follows_how_the_noise_is_given():
    w = [nn.Parameter(torch.ones(1))]
    assert CVSGHMC(w, 0.1, num_data=5, temperature=1.0).param_groups[0]["exact_noise"] is True
    assert CVSGHMC(w, 0.1, num_data=5, noise_scale=1.0).param_groups[0]["exact_noise"] is False
    both = CVSGHMC(w, 0.1, num_data=5, noise_scale=1.0, exact_noise=True)
    assert both.param_groups[0]["exact_noise"] is True


def test_a_noise_scale_per_group():
    """A group may set its own k if it unsets the temperature."""
    groups = [
        {"params": [nn.Parameter(torch.ones(1))]},
        {"params": [nn.Parameter(torch.ones(1))], "temperature": None, "noise_scale": 0.1},
    ]
    opt = CVSGHMC(groups, 0.1, num_data=5, temperature=1.0)
    assert [group["exact_noise"] for group in opt.param_groups] == [True, False]


def test_a_temperature_and_its_noise_scale_take_the_same_steps():
    """At every step of a schedule, where the k of a temperature changes with Δt."""
    ends = []
    for by_k in (False, True):
        torch.manual_seed(1)
        w = nn.Parameter(torch.ones(4, dtype=torch.float64))
        opt = CVSGHMC(
            [w],
            0.2,
            num_data=50,
            temperature=None if by_k else 1.0,
            noise_scale=1.0 if by_k else None,
            exact_noise=True,
            tau_lr=0.0,
        )
        last = 0.2
        for lr in (0.2, 0.1, 0.05):
            group = opt.param_groups[0]
            group["lr"] = lr
            if by_k:
                group["noise_scale"] = noise_scale(1 / 50, math.sqrt(lr), group["betas"])
                if opt.state[w]:  # what a temperature does by itself
                    opt.state[w]["momentum_buffer"].mul_(math.sqrt(lr / last))
            last = lr
            w.grad = w.detach().clone()
            opt.step()
        ends.append(w.detach())
    assert torch.allclose(*ends, rtol=0, atol=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@EVERY
def test_a_gradient_that_is_not_finite_moves_nothing(build, bad):
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    opt = build([{"params": [a], "name": "body"}, {"params": [b], "name": "head"}])
    a.grad, b.grad = torch.ones(3), torch.tensor([1.0, bad])
    with pytest.raises(NonFinite, match="gradient of group 'head' = 1 of 2 entries NaN or inf"):
        opt.step()
    assert torch.equal(a, torch.ones(3))
    assert not opt.state[a]


def test_large_but_finite_gradients_pass():
    """Their sum overflows, which alone is no reason to stop."""
    w = nn.Parameter(torch.zeros(2))
    opt = SGLD([w], 1e-38, num_data=1, temperature=0.0)
    w.grad = torch.full((2,), 3e38)
    opt.step()
    assert torch.allclose(w.detach(), torch.full((2,), -3.0))


def test_sparse_gradients_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    opt = SGLD(table.parameters(), 0.1, num_data=5)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidValue, match=r"gradient = torch.sparse_coo: must be dense"):
        opt.step()


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        ("sgld", {"lr": -0.1}, "lr = -0.1: must be finite and not negative"),
        ("sghmc", {"lr": math.nan}, "lr = nan"),
        ("sgld", {"temperature": -1.0}, "temperature = -1.0: must be finite and not negative"),
        ("cv_adam", {"temperature": math.inf}, "temperature = inf"),
        ("sgld", {"num_data": 0}, "num_data = 0: must be at least 1; give the size of the data"),
        ("cv_adam", {"weight_decay": -1e-4}, "weight_decay = -0.0001"),
        ("cv_sghmc", {"tau_lr": -1.0}, "tau_lr = -1.0"),
        ("printed", {"noise_scale": -0.1}, "noise_scale = -0.1"),
        ("cv_adam", {"alpha": 0.0}, "alpha = 0.0: must be finite and > 0"),
        ("sghmc", {"betas": (1.0, 1.0)}, r"betas = \(1.0, 1.0\): need 0 <= beta1 < 1"),
        ("cv_sghmc", {"noise_scale": 0.1}, r"noise_scale = \(1.0, 0.1\): exactly one must be"),
        ("cv_sghmc", {"temperature": None}, r"\(None, None\): exactly one must be given"),
        ("cv_sghmc", {"exact_noise": False}, "the printed form has no single temperature; give"),
    ],
)
def test_wrong_settings(build, options, message):
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(InvalidValue, match=message):
        BUILD[build]([w], **options)
    opt = BUILD[build]([nn.Parameter(torch.ones(1))])
    with pytest.raises(InvalidValue, match=message):
        opt.add_param_group({"params": [w], **options})
    assert len(opt.param_groups) == 1, "a refused group leaves no trace"


def test_a_schedule_that_goes_below_zero():
    w = nn.Parameter(torch.ones(2))
    opt = SGLD([w], 0.1, num_data=5)
    opt.param_groups[0]["lr"] = -1e-3
    w.grad = torch.ones(2)
    with pytest.raises(InvalidValue, match=r"lr = -0.001: must not be negative; look at"):
        opt.step()


def test_wrong_decays():
    w = nn.Parameter(torch.ones(2))
    opt = SGLD([w], 0.1, num_data=5)
    with pytest.raises(InvalidValue, match="does not belong to this optimiser"):
        opt.set_decay(nn.Parameter(torch.ones(2)), None)
    with pytest.raises(InvalidValue, match=r"decay = \(3,\): must have the parameter's shape \(2,"):
        opt.set_decay(w, torch.ones(3))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidValue, match="decay: must be finite and not negative everywhere"):
            opt.set_decay(w, torch.tensor([1.0, bad]))
    assert "decay" not in opt.state[w]
