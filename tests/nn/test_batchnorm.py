"""BatchNorm on the native engine: torch's results, statistics, state and errors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.library import opcheck

import gossamer as gs
from cases.engines import ISAS, needs_native, using
from gossamer.nn import batchnorm
from gossamer.ops import runs_batchnorm

pytestmark = needs_native

# One value per channel, odd sizes, fewer and more channels than a task takes, long sums.
SHAPES = [(7, 5), (2, 3, 1), (5, 70, 3), (3, 2, 4, 9), (33, 5, 1, 1), (2, 3, 2, 3, 5), (300, 2, 33)]
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def pair(shape, dtype=torch.float64, **options):
    """torch's layer with random parameters and statistics, and its twin."""
    plain = PLAIN[len(shape)](shape[1], dtype=dtype, **options).train()
    with torch.no_grad():
        for tensor in (*plain.parameters(), *plain.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0)
    net = nn.Sequential(copy.deepcopy(plain))
    batchnorm.use_native_batchnorm(net)
    return plain, net[0]


def results(layer, x, gradient):
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(gradient)
    grads = [p.grad for p in layer.parameters()]
    return [y.detach(), x.grad, *grads, *(b.clone() for b in layer.buffers())]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_torch_in_double(shape, isa):
    plain, ours = pair(shape)
    x = 3.0 + 2.0 * torch.randn(shape, dtype=torch.float64)
    gradient = torch.randn(shape, dtype=torch.float64)
    with using(isa):
        for _ in range(2):  # running statistics move twice
            found, expected = results(ours, x, gradient), results(plain, x, gradient)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_far_from_zero_a_small_spread_is_kept():
    """Where the mean of squares minus the square of the mean would be nothing but rounding."""
    x = 1e3 + 1e-2 * torch.randn(64, 3, 16, 16)
    plain, ours = pair(tuple(x.shape), torch.float32)
    exact = copy.deepcopy(plain).double()
    gradient = torch.randn_like(x)
    found, expected = results(ours, x, gradient), results(exact, x.double(), gradient.double())
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=2e-2)
    torch.testing.assert_close(found[-2].double(), expected[-2], rtol=1e-5, atol=0)


@pytest.mark.parametrize("options", [{"momentum": None}, {"track_running_stats": False}])
def test_ways_of_keeping_statistics(options):
    shape = (4, 3, 5, 5)
    plain, ours = pair(shape, **options)
    for _ in range(3):
        x, gradient = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
        for a, b in zip(results(ours, x, gradient), results(plain, x, gradient), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_statistics_rest_while_they_are_switched_off():
    plain, ours = pair((4, 3, 5, 5))
    for layer in (plain, ours):
        layer.track_running_stats = False
        before = [b.clone() for b in layer.buffers()]
        layer(torch.randn(4, 3, 5, 5, dtype=torch.float64))
        assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


def test_what_goes_to_torch():
    plain, ours = pair((4, 3, 5, 5), torch.float32)
    x = torch.randn(4, 3, 5, 5)
    assert torch.equal(ours.eval()(x), plain.eval()(x))
    last = x.to(memory_format=torch.channels_last)
    assert not runs_batchnorm(last, None)
    assert torch.equal(ours.train()(last), plain.train()(last))
    assert not runs_batchnorm(x.bfloat16(), None)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(torch.randn(1, 3, 1, 1))
    with pytest.raises(ValueError, match="expected 4D input"):
        ours(torch.randn(4, 3))
    for parts in ({"affine": False}, {"bias": False}):
        bare = nn.Sequential(nn.BatchNorm2d(3, **parts))
        batchnorm.use_native_batchnorm(bare)
        assert torch.equal(bare.train()(x), nn.BatchNorm2d(3, **parts)(x))


def test_threads_give_the_same_bits():
    x, gradient = torch.randn(2, 9, 40, 12, 12).unbind()
    before, found = torch.get_num_threads(), []
    layer = pair(tuple(x.shape), torch.float32)[1]
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        found.append(results(copy.deepcopy(layer), x, gradient))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_autograd_and_operator_checks():
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    layer = pair((3, 2, 4))[1]
    assert torch.autograd.gradcheck(layer, (x,))
    operator = torch.ops.gossamer.batchnorm.default
    opcheck(operator, (x, *layer.parameters(), None, 1e-5, False))
    opcheck(operator, (x, *layer.parameters(), torch.randn_like(x, requires_grad=True), 1e-5, True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_compiled_is_eager_bit_for_bit(momentum):
    torch._dynamo.reset()
    layer = pair((4, 3, 5, 5), torch.float32, momentum=momentum)[1]
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    x, gradient = torch.randn(2, 4, 3, 5, 5).unbind()
    expected = results(layer, x, gradient)
    y = compiled(leaf := x.clone().requires_grad_())
    y.backward(gradient)
    found = [y.detach(), leaf.grad, *(p.grad for p in other.parameters()), *other.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    torch._dynamo.reset()


def network():
    shared = nn.BatchNorm2d(4)
    return nn.Sequential(nn.Conv2d(3, 4, 3), shared, nn.Conv2d(4, 4, 3), shared)


def test_a_converted_network_has_them_and_gives_them_back():
    net = network()
    net[1].register_forward_hook(lambda module, inputs, y: y + 1.0)
    bnn = gs.to_bayesian(net, 0.5)
    assert type(bnn[1]) is batchnorm.BatchNorm2d
    assert bnn[1] is bnn[3], "one module stays one"
    assert isinstance(bnn[1], nn.BatchNorm2d)
    assert [k for k in bnn.state_dict() if k.startswith("1.")] == [
        k for k in net.state_dict() if k.startswith("1.")
    ]
    assert len(bnn[1]._forward_hooks) == 1
    assert type(net[1]) is nn.BatchNorm2d, "the model that was given is as it was"
    back = gs.to_deterministic(bnn)
    assert type(back[1]) is nn.BatchNorm2d
    assert type(gs.to_bayesian(net, 0.5, backend="masked")[1]) is nn.BatchNorm2d


def test_a_subclass_keeps_its_own_forward():
    class Own(nn.BatchNorm2d):
        pass

    bnn = gs.to_bayesian(nn.Sequential(nn.Conv2d(3, 4, 3), Own(4)), 0.5)
    assert type(bnn[1]) is Own
