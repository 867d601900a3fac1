"""Every registered operator with every argument wrong in turn: an exception, never a crash.

In a process of its own, since what is tested ends processes.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import GossamerError, InvalidData
from gossamer.nn import sparse_layers
from gossamer.ops import library

pytestmark = pytest.mark.skipif(not library.is_available(), reason="needs the native engine")

OPERATORS = r"""
import sys
import torch
from torch import Tensor, nn
import gossamer as gs
from gossamer.nn import sparse_layers
from gossamer.ops.growth import Growth
from gossamer.ops.native.geometry import encode
from gossamer.ops.native.orders import orders_of, positions_of

torch.manual_seed(0)


def arguments(layer, shape):
    layout, pattern = layer.layout, layer.pattern
    indices, derived, spec = positions_of(pattern), orders_of(pattern), encode(layout)
    nnz = indices.numel()
    x = torch.randn(shape)
    mean, variance = torch.randn(nnz), torch.rand(nnz)
    bias, seed = torch.randn(layout.fan_out), torch.tensor(3)
    ops = torch.ops.gossamer
    y = ops.native_product(x, mean, bias, indices, derived, [], spec)
    slope = ops.native_local(x, mean, variance, bias, seed, True, indices, derived, [], spec)[1]
    growth = Growth.empty(layer.support, 5, torch.device("cpu"), keep_dense=False)
    gradient, weight = torch.randn_like(y), torch.randn(layout.shape)
    return {
        "native_product": [x, mean, bias, indices, derived, [], spec],
        "native_local": [x, mean, variance, bias, seed, True, indices, derived, [], spec],
        "native_moments": [x, mean, variance, bias, indices, derived, [], spec],
        "native_backward": [
            gradient, None, slope, x, mean, variance, indices, derived, spec, True
        ],
        "catch_streamed": [x, gradient, mean, indices, *growth.buffers, spec],
        "catch_scores": [weight, indices, *growth.buffers],
        "probe": [weight, indices, *growth.buffers],
        "variance": [mean],
        "variance_backward": [mean, variance],
        "kl": [mean, mean.clone(), 1.0, True],
        "batchnorm": [torch.randn(4, 3, 5), torch.ones(3), torch.ones(3), None, 1e-5, True],
        "batchnorm_backward": [
            torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.ones(3), torch.ones(3), torch.ones(3),
            torch.randn(4, 3, 5), True, True,
        ],
        "normal": [seed, torch.arange(5), False],
        "normal_like": [seed, torch.zeros(5)],
    }


def wrong(value):
    # Other versions of an argument, none of which its operator may take.
    if isinstance(value, Tensor):
        if value.numel() > 0 and value.dim() > 0:
            yield "empty", value[:0]
            yield "short", value.flatten()[:1]
            yield "long", torch.cat([value.flatten(), value.flatten()])
        yield "more axes", value[None, None]
        yield "other numbers", value.to(torch.int16 if value.is_floating_point() else torch.float32)
        yield "half", value.to(torch.float16)
        yield "sparse", value.to_sparse() if value.dim() else value.expand(1)
        if value.dtype == torch.int32 and value.numel():
            yield "out of range", value + 2**30
            yield "negative", value - 2**30
            yield "backwards", value.flip(0)
    elif isinstance(value, list) and value and isinstance(value[0], Tensor):
        yield "none", []
        for place, tensor in enumerate(value):
            if tensor.numel():
                yield f"{place} is empty", [*value[:place], tensor[:0], *value[place + 1 :]]
                yield f"{place} is far", [*value[:place], tensor + 2**20, *value[place + 1 :]]
                other = tensor.to(torch.int64 if tensor.dtype == torch.int32 else torch.int32)
                yield f"{place} is of another type", [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, list) and value:
        yield "none", []
        yield "cut", value[:-1]
        for place in range(len(value)):
            for bad in (-1, 2**40) if place not in (6, 7) else (2**40,):
                yield f"{place} is {bad}", [*value[:place], bad, *value[place + 1 :]]


def may_be(operator, place, kind, given, value):
    # What is not wrong after all.
    if operator in ("native_product", "native_local", "native_moments") and place == 0:
        if kind == "empty":
            return True  # no rows
    if operator in ("probe", "catch_scores") and place == 0 and kind == "long":
        return True  # a larger weight with the same positions
    if operator == "probe" and place == 0 and kind in ("other numbers", "half", "more axes"):
        return True  # an identity, of any weight of that size
    if operator in ("variance", "normal_like") and kind in ("empty", "short", "long", "more axes"):
        return True  # of any shape
    if operator == "normal_like" and place == 1:
        return True
    if operator == "normal" and place == 1 and kind in ("empty", "short", "long", "more axes"):
        return True
    if operator == "catch_scores" and place == 0 and kind in ("half", "other numbers", "more axes"):
        return True
    if operator in ("catch_scores", "probe", "catch_streamed") and kind == "half":
        return True  # scores in another precision
    if operator in ("catch_scores", "probe", "catch_streamed") and kind in ("backwards",):
        return True
    return False


layers = {
    "linear": (gs.to_bayesian(nn.Linear(8, 6), 0.5, backend="native"), (4, 8)),
    "conv": (gs.to_bayesian(nn.Conv2d(4, 6, 3, stride=2, padding=1), 0.5, backend="native"),
             (2, 4, 7, 7)),
    "transposed": (gs.to_bayesian(nn.ConvTranspose1d(4, 6, 3), 0.5, backend="native"), (2, 4, 7)),
}
layer, shape = layers[sys.argv[1]]
tried = 0
for operator, given in arguments(layer, shape).items():
    run = getattr(torch.ops.gossamer, operator)
    run(*given)
    for place, value in enumerate(given):
        for kind, bad in wrong(value):
            if may_be(operator, place, kind, given, value):
                continue
            print(operator, place, kind, flush=True)
            copies = [v.clone() if isinstance(v, Tensor) else v for v in given]
            copies[place] = bad
            try:
                run(*copies)
            except Exception:
                tried += 1
                continue
            raise SystemExit(f"{operator}, argument {place}, {kind}: was taken")
print("tried", tried)
"""


@pytest.mark.parametrize("kind", ["linear", "conv", "transposed"])
def test_every_argument_wrong_in_turn(kind: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OPERATORS, kind],
        capture_output=True,
        text=True,
        check=False,
    )
    told = found.stdout.splitlines()
    assert found.returncode == 0, f"{told[-1:]}: {found.stderr[-600:]}"
    assert int(told[-1].split()[1]) > 250


WRAPPED = r"""
import sys
import torch
from torch import nn
import gossamer as gs

net = gs.to_bayesian(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)), 0.5, backend="native")
x = torch.randn(4, 16)
if sys.argv[1] == "fake":
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert net(mode.from_tensor(x)).shape == (4, 8)
        assert gs.kl_divergence(net).shape == ()
elif sys.argv[1] == "functional":
    try:
        net.eval()(torch._to_functional_tensor(x))
    except Exception:
        pass
elif sys.argv[1] == "recorded":
    from torch.fx.experimental.proxy_tensor import make_fx

    net.eval()
    graph = make_fx(lambda a: net[0](a))(x)
    assert "native_product" in graph.code
    assert torch.equal(graph(2 * x), net[0](2 * x))
elif sys.argv[1] == "subclass":
    class Mine(torch.Tensor):
        pass

    net.eval()
    # In float64: sums are of another order, and where they cancel float32 has no digits left.
    net, x = net.double(), x.double()
    assert torch.allclose(net(x.as_subclass(Mine)), net(x))
elif sys.argv[1] == "distributed":
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    before = gs.kl_divergence(net)
    distribute_module(net, init_device_mesh("cpu", (1,)))
    assert torch.allclose(gs.kl_divergence(net).full_tensor(), before)
    distributed.destroy_process_group()
print("whole")
"""


@pytest.mark.parametrize("kind", ["fake", "functional", "recorded", "subclass", "distributed"])
def test_tensors_without_memory_reach_no_pointer(kind: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRAPPED, kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "whole\n"), found.stderr[-600:]


@pytest.mark.parametrize("name", ["weight_mean", "weight_raw_std"])
@pytest.mark.parametrize("use", ["train", "eval", "kl", "predict", "moments"])
@pytest.mark.parametrize("length", [1, 500])
def test_a_parameter_of_another_length_is_a_sentence(name: str, use: str, length: int) -> None:
    bnn = gs.to_bayesian(nn.Sequential(nn.Linear(16, 8)), 0.5, backend="native")
    getattr(bnn[0], name).data = torch.zeros(length)
    x = torch.randn(4, 16)
    calls: dict[str, Any] = {
        "train": lambda: bnn.train()(x),
        "eval": lambda: bnn.eval()(x),
        "kl": lambda: gs.kl_divergence(bnn),
        "predict": lambda: gs.predict(bnn, x),
        "moments": lambda: gs.predict_moments(bnn, x),
    }
    if use == "eval" and name == "weight_raw_std":
        assert calls[use]().shape == (4, 8), "means are all that is used"
        return
    with pytest.raises(
        InvalidData, match=r"of the weights = .*(64 kept weights|shape of the means)"
    ):
        calls[use]()


def test_positions_behind_the_layers_back() -> None:
    bnn = gs.to_sparse(nn.Sequential(nn.Linear(16, 8)), 0.5, backend="native")
    layer = sparse_layers(bnn)["0"]
    assert layer.indices is not None
    layer.indices.data = layer.indices.data[:5]
    with pytest.raises(GossamerError, match="rebuild the layer's pattern"):
        bnn(torch.randn(4, 16))


class TestEntryPoints:
    """The C functions by themselves: null pointers and shapes that no layer has."""

    def test_null(self) -> None:
        found = library.loaded()
        assert found.gs_forward(None, None, 0, None, 1) == 3
        assert found.gs_backward(None, None, 0, None, 1) == 3
        assert found.gs_samples(None, None, 0, None, 1) == 3
        assert found.gs_pattern(None, 0, 0, None, None) == 3
        assert found.gs_normal(0, 0, 0, 5, None, 1) == 3
        assert found.gs_normal_at(0, 0, None, 5, None, 1) == 3
        assert found.gs_posterior(0, None, None, 1) == 3
        assert found.gs_second_moment(0, 5, None, None, ctypes.c_double(), 1) == 3
        assert found.gs_batchnorm(0, None, 1) == 3
        assert found.gs_natural(0, None, 1) == 3
        assert found.gs_use_isa(None) == 3

    def test_empty_structures(self) -> None:
        found, geometry, view = library.loaded(), library.Geometry(), library.PatternView()
        assert found.gs_forward(geometry, view, 0, library.Forward(), 1) == 3
        assert found.gs_backward(geometry, view, 0, library.Backward(), 1) == 3
        assert found.gs_samples(geometry, view, 0, library.Samples(), 1) == 3
        assert found.gs_pattern(geometry, 0, 0, None, library.PatternOut()) == 3
        assert found.gs_posterior(0, library.Posterior(count=3), ctypes.c_double(), 1) == 3
        assert found.gs_posterior(0, library.Posterior(count=-1), ctypes.c_double(), 1) == 3
        assert found.gs_batchnorm(0, library.BatchNorm(batch=1, channels=1, size=1), 1) == 3
        assert found.gs_natural(0, library.Natural(count=3), 1) == 3
        assert found.gs_normal(7, 0, 0, 0, None, 1) == 3
        assert found.gs_normal(0, 0, 0, -1, None, 1) == 3

    @pytest.mark.parametrize(
        "field", ["batch", "channels", "outputs", "groups", "kernel", "stride"]
    )
    @pytest.mark.parametrize("value", [-1, 0, 2**31, 2**62])
    def test_absurd_shapes(self, field: str, value: int) -> None:
        layer = gs.to_sparse(nn.Conv2d(4, 4, 3), 0.5, backend="native")
        x, y = torch.randn(1, 4, 5, 5), torch.empty(1, 4, 3, 3)
        from gossamer.ops.native.geometry import geometry
        from gossamer.ops.native.orders import orders_of, positions_of, view

        right = geometry(layer.layout, tuple(x.shape))
        bad = type(right).from_buffer_copy(right)
        if field in ("kernel", "stride"):
            getattr(bad, field)[2] = value
        else:
            setattr(bad, field, value)
        pattern = view(positions_of(layer.pattern), tuple(orders_of(layer.pattern)), layer.layout)
        mean = layer.weight_values.data
        fields = library.Forward(
            x=x.data_ptr(),
            x_batch_stride=100,
            x_channel_stride=25,
            mean=mean.data_ptr(),
            y=y.data_ptr(),
        )
        assert library.loaded().gs_forward(right, pattern, 0, fields, 1) == 0
        assert library.loaded().gs_forward(bad, pattern, 0, fields, 1) == 3
