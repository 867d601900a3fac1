"""The deep ensemble is plain training, several times over."""

from __future__ import annotations

import torch
from torch import nn

import gossamer as gs
from contract.test_methods import assert_same_state
from gossamer.nn import sparse_layers
from gossamer.ops import fold_seed
from reference.method_runs import clusters, run

KNOWN = {"num_data": 60, "total_steps": 12}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def without_name(state: dict) -> dict:
    return {key: value for key, value in state.items() if key != "method"}


def test_one_member_is_sgd_bit_for_bit():
    for given in ({}, {"sparsity": 0.5, "optimizer": "sgd", "lr": 0.05}):
        states = []
        for name, more in (("sgd", {}), ("ensemble", {"members": 1})):
            torch.manual_seed(3)
            method = gs.build(name, net(), **given, **more, **KNOWN)
            infos = run(method, 8)
            states.append((without_name(method.state_dict()), infos, torch.get_rng_state()))
        assert_same_state(states[0][0], states[1][0])
        assert states[0][1] == states[1][1]
        assert torch.equal(states[0][2], states[1][2])


def test_every_member_is_sgd_from_its_own_start():
    torch.manual_seed(5)
    method = gs.build("ensemble", net, **KNOWN)
    assert len(method.members) == 5
    run(method, 6)
    torch.manual_seed(5)
    seed = int(torch.randint(2**62, ()))
    outputs = []
    for number, member in enumerate(method.members):
        torch.manual_seed(fold_seed(seed, number))
        alone = gs.build("sgd", net, **KNOWN)
        run(alone, 6)
        assert_same_state(without_name(member.state_dict()), without_name(alone.state_dict()))
        alone.model.eval()
        outputs.append(alone.model(clusters(7)[0]).detach())
    found = gs.predict(method, clusters(7)[0], 5)
    torch.testing.assert_close(found.probs, torch.stack(outputs).softmax(-1).mean(0))
    assert found.samples.shape == (5, 7, 3)


def test_its_networks_are_dense_and_start_apart():
    torch.manual_seed(0)
    given = net()
    method = gs.build("ensemble", given, members=3, **KNOWN)
    assert method.posterior().size == {"nnz": 3 * 56, "sparsity": 0.0}
    first = [sparse_layers(member.model)["0"].leading().detach() for member in method.members]
    assert torch.equal(first[0], given[0].weight.detach().flatten())
    assert not torch.equal(first[1], first[0])
    assert not torch.equal(first[1], first[2])


def test_the_moments_of_real_targets_are_those_of_the_mixture():
    """μ* = mean μ_m, σ*² = mean(σ_m² + μ_m²) - μ*², with a noise that each member learns itself."""
    torch.manual_seed(1)
    x, y = torch.randn(40, 4), torch.randn(40)
    method = gs.build(
        "ensemble",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
        num_data=40,
        total_steps=30,
        likelihood="gaussian",
        members=3,
        lr=0.05,
    )
    for _ in range(30):
        method.step((x, y))
    method.model.eval()
    means = method.model(x).detach().double()[..., 0]
    noises = torch.stack(
        [
            member.posterior().predict(x, 1).aleatoric.double().reshape(-1)
            for member in method.members
        ]
    )
    assert float(noises.std(0).min()) > 0.0, "each has its own"
    found = gs.predict(method, x, 3)
    mean, variance = means.mean(0), (noises**2 + means**2).mean(0) - means.mean(0) ** 2
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-6)
    total = found.epistemic.double() ** 2 + found.aleatoric.double() ** 2
    torch.testing.assert_close(total, variance, rtol=1e-4, atol=1e-6)
    disagreement = means.var(0, unbiased=False)
    torch.testing.assert_close(found.epistemic.double() ** 2, disagreement, rtol=1e-3, atol=1e-6)
