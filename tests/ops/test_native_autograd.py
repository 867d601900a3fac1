"""The native engine's operators under torch: autograd, compilation, what is saved for backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import needs_native
from cases.native import (
    LAYOUTS,
    converted,
    no_memory_by_chance,  # noqa: F401 (autouse)
    problem,
    step,
)
from gossamer.ops import library
from gossamer.ops.native import kernels
from gossamer.ops.native.geometry import encode
from gossamer.ops.native.orders import derive

pytestmark = needs_native


def operator_arguments(name: str, dtype=torch.float64) -> dict[str, tuple]:
    p = problem(*LAYOUTS[name], dtype)
    x, mean, variance, bias = (t.requires_grad_() for t in (p.x, p.mean, p.variance, p.bias))
    derived, spec = list(derive(p.support.indices, p.layout)), encode(p.layout)
    tail = (p.support.indices, derived, [], spec)
    y = p.solve("masked", "product")[0].detach()
    up, slope = torch.randn(2, *y.shape, dtype=dtype)
    fixed = [t.detach() for t in (x, mean, variance)]
    return {
        "product": (x, mean, bias, *tail),
        "local": (x, mean, variance, bias, torch.tensor(3), True, *tail),
        "moments": (x, mean, variance, None, *tail),
        "backward": (up, None, slope, *fixed, p.support.indices, derived, spec, True),
    }


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("linear", "product"),
        ("linear", "moments"),
        ("flat", "local"),
        ("transposed", "backward"),
    ],
)
def test_operator_contract(name, operator):
    """torch's own checks: schema, fake tensors, autograd, compilation."""
    found = getattr(torch.ops.gossamer, f"native_{operator}").default
    results = torch.library.opcheck(found, operator_arguments(name)[operator])
    assert set(results.values()) == {"SUCCESS"}


def test_compiled_equals_eager():
    """aot_eager runs the same kernels: equal to the last bit, with a new seed at every call."""
    torch._dynamo.reset()
    bnn, x = converted(1), torch.randn(4, 2, 5, 5)
    compiled = torch.compile(bnn, backend="aot_eager", fullgraph=True)
    seen = []
    for seed in (5, 6):
        eager, traced = step(bnn, bnn, x, seed), step(compiled, bnn, x, seed)
        assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True))
        seen.append(eager[0])
    assert not torch.equal(*seen), "noise is drawn, not baked into the graph"
    torch._dynamo.reset()


def test_without_gradients_no_slope_is_kept(monkeypatch):
    sizes = []
    plain = kernels.forward

    def watched(*inputs):
        y, slope = inputs[5:7]
        sizes.append((y.numel(), 0 if slope is None else slope.numel()))
        plain(*inputs)

    monkeypatch.setattr(kernels, "forward", watched)
    layer = gs.to_bayesian(nn.Linear(10, 12), 0.5, backend="native").train()
    x = torch.randn(3, 10)
    with torch.no_grad():
        layer(x)
    with torch.inference_mode():
        layer(x)
    layer(x)
    assert sizes == [(36, 0), (36, 0), (36, 36)]


def test_the_bias_alone_can_be_trained(monkeypatch):
    """Frozen means and stds: no slope is kept, and none may be asked for.

    The library's call is watched, since one that breaks its contract ends the process.
    """
    loaded = library.loaded()

    class Watched:
        def __getattr__(self, name):
            return getattr(loaded, name)

        def gs_backward(self, geometry, pattern, dtype, call, threads):
            assert call.variance is None or call.slope or call.gradient2
            return loaded.gs_backward(geometry, pattern, dtype, call, threads)

    monkeypatch.setattr(library, "loaded", Watched)
    layer = gs.to_bayesian(nn.Linear(10, 12), 0.5, backend="native").train()
    layer.weight_mean.requires_grad_(False)
    layer.weight_raw_std.requires_grad_(False)
    layer(torch.randn(3, 10)).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((12,), 3.0))


def test_a_swap_between_forward_and_backward_is_refused():
    """The pattern is no saved tensor; the mean, which a swap changes with it, is."""
    layer = gs.to_bayesian(nn.Linear(64, 64), 0.9, backend="native").train()
    loss = layer(torch.randn(5, 64)).sum()
    with torch.no_grad():
        layer.weight_mean.copy_(layer.weight_mean.flip(0))
        layer.indices.copy_((64 * 64 - 1 - layer.indices).flip(0))
    layer.refresh_pattern()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
