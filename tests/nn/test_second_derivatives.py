"""Second derivatives and vmap: the masked engine against dense torch, the native one refuses."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers
from gossamer.ops import draw, library

NETS = {
    "linear": lambda: (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), (3, 5)),
    "conv": lambda: (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 1, 2)),
        (2, 2, 4, 4),
    ),
}
KINDS = ["deterministic", "mean", "draw", "local"]
native = pytest.mark.skipif(not library.is_available(), reason="no native library")


def converted(name, kind, backend="masked"):
    torch.manual_seed(0)
    net, shape = NETS[name]()
    net = net.double()
    if kind == "deterministic":
        return gs.to_sparse(net, 0.4, backend=backend), torch.randn(shape).double()
    model = gs.to_bayesian(net, 0.4, backend=backend, posterior_std=0.3)
    return model.train(kind == "local"), torch.randn(shape).double()


def context(model, kind):
    if kind not in ("draw", "local"):
        return nullcontext()
    return gs.sampling(model, seed=1, noise="weight" if kind == "draw" else "local")


def dense(model, kind):
    """The same function of the same parameters, written in plain torch operations."""
    layers = list(sparse_layers(model).values())
    seeds = [None if kind != "draw" else layer.sampling_state.seed for layer in layers]
    order = list(model.parameters())
    where = {id(p): place for place, p in enumerate(order)}

    def run(x, *given):
        for layer, seed in zip(layers, seeds, strict=True):
            if layer is not layers[0]:
                x = torch.tanh(x)
            values = given[where[id(layer.leading())]]
            if seed is not None:
                std = F.softplus(given[where[id(layer.weight_raw_std)]])
                values = draw(values, std, seed)
            flat = torch.zeros(layer.layout.numel, dtype=values.dtype)
            weight = flat.index_put((layer.indices.long(),), values).view(layer.layout.shape)
            bias = given[where[id(layer.bias)]]
            x = (F.linear if layer.layout.is_linear else F.conv2d)(x, weight, bias)
        return x

    return run, order


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("name", NETS)
def test_second_derivatives_are_those_of_the_dense_twin(name, kind):
    model, x = converted(name, kind)
    x.requires_grad_(True)
    with context(model, kind):
        twin, order = dense(model, kind)
        found = []
        for y in (model(x), twin(x, *order)):
            (slope,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), [x, *order], allow_unused=True))
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert any(g is not None and bool(g.abs().max() > 1e-3) for g in found[0][1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_gradients_by_differences(name, kind):
    model, x = converted(name, kind)
    names = [n for n, _ in model.named_parameters()]

    def run(x, *given):
        with context(model, kind):  # the same noise every time
            return functional_call(model, dict(zip(names, given, strict=True)), (x,))

    given = (x.requires_grad_(True), *(p.detach().requires_grad_(True) for p in model.parameters()))
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True, atol=1e-5)


def test_a_dead_input_has_no_infinite_second_derivative():
    """Variance 0: the root has no derivative there, and none is taken."""
    model, x = converted("linear", "local")
    x[0] = 0.0
    x.requires_grad_(True)
    with context(model, "local"):
        (slope,) = torch.autograd.grad(model(x).sin().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_the_kl_has_second_derivatives():
    model, _ = converted("linear", "mean")
    mean, raw = model[0].weight_mean, model[0].weight_raw_std
    scale = model[0].prior_std

    def by_hand(mean, raw):
        std = F.softplus(raw)
        return (scale / std).log().sum() + ((std**2 + mean**2) / (2 * scale**2) - 0.5).sum()

    for loss in (model[0].kl_divergence(), by_hand(mean, raw)):
        first = torch.autograd.grad(loss, (mean, raw), create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), (mean, raw))
        if loss.grad_fn.name().startswith("_Kl"):
            kept = (*first, *second)
    for ours, theirs in zip(kept, (*first, *second), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@native
@pytest.mark.parametrize("kind", KINDS)
def test_the_native_engine_refuses_and_names_the_way(kind):
    """Also the last layer alone, whose incoming gradient is a constant."""
    model, x = converted("linear", kind, backend="native")
    x.requires_grad_(True)
    with context(model, kind):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(InvalidValue, match=r'second derivative: .*backend="masked"'):
        slope.square().sum().backward()
    last = model[2].leading()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(InvalidValue, match=r'second derivative: .*backend="masked"'):
        torch.autograd.grad(slope.square().sum(), last)


@native
def test_first_derivatives_with_a_graph_are_the_plain_ones():
    model, x = converted("linear", "deterministic", backend="native")
    parameters = list(model.parameters())
    plain = torch.autograd.grad(model(x).sin().sum(), parameters)
    graph = torch.autograd.grad(model(x).sin().sum(), parameters, create_graph=True)
    for one, two in zip(plain, graph, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("backend", ["masked", pytest.param("native", marks=native)])
@pytest.mark.parametrize("kind", ["deterministic", "mean"])
@pytest.mark.parametrize("name", NETS)
def test_vmap_over_networks_is_a_loop_over_them(name, kind, backend):
    """Supports differ from network to network."""
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        net, shape = NETS[name]()
        build = gs.to_sparse if kind == "deterministic" else gs.to_bayesian
        models.append(build(net, 0.4, backend=backend).eval())
    x = torch.randn(shape)
    parameters, buffers = stack_module_state(models)

    def one(parameters, buffers, x):
        return functional_call(models[0], (parameters, buffers), (x,))

    together = torch.vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
    for found, model in zip(together, models, strict=True):
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-6)
    assert not torch.equal(together[0], together[1])
    assert torch.equal(models[0](x), models[0](x)), "the network itself is as before"
