"""The native engine at the corners of geometry, on large weights, and where inputs do not fit.

Where the masked backend would take too much memory, the truth is a sum written out.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import needs_native
from cases.native import (
    TOLERANCE,
    assert_near,
    assert_same_as_masked,
    conv,
    every_dtype,
    no_memory_by_chance,  # noqa: F401 (autouse)
    problem,
)
from gossamer.core.support import Support
from gossamer.errors import GossamerError
from gossamer.ops import Layout

pytestmark = needs_native


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
