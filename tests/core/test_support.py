"""Supports against Python's own sets, and the uniformity of random positions."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gossamer.core.support import Support, check_indices, index_dtype, sample_distinct
from gossamer.errors import InvalidValue

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def pairs_of_sets(draw):
    shape = draw(shapes)
    positions = st.sets(st.integers(0, prod(shape) - 1))
    return shape, draw(positions), draw(positions)


def support(positions, shape) -> Support:
    return Support.from_positions(torch.tensor(list(positions), dtype=torch.int64), shape)


def as_set(kept: Support) -> set[int]:
    return set(kept.positions().tolist())


@given(pairs_of_sets())
def test_set_algebra(case):
    shape, a, b = case
    one, two = support(a, shape), support(b, shape)
    assert as_set(one) == a
    assert as_set(one.union(two)) == a | b
    assert as_set(one.intersection(two)) == a & b
    assert as_set(one.difference(two)) == a - b
    assert one.same_as(two) == (a == b)
    assert one.positions().tolist() == sorted(a)
    everything = torch.arange(prod(shape))
    assert one.contains(everything).tolist() == [p in a for p in range(prod(shape))]
    order = sorted(a)
    slots = [order.index(p) if p in a else -1 for p in range(prod(shape))]
    assert one.slots(everything).tolist() == slots


@given(pairs_of_sets())
def test_sizes_are_exact_integers(case):
    shape, a, _ = case
    kept = support(a, shape)
    assert (kept.nnz, kept.numel) == (len(a), prod(shape))
    assert isinstance(kept.nnz, int)
    assert kept.density == len(a) / prod(shape)
    assert kept.sparsity == 1.0 - len(a) / prod(shape)
    assert kept.is_full == (len(a) == prod(shape))
    if kept.is_full:
        assert kept.indices is None, "a full support stores no index"
    else:
        assert kept.indices.dtype == torch.int32


@given(pairs_of_sets(), st.integers(0, 2**31))
def test_positions_outside(case, seed):
    shape, a, _ = case
    kept = support(a, shape)
    free = prod(shape) - len(a)
    for count in {0, free // 2, free}:
        drawn = kept.sample_outside(count, torch.Generator().manual_seed(seed)).tolist()
        assert len(drawn) == count
        assert drawn == sorted(set(drawn))
        assert not set(drawn) & a
        assert all(0 <= p < prod(shape) for p in drawn)
    with pytest.raises(InvalidValue, match=f"must lie in \\[0, {free}\\]"):
        kept.sample_outside(free + 1)


@pytest.mark.parametrize("count", [1, 3, 12])  # below and above the switch of algorithm
def test_positions_outside_are_uniform(count):
    """χ² over how often each free position is drawn; p > 1e-4 by a fixed seed."""
    kept = support({0, 3, 4, 5, 11, 19, 38, 39}, (4, 10))
    generator = torch.Generator().manual_seed(7)
    draws = torch.cat([kept.sample_outside(count, generator) for _ in range(3000)])
    seen = torch.bincount(draws, minlength=40)
    assert seen[kept.positions()].sum() == 0
    free = seen[~kept.contains(torch.arange(40))].numpy()
    # Draws without replacement vary less than multinomial ones: scale χ² by its variance ratio.
    scale = (len(free) - count) / (len(free) - 1)
    statistic = ((free - free.mean()) ** 2 / free.mean()).sum() / scale
    assert 1e-4 < stats.chi2.sf(statistic, len(free) - 1) < 1 - 1e-4


@pytest.mark.parametrize(("n", "k"), [(60, 4), (60, 14), (6, 3), (5, 5)])
def test_random_supports_are_uniform(n, k):
    """Every pair of positions appears together equally often: uniform over subsets, not only
    over positions."""
    generator = torch.Generator().manual_seed(3)
    together = torch.zeros(n, n)
    repeats = 3000
    for _ in range(repeats):
        mask = torch.zeros(n)
        chosen = sample_distinct(n, k, generator)
        assert chosen.unique().numel() == k
        mask[chosen] = 1
        together += torch.outer(mask, mask)
    upper = together[torch.triu(torch.ones(n, n), diagonal=1).bool()]
    share = k * (k - 1) / (n * (n - 1))
    expected, deviation = repeats * share, (repeats * share * (1 - share)) ** 0.5
    # 5.5 standard deviations: the largest of up to 1770 counts at a fixed seed.
    assert (upper - expected).abs().max() <= 5.5 * deviation + 1e-9
    assert abs(float(together.diagonal().sum()) - repeats * k) < 0.5


@given(shapes, st.data())
def test_random_support_has_the_size_asked_for(shape, data):
    nnz = data.draw(st.integers(1, prod(shape)))
    seed = data.draw(st.integers(0, 2**31))
    one = Support.random(shape, nnz, torch.Generator().manual_seed(seed))
    two = Support.random(shape, nnz, torch.Generator().manual_seed(seed))
    assert one.nnz == nnz
    assert one.same_as(two)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.data())
def test_largest_keeps_the_best_and_the_first_of_equals(scores, data):
    nnz = data.draw(st.integers(1, len(scores)))
    expected = sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:nnz])
    kept = Support.largest(torch.tensor(scores, dtype=torch.float32), nnz)
    assert kept.positions().tolist() == expected


def test_largest_takes_the_shape_of_the_scores():
    kept = Support.largest(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), 2)
    assert kept.shape == (2, 2)
    assert kept.positions().tolist() == [1, 2]


def test_index_type_changes_at_two_to_the_31():
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
    big = Support.from_positions(torch.tensor([2**31, 5]), (2**16, 2**16))
    assert big.indices.dtype == torch.int64
    assert big.positions().tolist() == [5, 2**31]


def test_int32_indices_can_be_asked_about():
    """A layer's own index buffer is int32; asking one support about another's must work."""
    one, two = support({1, 4}, (2, 3)), support({4, 5}, (2, 3))
    assert one.contains(two.indices).tolist() == [True, False]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([1, 6], r"support = 6: positions must lie in \[0, 6\)"),
        ([-1, 2], r"support = -1: positions must lie in \[0, 6\)"),
        ([2, 2], "positions must be sorted and distinct"),
        ([[1], [2]], r"\(2, 1\): must be a vector"),
    ],
)
def test_wrong_positions(positions, message):
    with pytest.raises(InvalidValue, match=message):
        Support.from_positions(torch.tensor(positions), (2, 3))


@pytest.mark.parametrize("nnz", [0, -1, 7])
def test_wrong_sizes(nnz):
    with pytest.raises(InvalidValue, match=rf"nnz = {nnz}: must lie in \[1, 6\]"):
        Support.random((2, 3), nnz)
    with pytest.raises(InvalidValue, match=rf"nnz = {nnz}: must lie in \[1, 6\]"):
        Support.largest(torch.zeros(2, 3), nnz)


def test_supports_of_different_shapes_do_not_mix():
    one, two = Support.full((2, 3)), Support.full((3, 2))
    for operation in (one.union, one.intersection, one.difference):
        with pytest.raises(InvalidValue, match=r"support shape = \(3, 2\): must equal \(2, 3\)"):
            operation(two)
    assert not one.same_as(two)


@given(st.lists(st.integers(-2, 12), max_size=8))
@settings(max_examples=150)
def test_check_indices_accepts_exactly_the_sorted_distinct_ones(values):
    fine = all(0 <= v < 10 for v in values) and all(a < b for a, b in pairwise(values))
    tensor = torch.tensor(values, dtype=torch.int32)
    if fine:
        assert check_indices(tensor, 10, "indices") is None
    else:
        with pytest.raises(InvalidValue, match="indices"):
            check_indices(tensor, 10, "indices")


def test_check_indices_refuses_numbers_that_are_not_integers():
    with pytest.raises(InvalidValue, match="indices"):
        check_indices(torch.tensor([0.5, 1.5]), 10, "indices")
