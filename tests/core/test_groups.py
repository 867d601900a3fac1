"""Groups of weights against loops over the dense index tuples of a weight."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch

from gossamer.core.groups import GROUPS, STATISTICS, Grouping, Units
from gossamer.core.support import Support
from gossamer.errors import UnknownName

# (shape, channel groups, transposed)
CASES = {
    "linear": ((4, 6), 1, False),
    "one output": ((1, 5), 1, False),
    "one input": ((5, 1), 1, False),
    "conv1d": ((4, 3, 2), 1, False),
    "conv1d groups": ((6, 2, 3), 3, False),
    "conv2d": ((3, 4, 2, 3), 1, False),
    "conv2d groups": ((4, 3, 2, 2), 2, False),
    "depthwise": ((6, 1, 3, 3), 6, False),
    "depthwise x2": ((6, 1, 3), 3, False),
    "conv3d groups": ((4, 2, 2, 1, 3), 2, False),
    "1x1": ((4, 3, 1, 1), 1, False),
    "transposed1d": ((3, 4, 2), 1, True),
    "transposed2d groups": ((4, 3, 2, 2), 2, True),
    "transposed3d groups": ((6, 2, 1, 2, 2), 3, True),
    "transposed depthwise": ((6, 1, 3), 6, True),
}
every_case = pytest.mark.parametrize("case", CASES)
every_group = pytest.mark.parametrize("group", GROUPS)


def channels(index: tuple[int, ...], shape, groups: int, transposed: bool) -> tuple[int, int]:
    """(input, output) channel of a dense index, one channel group after the other."""
    a, b = index[:2]
    block = shape[0] // groups
    for number in range(groups):
        if number * block <= a < (number + 1) * block:
            other = number * shape[1] + b
            return (a, other) if transposed else (other, a)
    raise AssertionError(index)


def key(index: tuple[int, ...], group: str, case):
    """What two weights of one group have in common."""
    inp, out = channels(index, *case)
    return {"weight": index, "kernel": (inp, out), "input": inp, "output": out}[group]


def dense_indices(shape) -> list[tuple[int, ...]]:
    return list(product(*(range(n) for n in shape)))


def partial(shape, seed: int) -> Support:
    numel = prod(shape)
    return Support.random(shape, max(1, numel // 3), torch.Generator().manual_seed(seed))


@every_group
@every_case
def test_weights_share_a_group_if_and_only_if_they_share_its_units(case, group):
    shape, groups, transposed = CASES[case]
    units = Units(shape, groups, transposed)
    ids = units.of(torch.arange(prod(shape)), group).tolist()
    keys = [key(index, group, CASES[case]) for index in dense_indices(shape)]
    assert len(set(zip(ids, keys, strict=True))) == len(set(ids)) == len(set(keys))
    assert sorted(set(ids)) == list(range(units.count(group)))
    assert {ids.count(i) for i in set(ids)} == {units.size(group)}
    if group in ("input", "output"):
        assert ids == keys, "units are numbered as their channels"


@pytest.mark.parametrize("case", ["conv2d groups", "transposed2d groups", "depthwise x2"])
def test_channels_are_those_that_torch_reads_and_writes(case):
    """The truth of the truth: which weights see input channel i, and which write output j."""
    shape, groups, transposed = CASES[case]
    dims = len(shape) - 2
    if transposed:
        conv = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d}[dims]
        inputs, outputs = shape[0], shape[1] * groups
    else:
        conv = {1: torch.conv1d, 2: torch.conv2d}[dims]
        inputs, outputs = shape[1] * groups, shape[0]
    units = Units(shape, groups, transposed)
    positions = torch.arange(prod(shape))
    assert (units.count("input"), units.count("output")) == (inputs, outputs)
    for channel in range(inputs):
        weight = torch.ones(shape, requires_grad=True)
        x = torch.zeros(1, inputs, *([5] * dims))
        x[0, channel] = 1.0
        (grad,) = torch.autograd.grad(conv(x, weight, groups=groups).sum(), weight)
        assert torch.equal(grad.flatten() != 0, units.of(positions, "input") == channel)
    for channel in range(outputs):
        weight = torch.ones(shape, requires_grad=True)
        out = conv(torch.ones(1, inputs, *([5] * dims)), weight, groups=groups)
        (grad,) = torch.autograd.grad(out[0, channel].sum(), weight)
        assert torch.equal(grad.flatten() != 0, units.of(positions, "output") == channel)


@pytest.mark.parametrize("full", [True, False])
@every_group
@every_case
def test_statistics_are_those_of_plain_python(case, group, full):
    shape, groups, transposed = CASES[case]
    units = Units(shape, groups, transposed)
    support = Support.full(shape) if full else partial(shape, seed=len(case))
    values = torch.randn(support.nnz, dtype=torch.float64)
    grouping = Grouping.of(support, units, group)
    assert grouping.ids.dtype == torch.int64
    assert grouping.count == units.count(group)
    held: dict[int, list[float]] = {i: [] for i in range(grouping.count)}
    flat = dict(enumerate(dense_indices(shape)))
    numbers = {key(index, group, CASES[case]): None for index in flat.values()}
    order = {k: i for i, k in enumerate(sorted(numbers))}
    for position, value in zip(support.positions().tolist(), values.tolist(), strict=True):
        mine = int(units.of(torch.tensor([position]), group))
        if group in ("input", "output"):
            assert mine == order[key(flat[position], group, CASES[case])]
        held[mine].append(value)
    whole = {k: g + [0.0] * (len(g) < units.size(group)) for k, g in held.items()}
    truth = {
        "mean_square": [sum(v * v for v in g) / len(g) if g else 0.0 for g in held.values()],
        "range": [max(g) - min(g) for g in whole.values()],
        "abs_range": [max(map(abs, g)) - min(map(abs, g)) for g in whole.values()],
    }
    for statistic in STATISTICS:
        found = grouping.statistic(values, statistic)
        assert found.dtype == torch.float64
        wanted = torch.tensor(truth[statistic], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-15)
    assert grouping.sizes().tolist() == [len(g) for g in held.values()]


def test_the_printed_range_drops_a_channel_of_both_signs():
    """±c has range 2c, but |w| has range 0: the printed Eq. (9) prunes it."""
    grouping = Grouping(torch.tensor([0, 0, 0, 1, 1]), 2)
    values = torch.tensor([3.0, -3.0, 3.0, 1.0, 2.0])
    assert grouping.statistic(values, "range").tolist() == [6.0, 1.0]
    assert grouping.statistic(values, "abs_range").tolist() == [0.0, 1.0]


def test_statistics_leave_the_values_alone():
    grouping, values = Grouping(torch.tensor([0, 1, 1]), 3), torch.tensor([-1.0, 2.0, -3.0])
    for statistic in STATISTICS:
        assert grouping.statistic(values, statistic)[2] == 0.0, "an empty group"
    assert values.tolist() == [-1.0, 2.0, -3.0]


def test_unknown_names_are_refused():
    with pytest.raises(UnknownName, match=r"group.*channel.*kernel"):
        Units((2, 3)).of(torch.arange(6), "channel")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"statistic.*median.*mean_square"):
        Grouping(torch.tensor([0]), 1).statistic(torch.ones(1), "median")  # type: ignore[arg-type]


def test_a_group_with_one_large_weight_left_is_not_small():
    units = Units((2, 3))
    support = Support((2, 3), torch.tensor([0, 1, 4], dtype=torch.int32))
    grouping = Grouping.of(support, units, "input")
    values = torch.tensor([5.0, -2.0, -3.0])
    assert grouping.statistic(values, "range").tolist() == [5.0, 1.0, 0.0]
    assert grouping.statistic(values, "abs_range").tolist() == [5.0, 1.0, 0.0]
