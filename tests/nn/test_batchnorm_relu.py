"""BatchNorm, residual and ReLU in one pass: torch's three steps, in training and evaluation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from cases.engines import ISAS, needs_native, using
from gossamer.models import BatchNormReLU2d, build_model
from gossamer.nn import batchnorm

pytestmark = needs_native

SHAPES = [(2, 3, 1, 1), (5, 7, 3, 3), (3, 70, 4, 4), (2, 2, 33, 33), (300, 5, 1, 1)]


def pair(channels, dtype=torch.float64):
    """The plain module with random parameters and statistics, and its twin."""
    plain = BatchNormReLU2d(channels, dtype=dtype)
    with torch.no_grad():
        for tensor in (*plain.parameters(), *plain.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0)
        plain.bias -= 1.0  # about half of the outputs are rectified
    net = nn.Sequential(copy.deepcopy(plain))
    batchnorm.use_native_batchnorm(net)
    assert type(net[0]) is batchnorm.BatchNormReLU2d
    return plain, net[0]


def by_steps(norm, x, residual):
    """What it stands for, with functions of torch alone."""
    mean, variance = (None, None) if norm.training else (norm.running_mean, norm.running_var)
    y = F.batch_norm(x, mean, variance, norm.weight, norm.bias, norm.training, 0.0, norm.eps)
    return F.relu(y if residual is None else y + residual)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_the_steps(shape, with_residual, isa):
    plain, ours = pair(shape[1])
    x, other, gradient = torch.randn(3, *shape, dtype=torch.float64)
    found = []
    with using(isa):
        for layer, run in ((ours, ours.__call__), (plain, plain.__call__), (plain, by_steps)):
            leaf = x.clone().requires_grad_()
            residual = other.clone().requires_grad_() if with_residual else None
            y = run(layer, leaf, residual) if run is by_steps else run(leaf, residual)
            wanted = [leaf, *layer.parameters(), *([residual] if with_residual else [])]
            found.append([y.detach(), *torch.autograd.grad(y, wanted, gradient)])
    assert ((found[0][0] == 0).any() and (found[0][0] > 0).any()) or x.numel() < 10
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for a, b in zip(ours.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_is_that_of_the_steps_and_leaves_its_arguments(shape, with_residual, isa):
    plain, ours = (layer.eval() for layer in pair(shape[1]))
    x = torch.randn(shape, dtype=torch.float64)
    residual = torch.randn(shape, dtype=torch.float64) if with_residual else None
    before = [t.clone() for t in (x, *([residual] if with_residual else []), *ours.buffers())]
    with using(isa), torch.no_grad():
        found = ours(x, residual)
        torch.testing.assert_close(found, by_steps(plain, x, residual), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found, plain(x, residual), rtol=1e-12, atol=1e-12)
    after = [x, *([residual] if with_residual else []), *ours.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_far_from_zero_evaluation_keeps_a_small_spread():
    """Where x · scale + (bias - mean · scale) would be nothing but rounding."""
    plain, ours = (layer.eval() for layer in pair(3, torch.float32))
    for layer in (plain, ours):
        layer.running_mean.fill_(1e3)
        layer.running_var.fill_(1e-4)
        nn.init.ones_(layer.weight)
    x = 1e3 + 1e-2 * torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        exact = copy.deepcopy(plain).double()(x.double())
        torch.testing.assert_close(ours(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_evaluation_has_gradients_where_they_are_asked_for():
    plain, ours = (layer.eval() for layer in pair(3))
    found = []
    for layer in (plain, ours):
        x = torch.linspace(-2, 2, 48, dtype=torch.float64).view(1, 3, 4, 4).requires_grad_()
        layer(x, x.detach()).sum().backward()
        found.append([x.grad, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nan_stays_and_stops_no_gradient():
    plain, ours = pair(2)
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    x[0, 1, 1, 1] = torch.nan
    for train in (True, False):
        expected, found = plain.train(train)(x), ours.train(train)(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert found[0, 1, 1, 1].isnan()


def test_what_goes_to_torch():
    plain, ours = pair(3, torch.float32)
    x, residual = torch.randn(2, 4, 3, 5, 5)
    last = x.to(memory_format=torch.channels_last)
    broadcast = residual[:1]
    for train in (False, True):
        plain.train(train), ours.train(train)
        with torch.no_grad():
            assert torch.equal(ours(last, residual), plain(last, residual))
            assert torch.equal(ours(x, broadcast), plain(x, broadcast))
            wide = ours(x, residual.double())
            assert wide.dtype == torch.float64
            assert torch.equal(wide, plain(x, residual.double()))
    for wrong in (torch.randn(1, 3, 1, 1), torch.randn(4, 3)):
        with pytest.raises(ValueError, match=r"more than 1 value|expected 4D input"):
            ours.train()(wrong)
    with pytest.raises(ValueError, match="expected 4D input"), torch.no_grad():
        ours.eval()(torch.randn(4, 3))


def test_threads_give_the_same_bits():
    x, residual, gradient = torch.randn(3, 9, 40, 12, 12)
    before, found = torch.get_num_threads(), []
    layer = pair(40, torch.float32)[1]
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        twin = copy.deepcopy(layer)
        leaf, other = x.clone().requires_grad_(), residual.clone().requires_grad_()
        y = twin(leaf, other)
        y.backward(gradient)
        with torch.no_grad():
            evaluated = twin.eval()(x, residual)
        found.append([y, leaf.grad, other.grad, evaluated, *(p.grad for p in twin.parameters())])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_compiled_is_eager_bit_for_bit():
    torch._dynamo.reset()
    layer = pair(3, torch.float32)[1]
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    x, residual, gradient = torch.randn(3, 4, 3, 5, 5)
    found = []
    for run, module in ((layer, layer), (compiled, other)):
        leaf, added = x.clone().requires_grad_(), residual.clone().requires_grad_()
        y = run(leaf, added)
        y.backward(gradient)
        grads = [leaf.grad, added.grad, *(p.grad for p in module.parameters())]
        found.append([y.detach(), *grads, *module.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["resnet20", "wide_resnet"])
def test_a_converted_network_computes_what_the_masked_one_does(name):
    options = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
    net = build_model(name, input_shape=(3, 8, 8), output_size=4, **options).double()
    twins = [
        gs.to_bayesian(
            net, 0.5, backend=backend, generator=torch.Generator().manual_seed(0)
        ).double()
        for backend in ("native", "masked")
    ]
    kinds = [{type(m) for m in twin.modules()} for twin in twins]
    assert batchnorm.BatchNormReLU2d in kinds[0]
    assert BatchNormReLU2d in kinds[1]
    twins[1].load_state_dict(twins[0].state_dict())
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    for train in (True, False):
        found = []
        for twin in twins:
            torch.manual_seed(1)
            found.append(twin.train(train)(x))
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    back = gs.to_deterministic(twins[0])
    assert {type(m) for m in back.modules()} & kinds[0] <= kinds[1]
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(x), twins[0].eval()(x), rtol=1e-10, atol=1e-10)
