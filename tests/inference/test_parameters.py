"""Parameter groups: every parameter once, decay never on the standard deviations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue


def network() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
    )


def names_by_group(model: nn.Module, **options) -> dict[str, set[str]]:
    names = {id(p): n for n, p in model.named_parameters()}
    groups = gs.parameter_groups(model, lr=0.1, **options)
    return {g["name"]: {names[id(p)] for p in g["params"]} for g in groups}


def test_a_bayesian_model():
    found = names_by_group(gs.to_bayesian(network(), 0.5))
    assert found == {
        "weights": {"0.weight", "2.weight_mean", "4.weight_mean"},
        "std": {"2.weight_raw_std", "4.weight_raw_std"},
        "biases": {"2.bias", "3.weight", "3.bias", "4.bias"},
    }


def test_a_deterministic_model_has_no_std_group():
    assert set(names_by_group(gs.to_sparse(network(), 0.5))) == {"weights", "biases"}


@pytest.mark.parametrize("decay_biases", [True, False])
def test_rates_and_decay(decay_biases):
    model = gs.to_bayesian(network(), 0.5)
    groups = {
        g["name"]: g
        for g in gs.parameter_groups(
            model, lr=0.1, std_lr=0.02, weight_decay=1e-3, decay_biases=decay_biases
        )
    }
    assert {n: g["lr"] for n, g in groups.items()} == {"weights": 0.1, "std": 0.02, "biases": 0.1}
    assert groups["weights"]["weight_decay"] == 1e-3
    assert groups["std"]["weight_decay"] == 0.0
    assert groups["biases"]["weight_decay"] == (1e-3 if decay_biases else 0.0)
    opt = torch.optim.SGD(list(groups.values()), lr=1.0, weight_decay=1.0)
    assert [g["weight_decay"] for g in opt.param_groups if g["name"] == "std"] == [0.0]


def test_std_rate_defaults_to_the_rate_and_zero_is_a_rate():
    model = gs.to_bayesian(network(), 0.5)
    rates = [
        {g["name"]: g["lr"] for g in gs.parameter_groups(model, lr=0.1, std_lr=std_lr)}["std"]
        for std_lr in (None, 0.0)
    ]
    assert rates == [0.1, 0.0]


def test_every_parameter_once_and_frozen_ones_left_out():
    shared = nn.Linear(4, 4)
    model = gs.to_bayesian(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 2)), 0.3)
    model[3].requires_grad_(False)
    found = [id(p) for g in gs.parameter_groups(model, lr=0.1) for p in g["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_decay_alone_never_moves_std():
    model = gs.to_bayesian(network(), 0.5)
    opt = torch.optim.AdamW(gs.parameter_groups(model, lr=0.1, weight_decay=0.5))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    for name, p in model.named_parameters():
        decayed = name in ("0.weight", "2.weight_mean", "4.weight_mean")
        assert torch.equal(p, before[name]) != decayed, name


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": -0.1},
        {"lr": math.nan},
        {"lr": 0.1, "std_lr": -1.0},
        {"lr": 0.1, "weight_decay": -1e-4},
    ],
)
def test_negative_values_are_refused(settings):
    with pytest.raises(InvalidValue, match="must not be negative"):
        gs.parameter_groups(network(), **settings)
