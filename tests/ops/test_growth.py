"""Addition scores caught in a backward: the brute-force best of the dense gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, LAYERS, OneParameter, TwoNames
from gossamer.core.support import Support
from gossamer.nn import sparse_layers
from gossamer.ops import Growth
from gossamer.ops.growth import probe
from reference import local_reparameterisation as truth

SPARSE = [case for case in LAYERS if case.name != "linear-one-weight"]
# The weight's gradient does not ask where the noise came from: all cases once, some in every mode.
WITH_NOISE = [
    pytest.param(case, noise, id=f"{case.name}-{noise}")
    for case in SPARSE
    for noise in ("local", "weight", "mean")
    if noise == "local" or case.name.endswith(("linear", "mixed", "groups"))
]
every_backend = pytest.mark.parametrize("engine", BACKENDS)


def arm(layer, count: int, *, keep_dense: bool = False) -> Growth:
    device = layer.leading().device
    layer.growth = Growth.empty(layer.support, count, device, keep_dense=keep_dense)
    return layer.growth


def check(growth: Growth, support: Support, dense: np.ndarray) -> None:
    """Buffers against the whole gradient, rounded to the buffers' float32."""
    size = np.abs(dense).astype(np.float32)
    kept = support.positions().numpy()
    off = np.setdiff1d(np.arange(size.size), kept)
    k = growth.scores.numel()
    best = np.sort(size[off])[::-1][:k]
    # The gradient is summed in another order than the truth's: 1e-5 relative to its largest.
    atol = 1e-5 * size.max()
    np.testing.assert_allclose(growth.scores.numpy(), best, rtol=1e-5, atol=atol)
    places = growth.positions.numpy()
    assert len(set(places.tolist())) == k
    assert not set(places.tolist()) & set(kept.tolist()), "never on the support"
    np.testing.assert_allclose(size[places], growth.scores.numpy(), rtol=1e-5, atol=atol)
    np.testing.assert_allclose(growth.own.numpy(), size[kept], rtol=1e-5, atol=atol)


@pytest.mark.parametrize(("case", "noise"), WITH_NOISE)
@every_backend
def test_buffers_are_the_best_of_the_dense_gradient(case, engine, noise):
    generator = torch.Generator().manual_seed(1)
    module = case.build().double()
    layer = gs.to_bayesian(module, 0.6, backend=engine, generator=generator).train()
    growth = arm(layer, 4)
    assert not growth.is_filled
    x = torch.randn(case.shape, generator=generator, dtype=torch.float64)
    if noise == "local":
        y = layer(x, **case.call)
    elif noise == "weight":
        with gs.sampling(layer, seed=3):
            y = layer(x, **case.call)
    else:
        y = layer.eval()(x, **case.call)
    upstream = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    (y * upstream).sum().backward()
    rows = int(np.prod(case.shape[: case.batch_dims], initial=1))
    products = truth.products_of(module, case.shape[case.batch_dims :], case.output_size)
    dense = truth.dense_gradient(
        products,
        x.reshape(rows, -1).numpy(),
        upstream.reshape(rows, -1).numpy(),
        layer.layout.numel,
    )
    check(growth, layer.support, dense)
    assert growth.is_filled
    assert growth.is_finite


@every_backend
def test_arming_changes_neither_output_nor_gradient(engine):
    layer = gs.to_bayesian(nn.Linear(6, 5), 0.5, backend=engine).train()
    x = torch.randn(3, 6)
    results = []
    for armed in (False, True):
        if armed:
            arm(layer, 3)
        torch.manual_seed(2)
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        results.append((y, layer.weight_mean.grad.clone(), layer.weight_raw_std.grad.clone()))
    for plain, armed in zip(*results, strict=True):
        assert torch.equal(plain, armed)


@every_backend
def test_the_last_backward_counts(engine):
    """Accumulation: the buffers hold the last micro-batch alone."""
    layer = gs.to_bayesian(nn.Linear(6, 5), 0.5, backend=engine).eval()
    growth = arm(layer, 3)
    for x in (torch.randn(4, 6), torch.randn(4, 6)):
        layer(x).sum().backward()
    dense = x.sum(0).expand(5, 6).reshape(-1).numpy()
    check(growth, layer.support, dense)


@every_backend
def test_the_same_graph_can_be_walked_twice(engine):
    """``backward(retain_graph=True)``, as samplers and gradient checks use it."""
    layer = gs.to_bayesian(nn.Linear(6, 5), 0.5, backend=engine).eval()
    growth = arm(layer, 3)
    x = torch.randn(4, 6)
    loss = layer(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    check(growth, layer.support, x.sum(0).expand(5, 6).reshape(-1).numpy())


@every_backend
@pytest.mark.parametrize("model", [TwoNames, OneParameter])
def test_a_shared_weight_sums_over_its_uses(engine, model):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(model(), 0.5, backend=engine).eval()
    layers = sparse_layers(bnn)
    first = layers["first"]
    growth = arm(first, 4, keep_dense=True)
    for layer in layers.values():
        if layer.leading() is first.leading():
            layer.growth = growth
    plain = gs.to_deterministic(bnn)
    for _ in range(2):  # the second pass starts anew
        x = torch.randn(3, 6)
        bnn(x).square().sum().backward()
    plain(x).square().sum().backward()
    check(growth, first.support, plain.first.weight.grad.flatten().numpy())


@every_backend
def test_two_forwards_of_an_armed_shared_weight_then_one_backward(engine):
    """Two views of a batch in one loss: must run; the score is the gradient of that loss."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(OneParameter(), 0.5, backend=engine).eval()
    growth = arm(bnn.first, 4, keep_dense=True)
    bnn.second.growth = growth
    plain = gs.to_deterministic(bnn)
    one, two = torch.randn(3, 6), torch.randn(3, 6)
    (bnn(one) + bnn(two)).square().sum().backward()
    (plain(one) + plain(two)).square().sum().backward()
    check(growth, bnn.first.support, plain.first.weight.grad.flatten().numpy())


@every_backend
def test_a_layer_called_twice_in_one_forward(engine):
    """Recurrence: one name, two calls. It must run, and the score is the gradient of the loss."""
    layer = gs.to_bayesian(nn.Linear(6, 6), 0.5, backend=engine).eval()
    growth = arm(layer, 4, keep_dense=True)
    plain = gs.to_deterministic(layer)
    x = torch.randn(3, 6)
    for model in (layer, plain):
        model(torch.tanh(model(x))).square().sum().backward()
    check(growth, layer.support, plain.weight.grad.flatten().numpy())


def test_non_finite_gradients_are_seen():
    layer = gs.to_bayesian(nn.Linear(3, 3), 0.5).eval()
    for bad in (float("inf"), float("nan")):
        growth = arm(layer, 2)
        layer(torch.tensor([[1.0, bad, 0.0]])).sum().backward()
        assert growth.is_filled
        assert not growth.is_finite


def test_no_more_than_the_free_positions():
    growth = Growth.empty(Support.full((2, 2)), 10, torch.device("cpu"), keep_dense=False)
    assert growth.scores.numel() == 0
    few = Growth.empty(Support.random((2, 2), 3), 10, torch.device("cpu"), keep_dense=True)
    assert (few.scores.numel(), few.own.numel(), few.dense.numel()) == (1, 3, 4)


def test_a_full_layer_can_be_armed():
    layer = gs.to_bayesian(nn.Linear(3, 2)).train()
    arm(layer, 5)
    layer(torch.ones(2, 3)).sum().backward()
    assert torch.isfinite(layer.weight_mean.grad).all()


def test_operator_contract():
    """torch's own checks of both operators: schema, fake tensors, autograd, compilation."""
    support = Support.from_positions(torch.tensor([0, 4, 7]), (3, 4))
    growth = Growth.empty(support, 2, torch.device("cpu"), keep_dense=False)
    caught = (growth.scores, growth.positions, growth.own, growth.dense, growth.task)
    buffers = (support.indices, *caught)
    weight = torch.randn(12, requires_grad=True)
    results = torch.library.opcheck(torch.ops.gossamer.probe.default, (weight, *buffers))
    assert set(results.values()) == {"SUCCESS"}
    gradient = torch.randn(12)
    catch = torch.ops.gossamer.catch_scores.default
    results = torch.library.opcheck(catch, (gradient, *buffers))
    assert set(results.values()) == {"SUCCESS"}


def test_probe_is_the_identity():
    support = Support.from_positions(torch.tensor([0, 4, 7]), (3, 4))
    growth = Growth.empty(support, 2, torch.device("cpu"), keep_dense=False)
    weight = torch.randn(12, requires_grad=True)
    out = probe(weight, support.indices, growth)
    assert torch.equal(out, weight)
    upstream = torch.randn(12)
    (out * upstream).sum().backward()
    assert torch.equal(weight.grad, upstream)
