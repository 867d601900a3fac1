"""Members harvested from one run: when, what they are, and by which steps and swaps."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import gossamer as gs
from contract.test_methods import assert_same_state
from gossamer.errors import InvalidValue
from reference.method_runs import clusters, run

TOTAL = 40
ENDS = (20, 30, 40)
EVERY, END = 3, 0.75


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def build(name: str = "rigl", **given):
    torch.manual_seed(0)
    settings = {"sparsity": 0.4, "members": 3, "harvest": "cycles", "total_steps": TOTAL}
    if name in ("rigl", "ngvi", "ssvi"):
        settings["update_every"] = EVERY
    return gs.build(name, net(), num_data=60, **{**settings, **given})


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi", "sgd"])
def test_so_many_are_kept_and_at_the_cuts(name):
    method = build(name)
    counts = []
    for _ in range(TOTAL):
        run(method, 1)
        counts.append(len(method.kept))
    assert counts == [sum(step >= end for end in ENDS) for step in range(1, TOTAL + 1)]
    with pytest.warns(UserWarning, match=f"step {TOTAL + 1} of a {name} run of total_steps"):
        run(method, 5)
    assert len(method.kept) == 3, "a run that goes on keeps no more"
    # 67 weights of 112 for three alike: 22 each, one to spare.
    assert method.posterior().size == {"nnz": 66, "sparsity": pytest.approx(1 - 66 / 112)}


def test_a_sparsity_of_each():
    method = build(member_sparsity=0.75)
    run(method, TOTAL)
    assert method.posterior().size == {"nnz": 84, "sparsity": pytest.approx(0.25)}


@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_the_learning_rate_is_the_formula_s(warmup):
    method = build(lr=0.02, lr_warmup=warmup)
    found = [info.lr for info in run(method, TOTAL)]
    start, wanted = 0, []
    for end in ENDS:
        for place in range(end - start):
            wanted.append(0.01 * (1 + math.cos(math.pi * place / (end - start))))
        start = end
    if warmup:
        wanted = [lr * min((step + 1) / 4, 1.0) for step, lr in enumerate(wanted)]
    assert found == pytest.approx(wanted, rel=1e-12)
    assert found[20] == pytest.approx(0.02), "large steps again"
    assert found[19] < 0.001


def test_swaps_are_the_formula_s():
    """Each cycle begins with half of the weights, falls along a cosine and rests at its end."""
    method = build()
    found = {
        step: info.swap.fraction
        for step, info in enumerate(run(method, TOTAL), start=1)
        if info.swap is not None
    }
    start, wanted = 0, {}
    for end in ENDS:
        rest = END * (end - start)
        for place in range(EVERY, end - start + 1, EVERY):
            if place < rest:
                wanted[start + place] = 0.25 * (1 + math.cos(math.pi * place / rest))
        start = end
    assert list(found) == list(wanted) == [3, 6, 9, 12, 23, 26, 33, 36]
    assert list(found.values()) == pytest.approx(list(wanted.values()), rel=1e-12)
    assert found[23] > 2 * found[12]


def test_a_told_fraction_wins():
    info = next(i for i in run(build(swap_fraction=0.2), 3) if i.swap is not None)
    assert info.swap.fraction == pytest.approx(0.1 * (1 + math.cos(math.pi * 3 / 15)))


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi"])
def test_what_is_kept_is_the_network_of_that_step(name):
    """A second run of the same seed, asked for its network at each cut."""
    method, watched = build(name), build(name)
    torch.manual_seed(4)
    run(method, TOTAL)
    x, _ = clusters(9, seed=2)
    frozen, start = [], 0
    torch.manual_seed(4)
    for end in ENDS:
        run(watched, end - start)
        frozen.append(watched.method.posterior().frozen())
        start = end
    for one, wanted in zip(method.posterior().members, frozen, strict=True):
        for key, value in wanted.draws.network.state_dict().items():
            assert torch.equal(one.draws.network.state_dict()[key], value), key
        assert torch.equal(one.predict(x, 4).samples, wanted.predict(x, 4).samples)
    values = [m.draws.network[0].leading() for m in method.posterior().members]
    assert not torch.equal(values[0], values[1])


def test_prediction_averages_those_kept():
    method = build()
    x, _ = clusters(9, seed=2)
    assert gs.predict(method, x, 3).samples.shape[0] == 1, "before the first cut: the present one"
    outputs, start = [], 0
    for end in ENDS:
        run(method, end - start)
        method.model.eval()
        outputs.append(method.model(x).detach())
        method.model.train()
        start = end
    found = gs.predict(method, x, 3)
    torch.testing.assert_close(found.probs, torch.stack(outputs).softmax(-1).mean(0))
    assert float(found.mutual_information.max()) > 0.0


def test_training_on_does_not_change_what_is_kept():
    method = build("ngvi")
    run(method, 21)
    x, _ = clusters(9, seed=2)
    before = copy.deepcopy(method.kept)
    answer = gs.predict(method, x, 3).samples
    posterior = method.posterior()
    run(method, 8)
    assert_same_state(method.kept, before)
    assert torch.equal(posterior.predict(x, 3).samples, answer)


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_the_noise_of_targets_is_kept_too(likelihood):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1 if likelihood[0] == "g" else 3)
    )
    method = gs.build(
        "rigl", model, num_data=60, total_steps=20, likelihood=likelihood, sparsity=0.2,
        members=2, harvest="cycles", lr=0.05,
    )  # fmt: skip
    x, y = clusters()
    target = y.float() if likelihood == "gaussian" else y
    noises = []
    for step in range(1, 21):
        method.step((x, target))
        if step in (10, 20):
            noises.append({k: v.clone() for k, v in method.likelihood.state_dict().items()})
    for kept, wanted in zip(method.kept, noises, strict=True):
        assert_same_state(kept["likelihood"], wanted)
    if likelihood == "gaussian":
        assert noises[0]
        assert not torch.equal(*(next(iter(noise.values())) for noise in noises))


@pytest.mark.parametrize("stop", [19, 20, 21, 33])
@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi"])
def test_resuming_is_bit_equal_around_a_cut(name, stop):
    straight = build(name)
    run(straight, stop)
    state, noise = copy.deepcopy(straight.state_dict()), torch.get_rng_state()
    infos = run(straight, TOTAL - stop)
    resumed = build(name)
    run(resumed, 3)
    resumed.load_state_dict(state)
    torch.set_rng_state(noise)
    assert run(resumed, TOTAL - stop) == infos
    assert_same_state(resumed.state_dict(), straight.state_dict())
    x, _ = clusters(9, seed=2)
    ours, theirs = gs.predict(resumed, x, 3), gs.predict(straight, x, 3)
    assert torch.equal(ours.samples, theirs.samples)


def test_no_optimiser_is_kept_with_a_member():
    method = build()
    run(method, 20)
    present = set(method.model.state_dict())
    assert [set(one) for one in method.kept] == [{"network", "likelihood"}]
    assert set(method.kept[0]["network"]) == present


def test_refusals():
    with pytest.raises(InvalidValue, match="lr_schedule = constant: lets no cycle come to rest"):
        build(lr_schedule="constant")
    with pytest.raises(InvalidValue, match="cycles = 3: must leave each a step, of 2 in all"):
        build(total_steps=2)
    one, other = build(), build(members=2)
    run(one, 1)
    for foreign in (
        one.state_dict(),
        gs.build("rigl", net(), num_data=60, total_steps=9).state_dict(),
    ):
        with pytest.raises(InvalidValue, match="was not saved by a rigl run"):
            other.load_state_dict(foreign)
