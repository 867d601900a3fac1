"""Invariants of a swap plan, against a plain Python version of Algorithm 1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core.support import Support
from gossamer.core.swap import FixedBudget, LayerScores, follow, plan_swap, plan_swaps
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


def reference(old, removal, own, candidates, entry, count, entering=None) -> list[int]:
    """The new support: remove the lowest, fill up with the best; staying, then lower position,
    wins a tie."""
    entering = count if entering is None else entering
    leaving = sorted(range(len(old)), key=lambda i: (removal[i], i))[:count]
    kept = [old[i] for i in range(len(old)) if i not in leaving]
    pool = [(-own[i], 0, old[i]) for i in leaving]
    pool += [(-s, 1, p) for p, s in zip(candidates, entry, strict=True)]
    return sorted(kept + [p for _, _, p in sorted(pool)[:entering]])


def plan(case):
    return plan_swap(layer_of(case))


def layer_of(case) -> LayerScores:
    numel, old, removal, own, candidates, entry, count = case
    return LayerScores(
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
    with pytest.raises(InvalidValue, match=rf"leaving = {count}: must lie in \[0, nnz = 3\]"):
        plan((6, [0, 1, 2], [1, 1, 1], [2, 2, 2], [5], [2], count))


class Given:
    """A budget that was decided elsewhere."""

    reach = 1

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def entering(self, layers):
        return self.numbers


@given(swaps(), swaps(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_budget_moves_weights_between_layers(one, two, data):
    """Every layer is filled up with its best; the total is exact whatever the budget says."""
    cases = [one, two]
    layers = [layer_of(case) for case in cases]
    total = one[-1] + two[-1]
    low = max(0, total - layers[1].most_entering, 1 - (len(one[1]) - one[-1]))
    high = min(total - max(0, 1 - (len(two[1]) - two[-1])), layers[0].most_entering)
    if low > high:
        return  # a layer would be left without a weight
    first = data.draw(st.integers(low, high))
    plans = plan_swaps(layers, Given(first, total - first))
    assert sum(p.support.nnz for p in plans) == len(one[1]) + len(two[1])
    for case, swap, entering in zip(cases, plans, (first, total - first), strict=True):
        _, old, removal, own, candidates, entry, count = case
        new = swap.support.positions().tolist()
        assert new == reference(old, removal, own, candidates, entry, count, entering)
        values = [old[i] if i >= 0 else None for i in swap.source.tolist()]
        assert [v for v in values if v is not None] == [p for p in new if p in old]
        assert [p for v, p in zip(values, new, strict=True) if v is None] == swap.added.tolist()


@given(st.lists(swaps(), max_size=4))
def test_a_fixed_budget_is_one_plan_per_layer(cases):
    layers = [layer_of(case) for case in cases]
    for case, swap in zip(cases, plan_swaps(layers, FixedBudget()), strict=True):
        assert swap.support.same_as(plan(case).support)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1, 2), "budget = 3: must give all 2 layers 2 weights"),
        ((2,), "must give all 2 layers"),
        ((-1, 3), "budget of layer 0 = -1: must let 0 to 2 weights enter"),
        ((3, -1), "budget of layer 0 = 3: must let 0 to 2"),
    ],
)
def test_a_budget_that_does_not_add_up_is_refused(numbers, message):
    layer = layer_of((6, [0, 1], [0, 1], [2, 2], [5], [3], 1))
    with pytest.raises(InvalidValue, match=message):
        plan_swaps([layer, layer], Given(*numbers))


def test_a_budget_leaves_every_layer_a_weight():
    single = layer_of((6, [0], [0], [2], [5], [3], 1))
    with pytest.raises(InvalidValue, match="budget of layer 0 = 0: must let 1 to 2"):
        plan_swaps([single, single], Given(0, 2))
