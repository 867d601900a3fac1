"""Invariants of a swap plan, against a plain Python version of Algorithm 1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core.support import Support
from gossamer.core.swap import follow, plan_swap
from gossamer.errors import InvalidValue

# Few distinct values, so that ties are the rule.
scores = st.integers(0, 3)


@st.composite
def swaps(draw):
    numel = draw(st.integers(2, 24))
    old = sorted(draw(st.sets(st.integers(0, numel - 1), min_size=1)))
    free = [p for p in range(numel) if p not in old]
    chosen = draw(st.sets(st.sampled_from(free))) if free else set()
    candidates = draw(st.permutations(sorted(chosen)))
    removal = draw(st.lists(scores, min_size=len(old), max_size=len(old)))
    own = draw(st.lists(scores, min_size=len(old), max_size=len(old)))
    entry = draw(st.lists(scores, min_size=len(candidates), max_size=len(candidates)))
    count = draw(st.integers(0, len(old)))
    return numel, old, removal, own, list(candidates), entry, count


def reference(old, removal, own, candidates, entry, count) -> list[int]:
    """The new support: remove the lowest, fill up with the best; staying, then lower position,
    wins a tie."""
    leaving = sorted(range(len(old)), key=lambda i: (removal[i], i))[:count]
    kept = [old[i] for i in range(len(old)) if i not in leaving]
    pool = [(-own[i], 0, old[i]) for i in leaving]
    pool += [(-s, 1, p) for p, s in zip(candidates, entry, strict=True)]
    return sorted(kept + [p for _, _, p in sorted(pool)[:count]])


def plan(case):
    numel, old, removal, own, candidates, entry, count = case
    return plan_swap(
        Support.from_positions(torch.tensor(old), (numel,)),
        torch.tensor(removal, dtype=torch.float32),
        torch.tensor(own, dtype=torch.float32),
        torch.tensor(candidates, dtype=torch.int64),
        torch.tensor(entry, dtype=torch.float32),
        count,
    )


@given(swaps())
@settings(max_examples=150, deadline=None)
def test_plan(case):
    _, old, removal, own, candidates, entry, count = case
    swap = plan(case)
    new = swap.support.positions().tolist()
    removed, added = swap.removed.tolist(), swap.added.tolist()
    assert len(new) == len(old), "the size never changes"
    assert new == reference(old, removal, own, candidates, entry, count)
    assert removed == sorted(set(old) - set(new))
    assert added == sorted(set(new) - set(old))
    assert len(removed) == len(added) <= count
    assert set(removed) <= set(old)
    assert set(added) <= set(candidates)
    assert not set(added) & (set(old) - set(removed))
    for slot, source in enumerate(swap.source.tolist()):
        if new[slot] in added:
            assert source == -1
        else:
            assert old[source] == new[slot], "a kept weight carries its own value"


@given(swaps())
def test_a_value_follows_its_weight(case):
    old = case[1]
    swap = plan(case)
    vector = torch.tensor([100.0 + p for p in old])
    new = swap.support.positions().tolist()
    wanted = [-1.0 if p in swap.added.tolist() else 100.0 + p for p in new]
    assert follow(vector, swap.source, -1.0).tolist() == wanted
    assert follow(vector, swap.source, torch.tensor(-1.0, dtype=torch.float64)).tolist() == wanted
    assert follow(vector.double(), swap.source, -1.0).dtype == torch.float64


def test_ties_favour_staying():
    """Equal gradient on and off the support: nothing moves."""
    swap = plan((6, [0, 1, 2], [1, 1, 1], [2, 2, 2], [5, 4, 3], [2, 2, 2], 3))
    assert swap.removed.tolist() == swap.added.tolist() == []
    assert swap.source.tolist() == [0, 1, 2]


def test_ties_among_fresh_ones_go_to_the_lower_position():
    swap = plan((6, [0], [1], [0], [5, 3, 4], [2, 2, 2], 1))
    assert swap.added.tolist() == [3]


def test_fewer_candidates_than_leavers():
    """The rest of the removed ones come back, best addition score first."""
    swap = plan((4, [0, 1, 2], [0, 0, 0], [1, 3, 2], [3], [9], 3))
    assert swap.support.positions().tolist() == [1, 2, 3]
    assert swap.removed.tolist() == [0]


@pytest.mark.parametrize("count", [-1, 4])
def test_count_out_of_range(count):
    with pytest.raises(InvalidValue, match=rf"count = {count}: must lie in \[0, nnz = 3\]"):
        plan((6, [0, 1, 2], [1, 1, 1], [2, 2, 2], [5], [2], count))
