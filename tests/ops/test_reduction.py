"""Addition scores of a batch that several processes share: those of the joined batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import BACKENDS
from gossamer.core.scores import SCORES
from gossamer.core.support import Support
from gossamer.errors import UnknownName
from gossamer.ops import BACKENDS as TABLE
from gossamer.ops import Growth, Layout, Pattern
from gossamer.ops.native import streaming

CPU = torch.device("cpu")
LAYOUTS = {
    "linear": (Layout("linear", (40, 30)), (8, 30)),
    "conv": (Layout("conv", (12, 6, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)), (8, 6, 7, 6)),
    "grouped": (Layout("conv", (12, 4, 3), (1,), ((1, 1),), (1,), groups=3), (8, 12, 7)),
    "transposed": (Layout("conv_transpose", (8, 6, 3), (2,), ((1, 1),), (2,), (1,)), (8, 8, 7)),
}
every_case = pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine in BACKENDS for name in LAYOUTS]
)


class Writes:
    """The first of two processes: it writes down what it would send."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []

    def sum_(self, block: Tensor) -> Tensor:
        self.blocks.append(block.clone())
        return block


class Adds:
    """The second: to every block it adds what the first has sent."""

    def __init__(self, sent: list[Tensor]) -> None:
        self.sent = list(sent)

    def sum_(self, block: Tensor) -> Tensor:
        return block.add_(self.sent.pop(0))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(streaming, "BLOCK", 40)


def caught(engine: str, name: str, rows: slice, uses: int = 1, **options) -> tuple[Growth, Tensor]:
    """Buffers after a pass over some rows of a batch, and the gradient on the support."""
    layout, shape = LAYOUTS[name]
    generator = torch.Generator().manual_seed(5)
    support = Support.random(layout.shape, layout.numel // 4, generator)
    values = torch.randn(support.nnz, generator=generator, dtype=torch.float64).requires_grad_()
    pattern = Pattern(support.indices, TABLE[engine].prepare(support.indices, layout))
    growth = Growth.empty(support, 60, CPU, keep_dense=uses > 1, **options)
    total = torch.zeros((), dtype=torch.float64)
    for _ in range(uses):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        y = TABLE[engine].product(x[rows], values, pattern, layout, None, growth)
        whole = (shape[0], *y.shape[1:])
        up = torch.randn(whole, generator=generator, dtype=torch.float64)
        total = total + (y * up[rows]).sum()
    total.backward()
    return growth, values.grad


@every_case
@pytest.mark.parametrize("uses", [1, 2])
def test_two_halves_of_a_batch_score_as_the_whole(engine, name, uses):
    joined, _ = caught(engine, name, slice(None), uses)
    first = Writes()
    alone, _ = caught(engine, name, slice(0, 3), uses, reducer=first)
    second = Adds(first.blocks)
    shared, _ = caught(engine, name, slice(3, None), uses, reducer=second)
    assert not second.sent, "both processes send as many blocks"
    assert torch.equal(shared.positions, joined.positions)
    torch.testing.assert_close(shared.scores, joined.scores, rtol=1e-6, atol=0)
    torch.testing.assert_close(shared.own, joined.own, rtol=1e-5, atol=1e-6)
    assert not torch.equal(alone.positions, joined.positions), "half a batch ranks otherwise"


@every_case
@pytest.mark.parametrize("uses", [1, 2])
def test_a_process_alone_may_have_a_reducer(engine, name, uses):
    """The same bits as without one, and gradients that nobody changed."""
    plain, own = caught(engine, name, slice(None), uses)
    reduced, same = caught(engine, name, slice(None), uses, reducer=Writes())
    for a, b in zip(plain.buffers[:3], reduced.buffers[:3], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(own, same)


def test_the_sum_over_uses_stays_that_of_the_process():
    """What is summed over processes must not enter the sum over uses a second time."""
    first = Writes()
    caught("masked", "linear", slice(0, 3), 2, reducer=first)
    shared, _ = caught("masked", "linear", slice(3, None), 2, reducer=Adds(first.blocks))
    own, _ = caught("masked", "linear", slice(3, None), 2)
    assert torch.equal(shared.dense, own.dense)
    assert own.summed is own.dense


@every_case
def test_a_score_sees_every_gradient_with_its_position(engine, name, monkeypatch):
    """A score that prefers late positions, whatever the gradient there."""

    def late(gradient: Tensor, positions: range | Tensor) -> Tensor:
        assert len(positions) == gradient.numel()
        at = positions if isinstance(positions, Tensor) else torch.tensor(list(positions))
        return (at + 1).to(gradient.dtype)

    monkeypatch.setitem(SCORES, "late", late)
    growth, _ = caught(engine, name, slice(None), score="late")
    layout, _ = LAYOUTS[name]
    support = Support.random(
        layout.shape, layout.numel // 4, torch.Generator().manual_seed(5)
    ).positions()
    free = sorted(set(range(layout.numel)) - set(support.tolist()), reverse=True)
    assert growth.positions.tolist() == free[:60]
    assert growth.own.tolist() == [place + 1 for place in support.tolist()]


def test_an_unknown_score_is_refused():
    with pytest.raises(UnknownName, match="score = newest"):
        Growth.empty(Support.full((2, 2)), 1, CPU, keep_dense=False, score="newest")


@pytest.mark.parametrize("engine", BACKENDS)
def test_a_compiled_layer_asks_its_reducer(engine):
    """Another reducer needs no other graph: its number is data."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = gs.to_bayesian(nn.Linear(16, 12), 0.5, backend=engine).eval()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, reducers = torch.randn(4, 16), (Writes(), Writes())
    for reducer in reducers:
        layer.growth = Growth.empty(layer.support, 5, CPU, keep_dense=False, reducer=reducer)
        compiled(x).square().sum().backward()
        assert layer.growth.is_filled
    assert [len(r.blocks) for r in reducers] == [len(reducers[0].blocks)] * 2
    assert reducers[0].blocks
    torch._dynamo.reset()
