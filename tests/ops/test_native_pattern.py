"""What the native engine derives from the kept positions: always up to date, and small."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import needs_native
from cases.native import (
    LAYOUTS,
    converted,
    every_layout,
    no_memory_by_chance,  # noqa: F401 (autouse)
    problem,
    step,
)
from gossamer.core.support import Support
from gossamer.nn import sparse_layers
from gossamer.nn.base import DeterministicLayer

pytestmark = needs_native


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
        DeterministicLayer(p.layout, kept, p.mean.clone(), None, backend="native")
        for kept in (p.support, other)
    )
    before = layer(p.x)
    layer.indices.copy_(other.indices)
    one, two = step(layer, layer, p.x, 0), step(fresh, fresh, p.x, 0)
    assert not torch.equal(one[0], before)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


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
