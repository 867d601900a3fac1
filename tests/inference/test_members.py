"""What a member learns is its own business: not that of their number, nor of torch's generator."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import gossamer as gs
from contract.test_methods import assert_same_state
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference import LayerSwap, StepInfo, SwapInfo
from gossamer.inference.members import joined
from gossamer.ops import fold_seed
from reference.method_runs import clusters, run

SWAPS = {"update_every": 3, "swap_fraction": 0.6, "end_fraction": 1.0}


def net() -> nn.Module:
    """With noise of torch's own, beside that of the layers."""
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def build(name: str, members: int, *, seed: int = 0, **settings):
    torch.manual_seed(seed)
    swaps = SWAPS if name in ("rigl", "ngvi", "ssvi") else {}
    return gs.build(name, net, num_data=60, total_steps=12, members=members, **swaps, **settings)


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi", "dense_vi", "sgd", "ensemble"])
def test_what_a_member_learns_does_not_depend_on_their_number(name):
    own = {"member_sparsity": 0.6} if name in ("rigl", "ngvi", "ssvi") else {}
    few, many = build(name, 2, **own), build(name, 4, **own)
    torch.manual_seed(1)
    run(few, 8)
    torch.manual_seed(2)  # nor on torch's own generator
    run(many, 8)
    for one, other in zip(few.members, many.members, strict=False):
        assert_same_state(one.state_dict(), other.state_dict())
    assert not torch.equal(weights(few, 0), weights(few, 1))


def weights(method, number: int) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in method.members[number].model.parameters()])


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi", "sgd"])
def test_a_member_is_the_method_alone_with_that_noise(name):
    method = build(name, 2, sparsity=0.5)
    infos = run(method, 8)
    torch.manual_seed(0)
    seed = int(torch.randint(2**62, ()))
    alone = []
    for number in range(2):
        torch.manual_seed(fold_seed(seed, number))
        settings = SWAPS if name != "sgd" else {}
        one = gs.build(name, net, num_data=60, total_steps=12, sparsity=0.75, **settings)
        alone.append(run(one, 8))
        assert_same_state(method.members[number].state_dict(), one.state_dict())
    for info, parts in zip(infos, zip(*alone, strict=True), strict=True):
        assert info.nll == pytest.approx(sum(part.nll for part in parts) / 2, rel=1e-12)
        assert info.loss == pytest.approx(sum(part.loss for part in parts) / 2, rel=1e-12)
        assert info.accuracy == pytest.approx(sum(part.accuracy for part in parts) / 2)


def test_torch_s_generator_is_left_alone():
    method = build("ssvi", 3, sparsity=0.4)
    before = torch.get_rng_state()
    run(method, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_is_for_structure_and_not_for_noise():
    """As of one network: processes that share a generator seed their noise apart."""
    states = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        method = gs.build(
            "ssvi",
            net,
            num_data=60,
            total_steps=12,
            members=2,
            sparsity=0.5,
            generator=torch.Generator().manual_seed(7),
        )
        start = copy.deepcopy(dict(method.model.state_dict()))
        run(method, 2)
        states.append((start, method.state_dict()))
    assert_same_state(states[0][0], states[1][0])
    assert_same_state(states[0][1], states[2][1])
    ours, theirs = (weights_of(state) for _, state in states[:2])
    assert all(not torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def weights_of(state: dict) -> list[torch.Tensor]:
    return [one["state"]["model"]["0.weight_mean"] for one in state["members"]]


def test_swaps_of_all_members_are_told():
    def info(nll: float, swap: SwapInfo | None) -> StepInfo:
        return StepInfo(nll + 1, nll, 1.0, 0.5, 0.1, 0.25, swap)

    one = SwapInfo(3, 0.5, {"fc": LayerSwap(10, 2, 2)})
    two = SwapInfo(3, 0.5, {"fc": LayerSwap(9, 1, 1)})
    found = joined([info(1.0, one), info(2.0, two), info(6.0, None)])
    assert found == StepInfo(
        4.0, 3.0, 1.0, 0.5, pytest.approx(0.1), 0.25,
        SwapInfo(3, 0.5, {"0.fc": LayerSwap(10, 2, 2), "1.fc": LayerSwap(9, 1, 1)}),
    )  # fmt: skip
    assert joined([info(1.0, None)]).swap is None


def test_disagreement_is_mutual_information():
    """Deterministic members: all of it is what they disagree by, by hand in float64."""
    method = build("rigl", 2, sparsity=0.5)
    run(method, 8)
    x, _ = clusters(9, seed=4)
    method.model.eval()
    each = method.model(x).detach().double().softmax(-1)
    assert each.shape == (2, 9, 3)
    mean = each.mean(0)

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -(p * p.log()).sum(-1)

    information = entropy(mean) - entropy(each).mean(0)
    found = gs.predict(method, x, 2)
    torch.testing.assert_close(found.probs.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.mutual_information.double(), information, rtol=1e-3, atol=2e-6)
    assert float(information.max()) > 1e-3


def test_a_state_of_another_number_of_members_is_refused():
    two, three = build("rigl", 2, sparsity=0.5), build("rigl", 3, sparsity=0.5)
    before = copy.deepcopy(three.state_dict())
    with pytest.raises(InvalidValue, match="rigl run of 3 members"):
        three.load_state_dict(two.state_dict())
    assert_same_state(three.state_dict(), before)


def test_a_state_with_one_foreign_member_changes_nothing():
    one, two = build("rigl", 2, sparsity=0.5), build("rigl", 2, sparsity=0.5, seed=1)
    state = copy.deepcopy(one.state_dict())
    state["members"][1]["state"]["method"] = "ssvi"
    before = copy.deepcopy(two.state_dict())
    with pytest.raises(InvalidValue, match="was not saved by a rigl run"):
        two.load_state_dict(state)
    assert_same_state(two.state_dict(), before)


def test_a_member_that_fails_stops_all():
    """The first has taken a step that the second has not: they are no ensemble any more."""
    method = build("rigl", 2, sparsity=0.5)
    run(method, 1)
    saved = copy.deepcopy(method.state_dict())
    with torch.no_grad():
        next(method.members[1].model.parameters()).fill_(math.nan)
    with pytest.raises(NonFinite):
        method.step(clusters(6))
    with pytest.raises(InvalidValue, match="different numbers of steps"):
        method.step(clusters(6))
    method.load_state_dict(saved)
    assert method.step(clusters(6)).nll > 0
    assert method.steps == 2


def test_bad_targets_change_no_member():
    method = build("rigl", 2, sparsity=0.5)
    run(method, 1)
    before = copy.deepcopy(method.model.state_dict())
    x, y = clusters(6)
    with pytest.raises(gs.errors.InvalidData, match="labels must lie in"):
        method.step((x, y + 1))
    assert_same_state(dict(method.model.state_dict()), dict(before))
    assert method.steps == 1
