"""The native engine on inputs of any kind: strides in memory, batches, rows without weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cases.engines import needs_native
from cases.native import (
    LAYOUTS,
    assert_same_as_masked,
    conv,
    every_dtype,
    every_layout,
    no_memory_by_chance,  # noqa: F401 (autouse)
    problem,
)
from gossamer.core.support import Support
from gossamer.ops import Layout

pytestmark = needs_native


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


def test_nothing_kept():
    """A pattern may be empty: the variance is 0 everywhere."""
    layout = Layout("linear", (12, 10))
    none = Support(layout.shape, torch.empty(0, dtype=torch.int32))
    assert_same_as_masked(problem(layout, (3, 10), torch.float64, support=none))


@pytest.mark.parametrize("leading", [(0,), (2, 0), ()])
def test_no_rows_and_a_single_one(leading):
    p = problem(Layout("linear", (12, 10)), (*leading, 10), torch.float64)
    assert_same_as_masked(p)
