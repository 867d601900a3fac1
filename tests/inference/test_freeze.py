"""Weights that settle: stopped at the end of a cycle, and kept once in the samples."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.inference.collect import Collection
from gossamer.optim import SGHMC
from reference.method_runs import clusters

CYCLE, FREEZE = 10, 0.1


def build(name="csghmc", seed=0, **settings):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    settings = {"freeze": 0.3, "cycles": 4, "samples_per_cycle": 1, "lr": 0.02, **settings}
    return gs.build(name, net, num_data=60, total_steps=4 * CYCLE, **settings)


def steps(method, count):
    x, y = clusters()
    return [method.step((x, y)) for _ in range(count)]


def values(method):
    return {n: p.detach().clone() for n, p in method.model.named_parameters() if "weight" in n}


@pytest.mark.parametrize("name", ["csgld", "csghmc", "cv_sghmc"])
def test_settled_weights_stop_for_good(name):
    method = build(name, temperature=0.05, lr=0.05, freeze=FREEZE)
    ends, frozen = [], {}
    for cycle in range(4):
        before = values(method)
        steps(method, CYCLE)
        now = values(method)
        for key, stopped in frozen.items():
            assert torch.equal(now[key][stopped], before[key][stopped]), "stopped weights stay"
            assert not torch.equal(now[key][~stopped], before[key][~stopped])
        ends.append(now)
        if cycle == 0:
            continue
        for key, w in now.items():
            settled = (w - ends[-2][key]).abs() < FREEZE * w.square().mean().sqrt()
            frozen[key] = settled | frozen.get(key, torch.zeros_like(settled))
            parameter = dict(method.model.named_parameters())[key]
            moving = method.optimizer.state[parameter]["moving"]
            assert torch.equal(moving == 0.0, frozen[key])
    share = torch.cat([f.float() for f in frozen.values()]).mean()
    assert 0.02 < share < 0.98, "some settle, some do not"
    assert method.samples.nbytes < method.samples.nbytes_unshared


def test_without_the_setting_nothing_stops():
    method = build(freeze=None)
    steps(method, 3 * CYCLE)
    assert all("moving" not in state for state in method.optimizer.state.values())


@pytest.mark.parametrize("name", ["csghmc", "em_mcmc"])
@pytest.mark.parametrize("stop", [CYCLE, 2 * CYCLE + 3])
def test_resuming_is_bit_equal(name, stop):
    settings = {"prune_threshold": 0.05, "warmup": 0.1} if name == "em_mcmc" else {}
    straight = build(name, **settings)
    steps(straight, stop)
    state, noise = copy.deepcopy(straight.state_dict()), torch.get_rng_state()
    infos = steps(straight, 4 * CYCLE - stop)
    resumed = build(name, seed=5, **settings)
    resumed.load_state_dict(state)
    torch.set_rng_state(noise)
    assert steps(resumed, 4 * CYCLE - stop) == infos
    for one, two in zip(straight.samples, resumed.samples, strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_bad_settings():
    with pytest.raises(InvalidValue, match=r"freeze = -0.1: must not be negative"):
        build(freeze=-0.1)
    with pytest.raises(UnknownName, match="setting of cv_adam = freeze"):
        build("cv_adam")  # its weights are fresh draws: nothing to freeze, explore or keep
    w = nn.Parameter(torch.ones(3))
    opt = SGHMC([w], 0.1, num_data=10)
    with pytest.raises(InvalidValue, match="must be bool of the parameter's shape"):
        opt.set_frozen(w, torch.ones(2, dtype=torch.bool))
    with pytest.raises(InvalidValue, match="does not belong"):
        opt.set_frozen(torch.ones(3), None)
    opt.set_frozen(w, torch.tensor([True, False, True]))
    w.grad = torch.ones(3)
    opt.step()
    assert w[0] == w[2] == 1.0 != w[1]
    opt.set_frozen(w, None)
    opt.step()
    assert not (w == 1.0).any()


def test_few_changes_are_kept_as_changes(tmp_path):
    tensor = torch.randn(1000)
    samples, kept = [], Collection(budget=4100, folder=tmp_path)
    for number in range(5):
        tensor = tensor.clone()
        tensor[number * 3 : number * 3 + 2] += 1.0
        if number == 3:
            tensor[5] = float("nan")
        samples.append(tensor)
        kept.add({"w": tensor})
    assert kept.nbytes <= 4100
    free = Collection()
    for one in samples:
        free.add({"w": one})
    # 4,000 bytes of the first, and eight per changed element: values and places. A NaN is always
    # a change.
    assert free.nbytes == 4000 + 8 * (2 + 2 + 3 + 3)
    for collection in (kept, free):
        again = Collection()
        again.load_state_dict(collection.state_dict())
        for source in (collection, again):
            for got, wanted in zip(source, samples, strict=True):
                assert torch.equal(got["w"].nan_to_num(9.0), wanted.nan_to_num(9.0))
    state = free.state_dict()
    del state["tensors"]["2"]
    with pytest.raises(InvalidData, match="not in the state"):
        Collection().load_state_dict(state)


def test_many_changes_are_kept_whole():
    kept, one = Collection(), torch.randn(100)
    kept.add({"w": one})
    kept.add({"w": one + (torch.arange(100) < 50)})
    assert kept.nbytes == 800
