"""What convolutions add: the output size of transposed ones, and torch's own answer to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS
from gossamer.errors import InvalidValue

KINDS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"dilation": 3}, {"output_padding": 1}])
def test_output_sizes_are_those_that_torch_takes(engine, dims, batched, options):
    """Every size around the right ones: the same shape and values as torch, or both refuse.

    Torch's layer refuses an output padding between stride and dilation, which its operator takes;
    there the size asked for is an answer too.
    """
    torch.manual_seed(0)
    module = KINDS[dims](2, 3, 3, stride=2, **options)
    layer = gs.to_bayesian(module, backend=engine).eval()
    shape = (2, 2, *[4] * dims) if batched else (2, *[4] * dims)
    x = torch.randn(shape)
    smallest = module(x).shape[-1] - (1 if "output_padding" in options else 0)
    accepted = 0
    for extra in range(-1, 4):
        size = [smallest + extra] * dims
        for wanted in (size, [*shape[: len(shape) - dims], *size]):
            if len(wanted) > dims:
                wanted[-dims - 1] = 3
            try:
                expected = module(x, output_size=wanted)
            except ValueError:
                if 0 <= extra < options.get("dilation", 1):
                    assert list(layer(x, output_size=wanted).shape[-dims:]) == size
                    continue
                with pytest.raises(InvalidValue, match=r"output_size = .*must lie in"):
                    layer(x, output_size=wanted)
                continue
            accepted += 1
            got = layer(x, output_size=wanted)
            assert got.shape == expected.shape
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)  # float32 sums
    assert accepted >= 4


def test_output_size_of_the_wrong_length():
    layer = gs.to_bayesian(nn.ConvTranspose2d(2, 3, 3, stride=2))
    with pytest.raises(InvalidValue, match=r"output_size = \[9\]: must have 2 or 4 entries"):
        layer(torch.randn(1, 2, 4, 4), output_size=[9])


def test_output_size_does_not_stick():
    layer = gs.to_bayesian(nn.ConvTranspose1d(2, 3, 3, stride=2)).eval()
    x = torch.randn(1, 2, 4)
    before = layer(x)
    assert layer(x, output_size=[10]).shape[-1] == 10
    assert torch.equal(layer(x), before)
