"""Geometry: padding words and fans, against torch's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases.zoo import LAYERS, ids
from gossamer.nn.candidates import twin_of
from gossamer.ops import Layout, resolve_padding


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_padding_is_torch_s(kernel, dilation):
    module = nn.Conv1d(1, 1, kernel, dilation=dilation, padding="same", padding_mode="circular")
    before, after = module._reversed_padding_repeated_twice
    assert resolve_padding("same", (kernel,), (dilation,)) == ((before, after),)


def test_words_and_numbers():
    assert resolve_padding("valid", (3, 2), (1, 1)) == ((0, 0), (0, 0))
    assert resolve_padding((1, 2), (3, 2), (1, 1)) == ((1, 1), (2, 2))


@pytest.mark.parametrize("case", LAYERS, ids=ids(LAYERS))
def test_fans_and_sizes(case):
    module = case.build()
    layout = twin_of(module).layout(module)
    groups = getattr(module, "groups", 1)
    inputs = module.in_features if hasattr(module, "in_features") else module.in_channels
    outputs = module.out_features if hasattr(module, "in_features") else module.out_channels
    assert layout.fan_in == inputs // groups
    assert layout.fan_out == outputs
    assert layout.numel == module.weight.numel()
    assert layout.kernel == tuple(getattr(module, "kernel_size", ()))
    # Every output element of a plain layer meets numel / fan_out weights.
    assert layout.inputs_per_output == module.weight.numel() // outputs
    assert hash(layout) == hash(twin_of(module).layout(module)), "usable as a key"


def test_uneven_padding_must_be_applied_first():
    even = Layout("conv", (1, 1, 3), (1,), ((1, 1),), (1,))
    uneven = Layout("conv", (1, 1, 4), (1,), ((1, 2),), (1,))
    circular = Layout("conv", (1, 1, 3), (1,), ((1, 1),), (1,), padding_mode="circular")
    assert even.symmetric_padding == (1,)
    assert uneven.symmetric_padding is None
    assert circular.symmetric_padding is None
    two = Layout("conv", (1, 1, 4, 2), (1, 1), ((1, 2), (0, 1)), (1, 1))
    assert two.pad_argument == [0, 1, 1, 2], "torch wants the last dimension first"
    assert torch.nn.functional.pad(torch.zeros(3, 4), two.pad_argument).shape == (6, 5)
