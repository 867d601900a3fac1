"""The prior and the step of a sampler where nothing is set."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers

CHAINS = ["csgld", "csghmc", "cv_sghmc", "cv_adam", "em_mcmc"]
every_chain = pytest.mark.parametrize("name", CHAINS)
ROWS = 300


def network(inputs: int = 6, width: int = 32, outputs: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def build(name: str, net: nn.Module, **settings):
    torch.manual_seed(0)
    given = {"num_data": ROWS, "total_steps": 100, "likelihood": "gaussian"}
    return gs.build(name, net, **{**given, **settings})


def decays(method) -> dict[str, float]:
    """δ/N by layer."""
    groups = method.optimizer.param_groups
    by_parameter = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    return {
        name: by_parameter[id(layer.leading())]
        for name, layer in sparse_layers(method.model).items()
    }


@every_chain
@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_the_prior_is_that_of_variational_inference(name, sparsity):
    net = network()
    found = decays(build(name, net, sparsity=sparsity, sparsity_distribution="uniform"))
    twin = gs.to_bayesian(net, sparsity, sparsity_distribution="uniform")
    wanted = {n: 1.0 / (ROWS * layer.prior.std**2) for n, layer in sparse_layers(twin).items()}
    assert found == pytest.approx(wanted)
    assert len(set(found.values())) > 1


@every_chain
def test_one_decay_for_all_where_it_is_set(name):
    method = build(name, network(), weight_decay=0.02, decay_biases=True)
    assert set(decays(method).values()) == {0.02}
    groups = {group["name"]: group["weight_decay"] for group in method.optimizer.param_groups}
    assert groups["biases"] == 0.02
    assert groups["likelihood"] == 0.0


@every_chain
def test_biases_have_a_standard_normal_prior_if_any(name):
    for wanted, decay_biases in ((0.0, False), (1.0 / ROWS, True)):
        method = build(name, network(), decay_biases=decay_biases)
        found = [g["weight_decay"] for g in method.optimizer.param_groups if g["name"] == "biases"]
        assert found == [pytest.approx(wanted)]


def test_weights_of_other_modules_have_a_standard_normal_prior():
    net = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 1))
    method = build("csghmc", net)
    embedding = dict(method.model.named_parameters())["0.weight"]
    own = [g for g in method.optimizer.param_groups if any(embedding is p for p in g["params"])]
    assert own[0]["weight_decay"] == pytest.approx(1.0 / ROWS)


def test_a_step_that_cannot_follow_the_prior_is_refused():
    with pytest.raises(InvalidValue, match=r"lr = 0\.1: is too large.*weight_decay"):
        build("csghmc", network(inputs=200), num_data=10, lr=0.1)
    build("csghmc", network(inputs=200), num_data=10, lr=0.1, weight_decay=1e-3)


@every_chain
def test_the_step_is_smaller_where_targets_are_real(name):
    label = build(name, network(outputs=3), likelihood="categorical")
    real = build(name, network())
    assert real.base_lr[0] < label.base_lr[0] / 5
    assert build(name, network(), lr=0.02).base_lr[0] == 0.02


@every_chain
def test_the_noise_of_an_easy_problem_is_found(name):
    """At 36 times as many weights as rows neither the prior nor the step may drown it."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS + 500, 6, generator=generator)
    y = x @ torch.randn(6, generator=generator) / sqrt(6)
    y += 0.1 * torch.randn(len(y), generator=generator)
    method = build(name, network(width=100), total_steps=1000)
    for _ in range(200):
        for rows in torch.randperm(ROWS, generator=generator).split(64):
            method.step((x[rows], y[rows]))
    found = gs.predict(method, x[ROWS:], 12)
    error = float((found.mean.reshape(-1) - y[ROWS:]).square().mean().sqrt())
    assert error < 0.16
    assert 0.07 < float(found.aleatoric.mean()) < 0.2
