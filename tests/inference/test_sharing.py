"""Budgets that members share are exact, members start where they are told, and refusals say why."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference.sharing import member_budgets
from gossamer.nn import sparse_layers
from reference.method_runs import clusters

KNOWN = {"num_data": 60, "total_steps": 12}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def kept(method) -> list[int]:
    return [gs.summary(member.model).nnz for member in method.members]


@given(st.integers(1, 10**9), st.integers(1, 50))
def test_budgets_are_even_and_sum_to_the_total(total, members):
    assume(members <= total)
    parts = member_budgets(total, members)
    assert len(parts) == members
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize(("total", "members"), [(3, 4), (5, 0), (0, 1)])
def test_what_cannot_be_shared_is_refused(total, members):
    with pytest.raises(InvalidValue, match=rf"members = {members}: must lie in \[1, {total}\]"):
        member_budgets(total, members)


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(2, 40), min_size=2, max_size=4),
    sparsity=st.floats(0.01, 0.97),
    members=st.integers(2, 5),
    distribution=st.sampled_from(["erk", "uniform"]),
)
def test_the_total_is_exact(widths, sparsity, members, distribution):
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    weights = sum(layer.weight.numel() for layer in layers)
    total = round((1 - sparsity) * weights)
    assume(total >= members * len(layers))
    method = gs.build(
        "rigl",
        nn.Sequential(*layers),
        sparsity=sparsity,
        sparsity_distribution=distribution,
        members=members,
        **KNOWN,
    )
    found = kept(method)
    assert sum(found) == total
    assert max(found) - min(found) <= 1
    size = method.posterior().size
    assert size["nnz"] == total
    assert size["sparsity"] == pytest.approx(1 - total / weights, abs=1e-12)


def test_the_total_is_exact_for_convolutions_and_shared_weights():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 7, 3)
            self.one, self.two = nn.Linear(28, 28), nn.Linear(28, 28)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.relu(self.one(self.conv(x).flatten(1))))

    weights = 63 + 28 * 28
    for name in ("rigl", "ssvi", "ngvi", "sgd"):
        method = gs.build(name, Tied(), sparsity=0.83, members=3, **KNOWN)
        assert sum(kept(method)) == round(0.17 * weights)


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi"])
def test_a_sparsity_of_each(name):
    method = gs.build(name, net(), members=3, member_sparsity=0.75, **KNOWN)
    assert kept(method) == [28] * 3
    assert method.posterior().size == {"nnz": 84, "sparsity": pytest.approx(0.25)}
    several = gs.build(name, net(), members=3, member_sparsity=0.25, **KNOWN)
    size = several.posterior().size
    assert size == {"nnz": 252, "sparsity": pytest.approx(0.25)}, "more than one network has"


@pytest.mark.parametrize("name", ["dense_vi", "sgd"])
def test_dense_members_are_whole_networks(name):
    method = gs.build(name, net, members=2, **KNOWN)
    assert kept(method) == [112, 112]
    assert method.posterior().size == {"nnz": 224, "sparsity": 0.0}


def test_one_member_is_the_method_itself():
    states = []
    for asked in ({}, {"members": 1}):
        torch.manual_seed(3)
        method = gs.build("rigl", net(), sparsity=0.5, **asked, **KNOWN)
        method.step(clusters(12))
        states.append(method.state_dict()["model"])
    assert type(method).__name__ == "GradientMethod"
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


def weights(method, number: int) -> torch.Tensor:
    return next(iter(sparse_layers(method.members[number].model).values())).leading().detach()


def test_a_function_gives_each_member_its_own_weights():
    torch.manual_seed(0)
    method = gs.build("sgd", net, members=2, **KNOWN)
    assert not torch.equal(weights(method, 0), weights(method, 1))
    sparse = gs.build("rigl", net, members=2, sparsity=0.5, **KNOWN)
    assert not torch.equal(sparse.members[0].model[0].bias, sparse.members[1].model[0].bias)
    same = gs.build("sgd", net, members=2, member_start="same", **KNOWN)
    assert torch.equal(weights(same, 0), weights(same, 1))


def test_a_module_is_drawn_anew_only_where_that_is_asked_for():
    given = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    with torch.no_grad():
        given[0].weight.fill_(7.0)  # as no initialisation would
        given[1].running_mean.fill_(3.0)
    own = gs.build("sgd", given, members=3, member_start="own", **KNOWN)
    assert bool((weights(own, 0) == 7.0).all()), "the first keeps what was given"
    for number in (1, 2):
        # torch's initialisation of a linear layer: uniform between ±1/√fan_in
        drawn = weights(own, number)
        assert float(drawn.abs().max()) <= 1 / 8
        assert float(drawn.std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
        assert bool((own.members[number].model[1].running_mean == 0.0).all())
    assert not torch.equal(weights(own, 1), weights(own, 2))
    # A random support per member: pretrained weights stay, rescaled as for one network.
    sparse = gs.build("rigl", given, members=2, sparsity=0.5, **KNOWN)
    for number in (0, 1):
        torch.testing.assert_close(weights(sparse, number), torch.full((1024,), 7.0 * 2))
    supports = [next(iter(sparse_layers(m.model).values())).support for m in sparse.members]
    assert not supports[0].same_as(supports[1])
    assert bool((given[0].weight == 7.0).all()), "and the given network is left alone"


def test_dense_members_of_one_module_must_be_told_apart():
    for name in ("sgd", "dense_vi"):
        with pytest.raises(InvalidValue, match=r"member_start.*model=lambda: Net\(\)"):
            gs.build(name, net(), members=2, **KNOWN)
    with pytest.raises(InvalidValue, match="member_start"):
        gs.build("rigl", net(), members=2, member_sparsity=0.0, **KNOWN)
    method = gs.build("sgd", net(), members=2, member_start="same", **KNOWN)
    assert torch.equal(weights(method, 0), weights(method, 1))


class Scaled(nn.Module):
    """Has a parameter and no way to draw it anew."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_a_module_that_cannot_be_drawn_anew_is_refused():
    strange = nn.Sequential(nn.Linear(4, 3), Scaled())
    for name in ("sgd", "ensemble"):
        with pytest.raises(InvalidValue, match=r"model = 1: is a Scaled.*reset_parameters.*lambda"):
            gs.build(name, strange, members=2, member_start="own", **KNOWN)
    made = gs.build("sgd", lambda: nn.Sequential(nn.Linear(4, 3), Scaled()), members=2, **KNOWN)
    assert not torch.equal(weights(made, 0), weights(made, 1))


@pytest.mark.parametrize("name", ["csgld", "csghmc", "cv_sghmc", "cv_adam", "em_mcmc"])
def test_samplers_have_no_members(name):
    with pytest.raises(InvalidValue, match=f"members = 2: {name} samples.*several chains"):
        gs.build(name, net(), members=2, **KNOWN)
    with pytest.raises(InvalidValue, match=f"{name} samples"):
        gs.build(name, net(), harvest="cycles", **KNOWN)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("rigl", {"members": 0}, "members = 0: must be at least 1"),
        ("rigl", {"members": 2, "member_sparsity": 1.0}, r"member_sparsity = 1.0: must lie in"),
        ("rigl", {"member_sparsity": 0.5}, "member_sparsity = 0.5: is of several members"),
        (
            "rigl",
            {"harvest": "cycles", "member_start": "own"},
            "member_start.*which have one start",
        ),
        ("dense_vi", {"members": 2, "member_sparsity": 0.5}, "is not for dense_vi"),
        ("ensemble", {"member_sparsity": 0.5}, "member_sparsity.*ensemble, which has its own"),
        ("ensemble", {"harvest": "cycles"}, "harvest.*ensemble, which has its own"),
        ("ensemble", {"members": 0}, "members of ensemble = 0"),
        ("rigl", {"members": 2, "sparsity": 1.0}, r"sparsity = 1.0: must lie in \[0, 1\)"),
        ("rigl", {"members": 2, "sparsity": -0.5}, r"sparsity = -0.5: must lie in \[0, 1\)"),
        ("rigl", {"members": 6, "sparsity": 0.9}, "keeps 11 of 112 weights for 6 members"),
    ],
)
def test_refusals(name, asked, words):
    with pytest.raises(InvalidValue, match=words):
        gs.build(name, net(), **asked, **KNOWN)


def test_unknown_words_are_refused():
    with pytest.raises(UnknownName, match="harvest"):
        gs.build("rigl", net(), members=2, harvest="summer", **KNOWN)
    with pytest.raises(UnknownName, match="member_start"):
        gs.build("rigl", net(), members=2, member_start="here", **KNOWN)
    with pytest.raises(InvalidValue, match="model = int: must be or make a torch module"):
        gs.build("rigl", lambda: 3, **KNOWN)


def test_networks_of_different_sizes_are_refused():
    widths = iter([16, 17])

    def grows() -> nn.Module:
        width = next(widths)
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    with pytest.raises(InvalidValue, match="networks of one size"):
        gs.build("rigl", grows, members=2, sparsity=0.5, **KNOWN)
