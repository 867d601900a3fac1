"""Rows of a sparse table: those that are asked for give what the whole table gives, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gossamer.core.support import Support
from gossamer.ops import Layout, Pattern, get_backend
from gossamer.ops.torch.lookup import rows_asked_for

ROWS, COLUMNS = 40, 5
LAYOUT = Layout("lookup", (ROWS, COLUMNS))


def table(nnz: int = 60) -> tuple[Support, torch.Tensor, torch.Tensor]:
    """A support, its values, and the dense table, some of whose rows are empty."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.randperm(ROWS * COLUMNS, generator=generator)
    positions = positions[(positions // COLUMNS) % 4 != 1][:nnz]
    support = Support.from_positions(positions, LAYOUT.shape)
    values = torch.randn(support.nnz, generator=generator, dtype=torch.float64)
    dense = torch.zeros(ROWS * COLUMNS, dtype=torch.float64)
    dense[support.positions()] = values
    return support, values, dense.view(ROWS, COLUMNS)


INPUTS = {
    "one": torch.tensor(7),
    "row": torch.tensor([3, 3, 0, 39, 1]),
    "batch": torch.tensor([[0, 5, 5], [38, 1, 39]]),
    "short": torch.tensor([[2, 2], [1, 0]], dtype=torch.int32),
    "many": torch.arange(ROWS).repeat(3),
}


@pytest.mark.parametrize("engine", ["masked", "native"])
@pytest.mark.parametrize("name", INPUTS)
def test_values_and_gradients(name, engine):
    x, (support, values, dense) = INPUTS[name], table()
    backend = get_backend(engine)
    pattern = Pattern(support.indices, backend.prepare(support.indices, LAYOUT))
    mine, theirs = values.clone().requires_grad_(), dense.clone().requires_grad_()
    y = backend.product(x, mine, pattern, LAYOUT, None, None)
    wanted = F.embedding(x, theirs)
    assert torch.equal(y, wanted)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    y.backward(upstream)
    wanted.backward(upstream)
    assert torch.equal(mine.grad, theirs.grad.flatten()[support.positions()])
    centre, spread = backend.moments(x, values, values.square(), pattern, LAYOUT, None)
    assert torch.equal(centre, wanted)
    assert torch.equal(spread, wanted.square())


def test_only_the_rows_that_are_asked_for_are_made():
    support, _, _ = table()
    asked = rows_asked_for(torch.tensor([[9, 9], [3, 38]]), support.indices, LAYOUT)
    assert asked is not None
    assert asked.layout.shape == (3, COLUMNS)
    kept = support.positions()
    inside = torch.isin(kept // COLUMNS, torch.tensor([3, 9, 38]))
    assert torch.equal(asked.slots, inside.nonzero().flatten())
    assert asked.x.tolist() == [[1, 1], [0, 2]]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
def test_the_whole_table_serves_where_rows_cannot_be_known():
    support, values, dense = table()
    few = torch.tensor([1, 2])
    assert rows_asked_for(few, None, LAYOUT) is None
    assert rows_asked_for(torch.arange(ROWS), support.indices, LAYOUT) is None
    assert rows_asked_for(few[:0], support.indices, LAYOUT) is None
    backend, pattern = get_backend("masked"), Pattern(support.indices)

    def rows(given: torch.Tensor) -> torch.Tensor:
        return backend.product(few, given, pattern, LAYOUT, None, None)

    stacked = torch.stack([values, 2 * values])
    found = torch.func.vmap(rows)(stacked)
    assert torch.equal(found, torch.stack([dense[few], 2 * dense[few]]))
    traced = torch.jit.trace(rows, (values,))
    assert torch.equal(traced(3 * values), 3 * dense[few])


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_a_number_without_a_row_is_torchs_error(wrong):
    support, values, _ = table()
    with pytest.raises(IndexError, match="out of range"):
        get_backend("masked").product(
            torch.tensor([0, wrong]), values, Pattern(support.indices), LAYOUT, None, None
        )


def test_second_derivatives():
    support, values, _ = table()
    x, values = torch.tensor([3, 3, 2]), values.requires_grad_()

    def loss(given: torch.Tensor) -> torch.Tensor:
        return (
            get_backend("masked")
            .product(x, given, Pattern(support.indices), LAYOUT, None, None)
            .pow(3)
            .sum()
        )

    assert torch.autograd.gradgradcheck(loss, (values,))
