"""BatchNorm, residual and ReLU in one pass: torch's three steps, in training and evaluation."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import gossamer as gs
from cases.engines import ISAS, needs_native, using
from gossamer.models import FusingNorm, build_model, norm_relu
from gossamer.nn import NativeBatchNorm, batchnorm
from gossamer.nn.batchnorm import use_native_batchnorm

pytestmark = needs_native

SHAPES = [(2, 3, 1, 1), (5, 7, 3, 3), (3, 70, 4, 4), (2, 2, 33, 33), (300, 5, 1, 1)]


class Tail(nn.Module):
    """A norm and a ReLU that are called together."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.relu = norm, nn.ReLU()

    def forward(self, x, residual=None):
        return norm_relu(self.norm, self.relu, x, residual)


def pair(channels, dtype=torch.float64, **options):
    """A tail of torch's modules with random parameters and statistics, and its twin."""
    plain = Tail(nn.BatchNorm2d(channels, dtype=dtype, **options))
    with torch.no_grad():
        for tensor in (*plain.parameters(), *plain.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0)
        if plain.norm.bias is not None:
            plain.norm.bias -= 1.0  # about half of the outputs are rectified
    ours = copy.deepcopy(plain)
    use_native_batchnorm(ours)
    assert ours.norm.fuses(ours.relu)
    return plain, ours


def by_steps(tail, x, residual):
    """What it stands for, with functions of torch alone."""
    norm = tail.norm
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
        for tail, run in ((ours, Tail.__call__), (plain, Tail.__call__), (plain, by_steps)):
            leaf = x.clone().requires_grad_()
            residual = other.clone().requires_grad_() if with_residual else None
            y = run(tail, leaf, residual)
            wanted = [leaf, *tail.parameters(), *([residual] if with_residual else [])]
            found.append([y.detach(), *torch.autograd.grad(y, wanted, gradient)])
    if x.numel() > 10:
        assert 0 < (found[0][0] > 0).sum() < x.numel()
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for a, b in zip(ours.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_is_that_of_the_steps_and_leaves_its_arguments(shape, with_residual, isa):
    plain, ours = (tail.eval() for tail in pair(shape[1]))
    x = torch.randn(shape, dtype=torch.float64)
    residual = torch.randn(shape, dtype=torch.float64) if with_residual else None
    read = [x, *([residual] if with_residual else []), *ours.buffers()]
    before = [t.clone() for t in read]
    with using(isa), torch.no_grad():
        found = ours(x, residual)
        torch.testing.assert_close(found, by_steps(plain, x, residual), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found, plain(x, residual), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(before, read, strict=True))


def test_far_from_zero_evaluation_keeps_a_small_spread():
    """Where x · scale + (bias - mean · scale) would be nothing but rounding."""
    plain, ours = (tail.eval() for tail in pair(3, torch.float32))
    for tail in (plain, ours):
        tail.norm.running_mean.fill_(1e3)
        tail.norm.running_var.fill_(1e-4)
        nn.init.ones_(tail.norm.weight)
    x = 1e3 + 1e-2 * torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        exact = copy.deepcopy(plain).double()(x.double())
        torch.testing.assert_close(ours(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_evaluation_has_gradients_where_they_are_asked_for():
    plain, ours = (tail.eval() for tail in pair(3))
    found = []
    for tail in (plain, ours):
        x = torch.linspace(-2, 2, 48, dtype=torch.float64).view(1, 3, 4, 4).requires_grad_()
        tail(x, x.detach()).sum().backward()
        found.append([x.grad, *(p.grad for p in tail.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nan_stays():
    plain, ours = pair(2)
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    x[0, 1, 1, 1] = torch.nan
    for train in (True, False):
        with torch.no_grad():
            expected, found = plain.train(train)(x), ours.train(train)(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert found[0, 1, 1, 1].isnan()


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_layers_without_all_that_the_engine_reads(options):
    plain, ours = pair(3, **options)
    x, residual = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    for train in (True, False):
        with torch.no_grad():
            expected, found = (t.train(train)(x, residual) for t in (plain, ours))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_what_goes_to_torch():
    plain, ours = pair(3, torch.float32)
    x, residual = torch.randn(2, 4, 3, 5, 5)
    last = x.to(memory_format=torch.channels_last)
    for train in (False, True):
        plain.train(train), ours.train(train)
        with torch.no_grad():
            for given in ((last, residual), (x, residual[:1]), (x, residual.double())):
                found, expected = ours(*given), plain(*given)
                assert found.dtype == expected.dtype
                assert torch.equal(found, expected)
            negative = torch._neg_view(x)
            torch.testing.assert_close(ours(negative, residual), plain(negative, residual))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "shape", [(4, 5, 2, 2), (4, 1, 2, 2), (4, 200, 2, 2), (4, 3), (4,), (), (4, 3, 2, 2, 2)]
)
def test_inputs_that_do_not_fit_are_refused_by_torch(shape, train):
    plain, ours = (tail.train(train) for tail in pair(3, torch.float32))
    before = [b.clone() for b in ours.buffers()]
    told = []
    for tail in (plain, ours):
        with torch.no_grad(), pytest.raises((RuntimeError, ValueError)) as caught:
            tail(torch.randn(shape))
        told.append((caught.type, str(caught.value)))
    assert told[0] == told[1]
    if train:  # torch itself counts the batch before it looks at it
        before, after = before[:-1], list(ours.buffers())[:-1]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_who_watches_sees_the_steps():
    plain, ours = (tail.eval() for tail in pair(3))
    for tail in (plain, ours):
        tail.requires_grad_(False)
    x, residual = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    expected = plain(x, residual)
    traced = torch.jit.trace(ours, (torch.zeros_like(x), torch.zeros_like(x)))
    torch.testing.assert_close(traced(x, residual), expected)
    recorded = make_fx(ours)(torch.zeros_like(x), torch.zeros_like(x))
    torch.testing.assert_close(recorded(x, residual), expected)
    tangents = []
    for tail in (plain, ours):
        with torch.no_grad(), forward_ad.dual_level():
            dual = tail(forward_ad.make_dual(x, torch.ones_like(x)), residual)
            tangents.append(forward_ad.unpack_dual(dual).tangent)
    torch.testing.assert_close(*tangents)


@pytest.mark.parametrize(
    "kind", [batchnorm.BatchNorm1d, batchnorm.BatchNorm2d, batchnorm.BatchNorm3d]
)
def test_the_engine_s_layers_keep_the_contract(kind):
    """What ``models`` writes down and what ``nn`` offers: the same names, orders and defaults."""
    assert isinstance(kind(3), FusingNorm)
    assert not isinstance(kind.__mro__[2](3), FusingNorm)  # torch's own
    for name in ("fuses", "forward"):
        told, kept = (inspect.signature(getattr(owner, name)) for owner in (FusingNorm, kind))
        assert list(told.parameters.values()) == list(kept.parameters.values())
        assert told.return_annotation == kept.return_annotation


@pytest.mark.parametrize("watched", ["norm", "relu"])
def test_hooks_see_what_they_would_see(watched):
    plain, ours = (tail.eval() for tail in pair(3))
    x, residual = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    seen = []
    for tail in (plain, ours):
        module = getattr(tail, watched)
        module.register_forward_hook(lambda m, inputs, y: seen.append((inputs[0], y)))
        with torch.no_grad():
            tail(x, residual)
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert not ours.norm.fuses(ours.relu)


def test_another_activation_is_not_a_relu():
    class Own(nn.ReLU):
        def forward(self, x):
            return x + 1.0

    _, ours = pair(3)
    assert not ours.norm.fuses(Own())
    assert not ours.norm.fuses(nn.GELU())


def test_threads_give_the_same_bits():
    x, residual, gradient = torch.randn(3, 9, 40, 12, 12)
    before, found = torch.get_num_threads(), []
    tail = pair(40, torch.float32)[1]
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        twin = copy.deepcopy(tail)
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
    tail = pair(3, torch.float32)[1]
    other = copy.deepcopy(tail)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    x, residual, gradient = torch.randn(3, 4, 3, 5, 5)
    found = []
    for run, module in ((tail, tail), (compiled, other)):
        leaf, added = x.clone().requires_grad_(), residual.clone().requires_grad_()
        y = run(leaf, added)
        y.backward(gradient)
        grads = [leaf.grad, added.grad, *(p.grad for p in module.parameters())]
        found.append([y.detach(), *grads, *module.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(x, residual), tail.eval()(x, residual))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "wide_resnet"])
def test_a_converted_network_computes_what_the_masked_one_does(name, monkeypatch):
    options = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
    net = build_model(name, input_shape=(3, 8, 8), output_size=4, **options).double()
    twins = [gs.to_bayesian(net, 0.9, backend=backend) for backend in ("native", "masked")]
    twins[1].load_state_dict(twins[0].state_dict())
    calls = []
    forward = NativeBatchNorm.forward

    def counted(self, x, residual=None, *, relu=False):
        calls.append(relu)
        return forward(self, x, residual, relu=relu)

    monkeypatch.setattr(NativeBatchNorm, "forward", counted)
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    for train in (True, False):
        found = []
        for twin in twins:
            torch.manual_seed(1)
            with torch.no_grad():
                found.append(twin.train(train)(x))
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    # All but the norms of projections are followed by a ReLU.
    projections = sum(n.endswith("shortcut.1") for n, _ in net.named_modules())
    assert calls.count(False) == 2 * projections
    assert calls.count(True) > 10
