"""The native engine where it could go wrong: memory layouts, sizes, blocks, threads, processors.

The zoo compares every layer with the slow truth. Here the masked backend is the reference, or a sum
written out. Tolerances are relative to a tensor's largest value: 1e-10 in float64, where rounding
stays below 1e-13; 5e-5 in float32, whose sums of some thousand products round to 1e-6 to 1e-5.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.engines import ISAS, needs_native, using
from gossamer.core.support import Support
from gossamer.errors import GossamerError
from gossamer.nn import sparse_layers
from gossamer.nn.base import DeterministicLayer
from gossamer.ops import BACKENDS, Layout, Pattern, native_ops
from gossamer.ops.geometry import encode

pytestmark = needs_native
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
KINDS = ("product", "local", "moments")
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def _no_memory_by_chance():
    """torch then fills fresh memory with NaN: what the engine forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def conv(shape, stride=1, padding=0, dilation=1, kind="conv", output_padding=0, groups=1) -> Layout:
    n = len(shape) - 2
    extra = (output_padding,) * n if kind == "conv_transpose" else ()
    pads = ((padding, padding),) * n
    return Layout(kind, shape, (stride,) * n, pads, (dilation,) * n, extra, groups)


LAYOUTS = {
    "linear": (Layout("linear", (12, 10)), (9, 10)),
    "flat": (conv((6, 4, 3, 3), padding=1), (5, 4, 9, 8)),
    "strided": (conv((6, 2, 3, 3), stride=2, padding=1, groups=2), (5, 4, 9, 8)),
    "line": (conv((5, 4, 3), padding=2, dilation=2), (5, 4, 11)),
    "volume": (conv((3, 2, 2, 2, 2), padding=1), (3, 2, 4, 3, 5)),
    "transposed": (conv((4, 3, 3, 3), 2, 1, 1, "conv_transpose", 1, 2), (5, 4, 5, 4)),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)


@dataclass
class Problem:
    """One call and the gradients that come back."""

    layout: Layout
    support: Support
    x: Tensor
    mean: Tensor
    variance: Tensor
    bias: Tensor
    gradients: tuple[Tensor, Tensor] | None = None

    def solve(self, engine: str, kind: str) -> list[Tensor]:
        """Outputs, then gradients of x, mean, variance if any, and bias."""
        indices = self.support.indices
        pattern = Pattern(indices, BACKENDS[engine].prepare(indices, self.layout))
        x, mean, variance, bias = (
            t.detach().requires_grad_() for t in (self.x, self.mean, self.variance, self.bias)
        )
        run, leaves = getattr(BACKENDS[engine], kind), [x, mean, variance, bias]
        if kind == "product":
            outputs = (run(x, mean, pattern, self.layout, bias, None),)
            del leaves[2]
        else:
            rest = (torch.tensor(7), None) if kind == "local" else ()
            outputs = run(x, mean, variance, pattern, self.layout, bias, *rest)
            outputs = outputs if kind == "moments" else (outputs,)
        ups = self.gradients
        if ups is None:
            generator = torch.Generator().manual_seed(3)
            ups = torch.randn(2, *outputs[0].shape, generator=generator, dtype=x.dtype)
        return [*outputs, *torch.autograd.grad(outputs, leaves, tuple(ups)[: len(outputs)])]


def problem(layout: Layout, shape, dtype, density=0.4, support=None) -> Problem:
    generator = torch.Generator().manual_seed(1)
    nnz = max(1, min(layout.numel - 1, int(density * layout.numel)))
    support = support or Support.random(layout.shape, nnz, generator)

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=dtype)

    # Variances away from zero: the square root there would magnify rounding.
    variance = draw(support.nnz).square() + 0.1
    return Problem(layout, support, draw(*shape), draw(support.nnz), variance, draw(layout.fan_out))


def assert_near(got: list[Tensor], wanted: list[Tensor], tolerance: float, what: str = "") -> None:
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        atol = tolerance * max(1.0, float(b.detach().norm(float("inf"))) if b.numel() else 0.0)
        torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda m, i=i: f"{what} {i}: {m}")


def assert_same_as_masked(p: Problem, kinds=KINDS) -> None:
    for kind in kinds:
        wanted = p.solve("masked", kind)
        assert_near(p.solve("native", kind), wanted, TOLERANCE[p.x.dtype], kind)


def in_memory(t: Tensor, how: str) -> Tensor:
    """Values like those of ``t`` at other places in memory."""
    if how == "expanded":
        return t[:1].expand(t.shape)
    if how == "one value":
        return t.flatten()[:1].view((1,) * t.dim()).expand(t.shape)
    if how == "sliced":
        return torch.stack([t, t + 1], -1).repeat_interleave(2, 0)[::2, ..., 0]
    if how == "channels last":
        return t.movedim(1, -1).contiguous().movedim(-1, 1)
    return t.transpose(0, -1).contiguous().transpose(0, -1)


@pytest.mark.parametrize("how", ["expanded", "one value", "sliced", "channels last", "transposed"])
@every_dtype
@every_layout
def test_memory_layouts(name, dtype, how):
    """Inputs and upstream gradients with any strides, 0 included."""
    p = problem(*LAYOUTS[name], dtype)
    y = p.solve("masked", "product")[0]
    p.x = in_memory(p.x, how)
    p.gradients = tuple(in_memory(torch.randn(y.shape, dtype=dtype), how) for _ in range(2))
    assert how == "channels last" or not p.x.is_contiguous()
    assert_same_as_masked(p)


@pytest.mark.parametrize("width", [1, 4, 7, 33])
@pytest.mark.parametrize("batch", [1, 7, 8, 33])
@every_dtype
def test_batches_and_widths(batch, width, dtype):
    """Below, at and above the numbers of lanes; as features and as pixels."""
    assert_same_as_masked(problem(Layout("linear", (width + 1, width)), (batch, width), dtype))
    assert_same_as_masked(problem(conv((3, 2, 3), padding=1), (batch, 2, width), dtype))
    assert_same_as_masked(problem(conv((3, 2, 3), 2, 1), (batch, 2, width), dtype))


@every_dtype
@every_layout
def test_empty_rows_and_columns(name, dtype):
    """Outputs and inputs without a kept weight, and a single kept weight in all."""
    layout, shape = LAYOUTS[name]
    weight = torch.rand(layout.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    weight[0] = weight[-1] = weight[:, 0] = False
    for kept in (weight.flatten().nonzero().squeeze(1), torch.tensor([layout.numel // 2])):
        support = Support.from_positions(kept, layout.shape)
        p = problem(layout, shape, dtype, support=support)
        assert_same_as_masked(p, ("product", "moments"))
        # Where nothing is kept y is the bias; masked convolutions may round the 0 to 1e-17.
        got, spread = p.solve("native", "local")[0], p.solve("native", "moments")[1]
        dead = spread == 0
        bias = p.bias.view(-1, *[1] * layout.dims).expand_as(got)
        assert dead.any()
        assert torch.equal(got[dead], bias[dead])
        assert_same_as_masked(replace(p, gradients=((~dead).to(dtype), (~dead).to(dtype))))


@every_dtype
@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        pytest.param(conv((5, 4, 1, 1), stride=2), (3, 4, 1, 1), id="one-pixel-strided"),
        pytest.param(conv((5, 4, 3, 3), padding=1), (3, 4, 1, 1), id="one-pixel-padded"),
        pytest.param(
            conv((2, 3, 2, 2, 2), 1, 1, 3, "conv_transpose", 2),
            (2, 2, 3, 3, 3),
            id="output-padding",
        ),
        pytest.param(
            replace(conv((3, 4, 2)), padding=((1, -16),)), (3, 4, 32), id="cropped-behind"
        ),
        pytest.param(conv((3, 2, 2), padding=3), (3, 2, 6), id="padded-beyond-the-kernel"),
    ],
)
def test_corners_of_geometry(layout, shape, dtype):
    assert_same_as_masked(problem(layout, shape, dtype))


@every_dtype
def test_a_filter_with_more_than_32767_weights(dtype):
    layout = conv((2, 4096, 3, 3), padding=1)
    p = problem(layout, (2, 4096, 3, 4), dtype, density=0.95)
    assert int((p.support.positions() < layout.inputs_per_output).sum()) > 32_767
    assert_same_as_masked(p)


def test_five_million_weights():
    """One weight of each pair of columns is kept; the truth is the dense gradient in float64."""
    rows, columns, generator = 2500, 4000, torch.Generator().manual_seed(4)
    nnz = rows * columns // 2
    kept = 2 * torch.arange(nnz) + torch.randint(2, (nnz,), generator=generator)
    layout = Layout("linear", (rows, columns))
    p = problem(layout, (4, columns), torch.float32, support=Support(layout.shape, kept.int()))
    g = torch.randn(4, rows, generator=generator)
    y, dx, dmean, dbias = replace(p, gradients=(g, g)).solve("native", "product")
    assert dmean.numel() == 5_000_000
    weight = torch.zeros(rows * columns, dtype=torch.float64)
    weight[kept] = p.mean.double()
    weight = weight.view(rows, columns)
    dense = g.double().t() @ p.x.double()
    wanted = [p.x.double() @ weight.t() + p.bias, g.double() @ weight, dense.flatten()[kept]]
    got = [t.double() for t in (y, dx, dmean, dbias)]
    assert_near(got, [*wanted, g.double().sum(0)], TOLERANCE[torch.float32])


@every_dtype
def test_indices_beyond_2_to_the_24(dtype):
    """float32 counts to 2^24: an index that went through one would be off by one."""
    layout, generator = Layout("linear", (8192, 4096)), torch.Generator().manual_seed(5)
    spread = torch.randint(layout.numel, (300,), generator=generator)
    edges = torch.tensor([2**24 - 1, 2**24 + 1, 2**25 - 1, 2**24 + 4097])
    kept = torch.cat([spread, edges]).unique()
    p = problem(layout, (3, 4096), dtype, support=Support.from_positions(kept, layout.shape))
    row, column = kept // 4096, kept % 4096
    g = torch.randn(3, 8192, generator=generator, dtype=dtype)
    y, dx, dmean, _ = replace(p, gradients=(g, g)).solve("native", "product")
    wanted = [
        p.bias.repeat(3, 1).index_add(1, row, p.x[:, column] * p.mean),
        torch.zeros_like(p.x).index_add(1, column, g[:, row] * p.mean),
        (p.x[:, column] * g[:, row]).sum(0),
    ]
    assert_near([y, dx, dmean], wanted, TOLERANCE[dtype])


@pytest.fixture
def usual_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


WIDE = {
    **LAYOUTS,
    "linear-tiles": (Layout("linear", (70, 50)), (1100, 50)),
    "linear-blocks": (Layout("linear", (130, 900)), (130, 900)),
    "flat-tiles": (conv((24, 16, 3, 3), padding=1), (20, 16, 14, 14)),
    "strided-tiles": (conv((10, 8, 3, 3), 2, 1), (150, 8, 9, 9)),
}


@pytest.mark.usefixtures("usual_threads")
@every_dtype
@pytest.mark.parametrize("name", WIDE)
def test_threads_give_the_same_bits(name, dtype):
    p = problem(*WIDE[name], dtype, density=0.1)
    for kind in KINDS:
        found = []
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            found.append(p.solve("native", kind))
        for other in found[1:]:
            # All but the gradient of the bias, which is torch's own sum.
            same = [torch.equal(a, b) for a, b in zip(found[0][:-1], other[:-1], strict=True)]
            assert all(same), (kind, same)


@pytest.mark.parametrize("isa", ISAS)
@every_dtype
@pytest.mark.parametrize("name", WIDE)
def test_instruction_sets_agree(name, dtype, isa):
    p = problem(*WIDE[name], dtype, density=0.1)
    for kind in KINDS:
        with using("generic"):
            wanted = p.solve("native", kind)
        with using(isa):
            assert_near(p.solve("native", kind), wanted, TOLERANCE[dtype], f"{kind} {isa}")


def operator_arguments(name: str, dtype=torch.float64) -> dict[str, tuple]:
    p = problem(*LAYOUTS[name], dtype)
    x, mean, variance, bias = (t.requires_grad_() for t in (p.x, p.mean, p.variance, p.bias))
    derived, spec = list(BACKENDS["native"].prepare(p.support.indices, p.layout)), encode(p.layout)
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


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(150, 20), nn.Linear(20, 3)
    )


def converted(seed: int) -> nn.Module:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(seed)
    bnn = gs.to_bayesian(
        net(), 0.7, sparsity_distribution="uniform", backend="native", generator=generator
    )
    return bnn.train()


def step(model: nn.Module, plain: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    plain.zero_grad()
    torch.manual_seed(seed)
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in plain.parameters())]


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


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_brings_its_support(assign):
    """Into a model on another support: nothing derived from the old one may stay."""
    bnn, other, x = converted(1), converted(2), torch.randn(4, 2, 5, 5)
    for layer, twin in zip(sparse_layers(bnn).values(), sparse_layers(other).values(), strict=True):
        assert not layer.support.same_as(twin.support)
        assert not any("pattern" in name for name in layer.state_dict())
    other.load_state_dict(bnn.state_dict(), assign=assign)
    one, two = step(bnn, bnn, x, 4), step(other, other, x, 4)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@every_layout
def test_a_change_of_the_indices_is_noticed(name):
    """In place, as a swap does it: outputs and gradients are those of a layer built on them."""
    p = problem(*LAYOUTS[name], torch.float64)
    other = Support.random(p.layout.shape, p.support.nnz, torch.Generator().manual_seed(9))
    layer, fresh = (
        DeterministicLayer(p.layout, kept, p.mean.clone(), None, engine="native")
        for kept in (p.support, other)
    )
    before = layer(p.x)
    layer.indices.copy_(other.indices)
    one, two = step(layer, layer, p.x, 0), step(fresh, fresh, p.x, 0)
    assert not torch.equal(one[0], before)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_without_gradients_no_slope_is_kept(monkeypatch):
    sizes = []
    plain = native_ops._forward

    def watched(*inputs):
        y, slope = plain(*inputs), inputs[5]
        sizes.append((y.numel(), 0 if slope is None else slope.numel()))
        return y

    monkeypatch.setattr(native_ops, "_forward", watched)
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
    library = native_ops.native.library()

    class Watched:
        def __getattr__(self, name):
            return getattr(library, name)

        def gs_backward(self, geometry, pattern, dtype, call, threads):
            assert call.variance is None or call.slope or call.gradient2
            return library.gs_backward(geometry, pattern, dtype, call, threads)

    monkeypatch.setattr(native_ops.native, "library", Watched)
    layer = gs.to_bayesian(nn.Linear(10, 12), 0.5, backend="native").train()
    layer.weight_mean.requires_grad_(False)
    layer.weight_raw_std.requires_grad_(False)
    layer(torch.randn(3, 10)).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((12,), 3.0))


@pytest.mark.parametrize("engine", ["masked", "native"])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(10, 12), (3, 9)),
        (nn.Linear(10, 12), (3, 11)),
        (nn.Conv2d(4, 3, 3), (2, 3, 6, 6)),
        (nn.Conv2d(4, 3, 3), (2, 5, 6, 6)),
        (nn.Conv2d(4, 3, 3), (2, 4, 2, 6)),  # smaller than the kernel
        (nn.Conv2d(4, 3, 3), (2, 2, 4, 6, 6)),
        (nn.ConvTranspose2d(4, 3, 3), (2, 5, 6, 6)),
    ],
)
def test_inputs_that_do_not_fit_are_refused(engine, module, shape):
    """As torch refuses them: the kernels would read what lies beyond."""
    layer = gs.to_bayesian(module, 0.5, backend=engine).eval()
    with pytest.raises((RuntimeError, GossamerError)):
        layer(torch.randn(shape))


@pytest.mark.parametrize("engine", ["masked", "native"])
def test_a_bias_of_another_dtype_is_refused(engine):
    layer = gs.to_bayesian(nn.Linear(10, 12), 0.5, backend=engine).eval()
    layer.bias.data = layer.bias.data.double()
    with pytest.raises((RuntimeError, GossamerError)):
        layer(torch.randn(3, 10))


def test_nothing_kept():
    """A pattern may be empty: the variance is 0 everywhere."""
    layout = Layout("linear", (12, 10))
    none = Support(layout.shape, torch.empty(0, dtype=torch.int32))
    assert_same_as_masked(problem(layout, (3, 10), torch.float64, support=none))


@pytest.mark.parametrize("leading", [(0,), (2, 0), ()])
def test_no_rows_and_a_single_one(leading):
    p = problem(Layout("linear", (12, 10)), (*leading, 10), torch.float64)
    assert_same_as_masked(p)


def test_index_bytes_per_weight():
    """The indices and their backward order; pointers, 8 bytes per row and column, are apart."""
    layer = gs.to_bayesian(nn.Linear(1024, 1024), 0.95, backend="native")
    buffers = {name: t.nbytes for name, t in layer.named_buffers()}
    pointers = buffers.pop("pattern_row_ptr") + buffers.pop("pattern_col_ptr")
    assert pointers <= 2 * 1025 * 8
    assert {name for name, size in buffers.items() if size} == {
        "indices",
        "pattern_col_rows",
        "pattern_col_perm",
    }
    assert sum(buffers.values()) <= 16 * layer.nnz


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_openmp_runtime():
    """In a process of its own: other packages of the tests bring runtimes along."""
    program = r"""
import re, torch, gossamer as gs
torch.set_num_threads(2)
layer = gs.to_bayesian(torch.nn.Linear(256, 256), 0.9, backend="native").train()
layer(torch.randn(64, 256)).sum().backward()
maps = open("/proc/self/maps").read()
print(*sorted(set(re.findall(r'\S*/lib(?:gomp|omp|iomp)[^/\s]*', maps))), sep="\n")
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert len(found.stdout.split()) == 1, found.stdout


@needs_native
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
