"""Passes of their own for addition scores, and layers with several uses in one pass."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def one_step(model, opt, subspace):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    return subspace.step(lambda: F.cross_entropy(model(x), y))


class Twice(nn.Module):
    """One layer called twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(torch.tanh(self.body(x)))))


@pytest.mark.parametrize("addition", ["grad_mean", "grad_multi"])
def test_a_missing_closure(addition):
    model = gs.to_bayesian(Twice(), 0.5)
    subspace = gs.Subspace(model, sgd(model), total_steps=10, addition=addition, update_every=1)
    with pytest.raises(InvalidValue, match=rf"addition='{addition}' needs step\(closure\)"):
        subspace.step()


def test_scores_of_a_layer_called_twice_are_the_summed_gradient():
    """∂loss/∂μ sums over the uses of a weight, in the training pass as in passes of its own."""
    torch.manual_seed(0)
    model = gs.to_sparse(Twice().double(), 0.5).train()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
    start = {n: t.clone() for n, t in model.state_dict().items()}
    kept = {}
    for addition in ("grad", "grad_mean"):
        model.load_state_dict(start)
        opt = torch.optim.SGD(model.parameters(), lr=0.0)
        subspace = gs.Subspace(
            model,
            opt,
            total_steps=10**6,
            addition=addition,
            update_every=1,
            swap_fraction=0.5001,
            end_fraction=1.0,
        )
        for _ in range(2):  # the second swap decides, whatever was learnt from the first
            model.load_state_dict(start)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            subspace.step(lambda: F.cross_entropy(model(x), y))
        kept[addition] = model.body.support.positions().tolist()
    assert kept["grad"] == kept["grad_mean"]


def test_resuming_with_a_layer_called_twice():
    """What a run has learnt about repeated uses must survive saving."""

    def fresh():
        torch.manual_seed(0)
        model = gs.to_bayesian(Twice(), 0.5).train()
        opt = sgd(model)
        subspace = gs.Subspace(model, opt, total_steps=40, update_every=2, swap_fraction=0.6)
        return model, opt, subspace

    straight = fresh()
    torch.manual_seed(1)
    for _ in range(4):
        one_step(*straight)
    resumed = fresh()
    for new, old in zip(resumed, straight, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    noise = torch.get_rng_state()
    for run in (straight, resumed):
        torch.set_rng_state(noise)
        for _ in range(4):
            one_step(*run)
    for name, value in straight[0].state_dict().items():
        assert torch.equal(value, resumed[0].state_dict()[name]), name


def test_instance_norm_statistics_are_frozen_too():
    net = nn.Sequential(
        nn.Unflatten(1, (2, 3)),
        nn.Conv1d(2, 8, 2),
        nn.InstanceNorm1d(8, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    model = gs.to_bayesian(net, 0.5).train()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=8, addition="grad_mean", update_every=1)
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    F.cross_entropy(model(x), y).backward()
    before = [model[2].running_mean.clone(), model[2].running_var.clone()]
    assert subspace.step(lambda: F.cross_entropy(model(x), y)) is not None
    assert torch.equal(model[2].running_mean, before[0])
    assert torch.equal(model[2].running_var, before[1])


def test_a_failing_closure_restores_batchnorm():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = gs.to_bayesian(net, 0.5).train()
    subspace = gs.Subspace(model, sgd(model), total_steps=8, addition="grad_multi", update_every=1)

    def fails():
        raise KeyError("batch")

    with pytest.raises(KeyError):
        subspace.step(fails)
    assert model[1].track_running_stats
