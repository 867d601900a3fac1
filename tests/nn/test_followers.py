"""Averages of a model whose support moves: those that follow are right, the others are refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers

DECAY, SWAPS = 0.98, 18


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    return gs.to_bayesian(net, 0.6).train()


class Loop:
    """Trains a network through many swaps."""

    def __init__(self, bnn: nn.Module, **settings) -> None:
        self.bnn = bnn
        self.opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
        settings = {"end_fraction": 1.0, "update_every": 3, "swap_fraction": 0.4, **settings}
        self.subspace = gs.Subspace(bnn, self.opt, total_steps=3 * (SWAPS + 1), **settings)
        self.swaps = 0

    def step(self) -> None:
        x, y = torch.randn(16, 8).to(self.bnn[0].bias), torch.randint(3, (16,))
        self.opt.zero_grad()
        F.cross_entropy(self.bnn(x), y).backward()
        self.opt.step()
        self.swaps += self.subspace.step() is not None

    def run(self, steps: int, ema: AveragedModel | None = None) -> None:
        for _ in range(steps):
            self.step()
            if ema is not None:
                ema.update_parameters(self.bnn)


def dense(layer: nn.Module, vector: torch.Tensor) -> torch.Tensor:
    """A vector over the support in float64, with NaN where there is no weight."""
    found = torch.full((layer.layout.numel,), torch.nan, dtype=torch.float64)
    found[layer.support.positions()] = vector.detach().double()
    return found


class EmaByHand:
    """The EMA of both vectors of every layer, position by position, on dense copies."""

    def __init__(self, bnn: nn.Module) -> None:
        self.bnn = bnn
        self.mean = {n: dense(m, m.weight_mean) for n, m in sparse_layers(bnn).items()}
        self.raw = {n: dense(m, m.weight_raw_std) for n, m in sparse_layers(bnn).items()}

    def update(self) -> None:
        for name, layer in sparse_layers(self.bnn).items():
            for held, vector in (
                (self.mean, layer.weight_mean),
                (self.raw, layer.weight_raw_std),
            ):
                now, before = dense(layer, vector), held[name]
                stayed = ~now.isnan() & ~before.isnan()
                if held is self.mean:
                    fresh = torch.zeros((), dtype=torch.float64)
                else:  # the mean σ of those that stay, in the average itself
                    std = F.softplus(before[stayed]).mean()
                    fresh = std.expm1().log()
                start = torch.where(stayed, before, torch.where(now.isnan(), torch.nan, fresh))
                held[name] = DECAY * start + (1 - DECAY) * now


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    "average",
    [
        {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)},
        {"avg_fn": get_ema_avg_fn(DECAY)},
    ],
)
def test_a_followed_ema_is_the_one_by_hand(average, dtype, error):
    bnn = network().to(dtype)
    ema = AveragedModel(bnn, **average)
    ema.update_parameters(bnn)  # the first one copies
    truth = EmaByHand(bnn)
    loop = Loop(bnn, follow=[ema])
    first = {n: m.indices.clone() for n, m in sparse_layers(bnn).items()}
    while loop.swaps < SWAPS:
        loop.step()
        ema.update_parameters(bnn)
        truth.update()
    for name, layer in sparse_layers(ema.module).items():
        assert not torch.equal(layer.indices, first[name])
        assert torch.equal(layer.indices, sparse_layers(bnn)[name].indices)
        kept = layer.support.positions()
        assert (layer.weight_mean.double() - truth.mean[name][kept]).abs().max() < error
        wanted = F.softplus(truth.raw[name][kept])
        assert (layer.weight_std.double() - wanted).abs().max() < error
    x, layer = torch.randn(5, 8, dtype=dtype), ema.module.eval()[0]
    wanted = F.linear(x, dense(layer, layer.weight_mean).nan_to_num().view(16, 8).to(dtype))
    assert (layer(x) - layer.bias - wanted).abs().max() < 1e-6


def test_a_deep_copy_averaged_by_hand_follows():
    """Whoever averages parameters only leaves the buffers to ``follow``."""
    bnn = network()
    ema = copy.deepcopy(bnn).requires_grad_(False)
    truth = EmaByHand(bnn)
    loop = Loop(bnn, follow=[ema])
    while loop.swaps < 5:
        loop.step()
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), bnn.parameters(), strict=True):
                mine.lerp_(theirs, 1 - DECAY)
        truth.update()
    for name, layer in sparse_layers(ema).items():
        wanted = truth.mean[name][layer.support.positions()]
        assert (layer.weight_mean.double() - wanted).abs().max() < 1e-6


def test_a_run_with_a_follower_is_the_run_without():
    states = []
    for follows in (False, True):
        bnn = network()
        ema = AveragedModel(bnn)
        loop = Loop(bnn, follow=[ema] if follows else [])
        torch.manual_seed(1)
        for _ in range(10):
            loop.step()
            if follows:
                ema.update_parameters(bnn)
        states.append(bnn.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("when", ["before", "later"])
def test_an_average_that_is_not_followed_is_refused_before_it_is_wrong(use_buffers, when):
    bnn = network()
    loop = Loop(bnn)
    ema = AveragedModel(bnn, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=use_buffers)
    for _ in range(4 if when == "later" else 0):
        loop.step()
    began = loop.swaps
    assert began == (1 if when == "later" else 0)
    with pytest.raises(InvalidValue, match=r"layer 0: has a copy .*AveragedModel.*follow=\["):
        loop.run(5, ema)
    assert loop.swaps == began, "the first swap after an update must not happen"


@pytest.mark.parametrize("through", ["copy of a copy", "pickle", "device"])
def test_an_average_is_noticed_however_the_copy_came_about(through):
    bnn = network()
    loop = Loop(bnn)
    if through == "copy of a copy":
        ema = AveragedModel(copy.deepcopy(bnn))
    elif through == "pickle":
        ema = pickle.loads(pickle.dumps(AveragedModel(bnn)))
    else:
        ema = AveragedModel(bnn, device="cpu").double().float()
    with pytest.raises(InvalidValue, match="has a copy"):
        loop.run(5, ema)


def test_other_copies_are_nobody_s_business():
    """Snapshots, a copy that trains by itself, an average that begins after the last swap."""
    bnn = network()
    snapshot, best, twin = (copy.deepcopy(bnn) for _ in range(3))
    other = Loop(twin)
    late = AveragedModel(bnn)
    loop = Loop(bnn)
    for _ in range(9):
        loop.step()
        other.step()
        best.load_state_dict(bnn.state_dict())
        best.double().float()
    assert loop.swaps == other.swaps == 3
    late.update_parameters(bnn)
    for name, value in late.module.state_dict().items():
        assert torch.equal(value, bnn.state_dict()[name]), name
    del snapshot


def test_an_average_that_is_gone_is_not_asked():
    bnn = network()
    loop = Loop(bnn)
    ema = AveragedModel(bnn)
    loop.step()
    ema.update_parameters(bnn)
    del ema
    for _ in range(3):
        loop.step()
    assert loop.swaps == 1


def test_followers_that_cannot_follow_are_refused():
    bnn = network()
    with pytest.raises(InvalidValue, match=r"use_buffers=True.*positions.*update_bn"):
        Loop(bnn, follow=[AveragedModel(bnn, use_buffers=True)])
    with pytest.raises(InvalidValue, match="follow = Sequential: is the model itself"):
        Loop(bnn, follow=[bnn])
    with pytest.raises(InvalidValue, match="has no layer like 0 of the model"):
        Loop(bnn, follow=[nn.Sequential(nn.Linear(8, 16))])
    torch.manual_seed(5)
    other = gs.to_bayesian(gs.to_deterministic(bnn), 0.6)
    with pytest.raises(InvalidValue, match="layer 0 of Sequential: keeps other weights"):
        Loop(bnn, follow=[other])


def test_a_follower_that_went_elsewhere_stops_the_swap_before_anything_moves():
    bnn = network()
    ema = AveragedModel(bnn)
    loop = Loop(bnn, follow=[ema])
    with torch.no_grad():
        ema.module[3].indices.copy_(_another_support(ema.module[3]))
    before = bnn[0].indices.clone()
    with pytest.raises(InvalidValue, match="layer 3 of AveragedModel: keeps other weights"):
        loop.run(3)
    assert torch.equal(bnn[0].indices, before)


def _another_support(layer: nn.Module) -> torch.Tensor:
    free = sorted(set(range(layer.layout.numel)) - set(layer.indices.tolist()))
    kept = sorted([*layer.indices.tolist()[1:], free[0]])
    return torch.tensor(kept, dtype=layer.indices.dtype)


def test_a_compiled_or_wrapped_model_finds_its_follower():
    bnn = network()
    ema = AveragedModel(torch.compile(bnn, backend="eager"))
    loop = Loop(bnn, follow=[ema])
    for _ in range(3):
        loop.step()
    assert loop.swaps == 1
    assert torch.equal(sparse_layers(ema)["module._orig_mod.0"].indices, bnn[0].indices)


def test_save_and_resume_with_a_follower():
    def build():
        bnn = network()
        ema = AveragedModel(bnn, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        return bnn, ema, Loop(bnn, follow=[ema])

    def go(bnn, ema, loop, steps, seed):
        torch.manual_seed(seed)
        for _ in range(steps):
            loop.step()
            ema.update_parameters(bnn)

    bnn, ema, loop = build()
    go(bnn, ema, loop, 7, 1)
    saved = [copy.deepcopy(o.state_dict()) for o in (bnn, ema, loop.opt, loop.subspace)]
    go(bnn, ema, loop, 7, 2)
    again, ema_again, resumed = build()
    parts = (again, ema_again, resumed.opt, resumed.subspace)
    for part, state in zip(parts, saved, strict=True):
        part.load_state_dict(state)
    go(again, ema_again, resumed, 7, 2)
    for name, value in ema.state_dict().items():
        assert torch.equal(value, ema_again.state_dict()[name]), name
