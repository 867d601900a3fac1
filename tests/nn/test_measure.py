"""``backend="measure"``: the clock chooses once, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import needs_native
from gossamer.nn import measure, restore_backends, sparse_layers

pytestmark = needs_native


def engines(model: nn.Module) -> list[str]:
    return [layer.backend.name for layer in sparse_layers(model).values()]


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture
def clock(monkeypatch):
    """Seconds by engine, instead of a clock."""
    seconds = {"masked": 1.0, "native": 2.0}
    monkeypatch.setattr(measure, "_seconds", lambda layer, engine, x: seconds[engine])
    return seconds


@pytest.mark.parametrize("faster", ["masked", "native"])
@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_the_faster_engine_is_kept(convert, faster, clock):
    clock[faster] = 0.1
    net = convert(
        nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)), 0.5, backend="measure"
    )
    net.train()(torch.randn(4, 9)).sum().backward()
    assert engines(net) == [faster] * 2
    assert hooks(net) == 0
    clock["masked"], clock["native"] = clock["native"], clock["masked"]
    net(torch.randn(4, 9))
    assert engines(net) == [faster] * 2, "measured once"


def test_nothing_is_measured_before_training(clock):
    net = gs.to_bayesian(nn.Linear(9, 8), 0.5, backend="measure")
    net.eval()(torch.randn(2, 9))
    with torch.no_grad():
        net.train()(torch.randn(2, 9))
    assert hooks(net) == 1


def test_measuring_leaves_no_trace_but_the_engine():
    """The same noise, gradients and generator as a layer that had the engine from the start."""
    torch.manual_seed(0)
    net = gs.to_bayesian(nn.Conv2d(3, 8, 3), 0.5, backend="measure").train()
    twin = copy.deepcopy(net)
    x, found = torch.randn(2, 3, 6, 6), []
    for one in (net, twin):
        if one is twin:
            restore_backends(twin, {"": net.backend.name})
            assert hooks(twin) == 0
        torch.manual_seed(1)
        y = one(x)
        y.sum().backward()
        grads = [p.grad for p in one.parameters()]
        found.append([y.detach(), torch.random.get_rng_state(), *grads])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_way_back_to_torch_layers_forgets_it():
    net = gs.to_bayesian(nn.Sequential(nn.Linear(9, 8)), 0.5, backend="measure")
    dense = gs.to_deterministic(net)
    dense.train()(torch.randn(2, 9)).sum().backward()
    assert hooks(dense) == 0
