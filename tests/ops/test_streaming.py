"""Growth without a dense gradient: the same choice as from the whole gradient, in little memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cases.engines import needs_native
from gossamer.core.support import Support
from gossamer.ops import BACKENDS, Growth, Layout, Pattern
from gossamer.ops.native import streaming
from gossamer.ops.native.geometry import encode

pytestmark = needs_native
CPU = torch.device("cpu")
MEGABYTE = 2**20

LAYOUTS = {
    "linear": (Layout("linear", (40, 30)), (9, 30)),
    "conv": (Layout("conv", (12, 6, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)), (4, 6, 7, 6)),
    "strided": (Layout("conv", (12, 6, 3), (2,), ((2, 2),), (2,)), (4, 6, 13)),
    "uneven": (Layout("conv", (12, 6, 4, 2), (1, 1), ((1, 2), (0, 1)), (1, 1)), (4, 6, 7, 6)),
    "volume": (Layout("conv", (8, 3, 2, 1, 3), (1,) * 3, ((1, 1),) * 3, (1,) * 3), (2, 3, 4, 3, 5)),
    "grouped": (
        Layout("conv", (12, 4, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups=3),
        (4, 12, 7, 6),
    ),
    "depthwise": (Layout("conv", (12, 1, 3), (1,), ((1, 1),), (1,), groups=6), (4, 6, 11)),
    "transposed": (
        Layout("conv_transpose", (8, 6, 3), (2,), ((1, 1),), (2,), (1,)),
        (4, 8, 7),
    ),
    "transposed-grouped": (
        Layout("conv_transpose", (8, 3, 3, 2), (2, 1), ((1, 1), (0, 0)), (1, 1), (1, 0), groups=2),
        (4, 8, 5, 4),
    ),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)


@pytest.fixture
def small_blocks(monkeypatch):
    """Few rows at a time; how many blocks there were."""
    blocks, plain = [], streaming.gradient_blocks

    def counted(*arguments):
        for start, block in plain(*arguments):
            blocks.append((start, block.numel()))
            yield start, block

    monkeypatch.setattr(streaming, "BLOCK", 40)
    monkeypatch.setattr(streaming, "gradient_blocks", counted)
    return blocks


def caught(
    engine: str, layout: Layout, support: Support, xs: list[Tensor], k: int, keep_dense=False
) -> tuple[Growth, Tensor]:
    """Buffers after a pass that uses the weight once per input, and the dense gradient of it."""
    generator = torch.Generator().manual_seed(6)
    values = torch.randn(support.nnz, generator=generator, dtype=xs[0].dtype).requires_grad_()
    pattern = Pattern(support.indices, BACKENDS[engine].prepare(support.indices, layout))
    growth = Growth.empty(support, k, CPU, keep_dense=keep_dense)
    dense = torch.zeros(layout.numel, dtype=xs[0].dtype)
    dense = dense.index_put((support.positions(),), values.detach()).view(layout.shape)
    dense.requires_grad_()
    total, plain = torch.zeros(()), torch.zeros(())
    for x in xs:
        y = BACKENDS[engine].product(x, values, pattern, layout, None, growth)
        up = torch.randn(y.shape, generator=generator, dtype=x.dtype)
        total = total + (y * up).sum()
        full = Pattern(None)
        mine = BACKENDS["masked"].product(x, dense.flatten(), full, layout, None, None)
        plain = plain + (mine * up).sum()
    total.backward()
    (whole,) = torch.autograd.grad(plain, dense)
    return growth, whole.flatten().abs()


def problem(name: str, dtype=torch.float64) -> tuple[Layout, Support, Tensor]:
    layout, shape = LAYOUTS[name]
    generator = torch.Generator().manual_seed(5)
    support = Support.random(layout.shape, layout.numel // 4, generator)
    return layout, support, torch.randn(shape, generator=generator, dtype=dtype)


def assert_best(growth: Growth, support: Support, whole: Tensor) -> None:
    """The k best off the support; two positions may change places within 1e-6 of each other."""
    k, size = growth.scores.numel(), whole.float()
    off = size.index_fill(0, support.positions(), -1.0)
    best = off.topk(k)
    chosen, wanted = set(growth.positions.tolist()), set(best.indices.tolist())
    assert len(chosen) == k
    assert not support.contains(growth.positions).any(), "never on the support"
    least = float(best.values[-1])
    for place in chosen ^ wanted:
        assert abs(float(off[place]) - least) <= 1e-6 * least, "only a tie with the last one"
    torch.testing.assert_close(growth.scores, best.values, rtol=1e-6, atol=0)
    torch.testing.assert_close(off[growth.positions], growth.scores, rtol=1e-6, atol=0)
    own = size[support.positions()]
    torch.testing.assert_close(growth.own, own, rtol=1e-6, atol=1e-6 * float(own.max()))


@pytest.mark.parametrize("k", [1, 7, 200])
@every_layout
def test_the_choice_is_that_of_the_dense_gradient(name, k, small_blocks):
    """In float64, so that the gradient's own rounding makes no ties."""
    layout, support, x = problem(name)
    k = min(k, layout.numel - support.nnz)
    growth, whole = caught("native", layout, support, [x], k)
    assert len(small_blocks) >= 4
    assert sum(size for _, size in small_blocks) == layout.numel, "every weight once"
    assert_best(growth, support, whole)
    reference, _ = caught("masked", layout, support, [x], k)
    assert torch.equal(growth.positions, reference.positions)
    torch.testing.assert_close(growth.scores, reference.scores, rtol=1e-6, atol=0)
    assert growth.is_filled
    assert growth.is_finite


@every_layout
def test_blocks_do_not_matter(name, monkeypatch):
    layout, support, x = problem(name)
    found = []
    for block in (1, 97, 2**19):
        monkeypatch.setattr(streaming, "BLOCK", block)
        found.append(caught("native", layout, support, [x], 50)[0])
    for other in found[1:]:
        assert torch.equal(found[0].positions, other.positions)
        torch.testing.assert_close(found[0].scores, other.scores, rtol=1e-6, atol=0)
        assert torch.equal(found[0].own, other.own)


@every_layout
def test_the_blocks_are_the_gradient(name, small_blocks):
    """Each block alone against autograd's weight gradient, starts included."""
    layout, _, x = problem(name)
    weight = torch.zeros(layout.shape, dtype=x.dtype, requires_grad=True)
    y = BACKENDS["masked"].product(x, weight.flatten(), Pattern(None), layout, None, None)
    up = torch.randn(y.shape, dtype=x.dtype)
    (wanted,) = torch.autograd.grad(y, weight, up)
    for start, block in streaming.gradient_blocks(x, up, layout):
        here = wanted.flatten()[start : start + block.numel()]
        torch.testing.assert_close(block, here, rtol=1e-10, atol=1e-10)


@every_layout
def test_several_uses_are_summed(name, small_blocks):
    layout, support, x = problem(name, torch.float32)
    xs = [x, x.flip(0), 2 * x]
    growth, whole = caught("native", layout, support, xs, 20, keep_dense=True)
    # float32 sums of three passes in another order: 1e-5 of the largest.
    atol = 1e-5 * float(whole.max())
    torch.testing.assert_close(growth.dense.abs(), whole, rtol=0, atol=atol)
    best = whole.index_fill(0, support.positions(), -1.0).topk(20).values
    torch.testing.assert_close(growth.scores, best, rtol=0, atol=atol)
    nowhere, _ = caught("native", layout, support, xs, 20)
    assert nowhere.needs_dense
    assert not nowhere.is_filled, "a part of the gradient is no score"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("column", [0, 29])
def test_non_finite_gradients_are_seen_in_any_block(bad, column, small_blocks):
    layout, support, x = problem("linear")
    x[2, column] = bad
    growth, _ = caught("native", layout, support, [x], 5)
    assert growth.is_filled
    assert not growth.is_finite


def test_all_that_is_free_and_ties(small_blocks):
    """k as large as it may be, and a gradient of equal sizes: every position once."""
    layout, support, x = problem("linear")
    free = layout.numel - support.nnz
    for given in (x, torch.ones_like(x), torch.zeros_like(x)):
        growth, _ = caught("native", layout, support, [given], free)
        kept = support.positions().tolist()
        assert sorted([*growth.positions.tolist(), *kept]) == list(range(layout.numel))


def test_operator_contract():
    layout, support, x = problem("linear", torch.float32)
    growth = Growth.empty(support, 4, CPU, keep_dense=False)
    inputs = (x, torch.randn(9, 40), torch.randn(support.nnz), support.indices)
    operator = torch.ops.gossamer.catch_streamed.default
    results = torch.library.opcheck(operator, (*inputs, *growth.buffers, encode(layout)))
    assert set(results.values()) == {"SUCCESS"}


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of torch's allocator that ``run`` held at once beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def test_the_measure_of_memory():
    """Two tensors and their sum, then less; what was there before does not count."""
    before = [torch.empty(MEGABYTE)]

    def run():
        kept = torch.empty(MEGABYTE // 4) + torch.empty(MEGABYTE // 4)
        before.clear()
        return kept + 1

    assert peak_bytes(run) == 3 * MEGABYTE


def test_peak_memory():
    """4096 x 4096 at 95 %, batch 128, a tenth of the weights to be swapped.

    The dense gradient would be 64 MB, its sizes as much again.
    """
    layout, batch = Layout("linear", (4096, 4096)), 128
    nnz = layout.numel // 20
    support = Support.random(layout.shape, nnz, torch.Generator().manual_seed(0))
    x, up = torch.randn(2, batch, 4096)
    values = torch.randn(nnz, requires_grad=True)
    pattern = Pattern(support.indices, BACKENDS["native"].prepare(support.indices, layout))
    growth = Growth.empty(support, nnz // 10, CPU, keep_dense=False)
    y = BACKENDS["native"].product(x.requires_grad_(), values, pattern, layout, None, growth)
    most = peak_bytes(lambda: y.backward(up))
    # The gradients of x and of the values stay; all else is temporary.
    temporary = most - x.grad.nbytes - values.grad.nbytes
    assert 2 * MEGABYTE <= temporary <= 16 * MEGABYTE, f"{temporary / MEGABYTE:.1f} MB"
    whole = (up.double().t() @ x.detach().double()).flatten().abs()
    off = whole.index_fill(0, support.positions(), -1.0)
    best = off.topk(growth.scores.numel())
    # float32 sums of 128 products: 1e-5 relative, and ties as wide at the end of the list.
    torch.testing.assert_close(growth.scores.double(), best.values, rtol=1e-5, atol=0)
    torch.testing.assert_close(off[growth.positions], growth.scores.double(), rtol=1e-5, atol=0)
    assert growth.positions.unique().numel() == growth.positions.numel()
