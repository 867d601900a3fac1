"""Examples that members leave out: who leaves what, and that they really never learn from it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.leaving import left_out
from gossamer.train.examples import Batches, Examples


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1))


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 60), st.integers(0, 5))
def test_every_row_is_left_out_once_a_round_and_members_alike(hands, times, more, seed):
    rows, members = hands + more, hands * times
    dealt = left_out(rows, members, times, seeded(seed))
    assert dealt.shape == (rows, times)
    for number in range(times):
        column = dealt[:, number]
        assert int(column.min()) >= number * hands
        assert int(column.max()) < (number + 1) * hands
        counts = torch.bincount(column - number * hands, minlength=hands)
        assert int(counts.max()) - int(counts.min()) <= 1


def test_classes_are_dealt_evenly():
    labels = torch.tensor([0] * 90 + [1] * 10)
    dealt = left_out(100, 10, 2, seeded(), labels)
    for member in range(10):
        mine = labels[(dealt == member).any(1)]
        assert int((mine == 1).sum()) == 2
        assert len(mine) == 20


def test_rounds_are_dealt_by_chance():
    dealt = left_out(1000, 10, 2, seeded())
    shared = torch.bincount(dealt[:, 0] * 5 + dealt[:, 1] - 5, minlength=25)
    assert int(shared.min()) > 20  # 40 expected in each of 25 pairs
    assert not torch.equal(dealt, left_out(1000, 10, 2, seeded(1)))
    assert torch.equal(dealt, left_out(1000, 10, 2, seeded()))


@pytest.mark.parametrize(("members", "times"), [(10, 3), (2, 2), (4, 0)])
def test_members_that_do_not_divide_are_refused(members, times):
    with pytest.raises(InvalidValue, match="rounds of two or more"):
        left_out(50, members, times, seeded())


def test_fewer_rows_than_members_are_refused():
    with pytest.raises(InvalidValue, match="needs 5 training examples"):
        left_out(4, 10, 2, seeded())


def trained(y: torch.Tensor, x: torch.Tensor, dealt: torch.Tensor) -> gossamer.inference.Members:
    torch.manual_seed(3)
    method = gossamer.build(
        "rigl",
        network,
        num_data=len(x),
        total_steps=12,
        likelihood="gaussian",
        members=4,
        leave_out=2,
        member_sparsity=0.5,
        update_every=4,
    )
    order = seeded(9)
    for _ in range(12):
        rows = torch.randperm(len(x), generator=order)[:16]
        method.step(Batch(x[rows], y[rows], None, dealt[rows]))
    return method


def test_a_member_never_learns_from_what_it_leaves_out():
    """Targets of the rows that member 1 leaves out are replaced: it alone stays as it is."""
    x, y = torch.randn(40, 3, generator=seeded()), torch.randn(40, 1, generator=seeded(1))
    dealt = left_out(40, 4, 2, seeded(2))
    changed = y.clone()
    changed[(dealt == 1).any(1)] = 10.0
    before, after = trained(y, x, dealt), trained(changed, x, dealt)
    for number in range(4):
        states = [m.members[number].model.state_dict() for m in (before, after)]
        same = all(torch.equal(states[0][key], states[1][key]) for key in states[0])
        assert same == (number == 1)


def test_a_batch_that_a_member_must_not_see_teaches_it_nothing():
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    seen = Batch(x, y, None, torch.zeros(8, 1, dtype=torch.int64)).seen_by(0)
    assert seen.weight is not None
    assert torch.equal(seen.weight, torch.zeros(8))
    assert len(seen.x) == 8


def test_weights_go_with_their_rows():
    dealt = torch.tensor([[0, 2], [1, 2], [0, 3], [1, 3]])
    batch = Batch(torch.arange(4.0)[:, None], torch.arange(4), torch.arange(4.0), dealt)
    seen = batch.seen_by(0)
    assert seen.x.flatten().tolist() == [1.0, 3.0]
    assert seen.y.tolist() == [1, 3]
    assert seen.weight is not None
    assert seen.weight.tolist() == [1.0, 3.0]


def test_one_network_refuses_rows_to_leave_out():
    method = gossamer.build("rigl", network(), num_data=8, total_steps=2, likelihood="gaussian")
    batch = Batch(torch.randn(8, 3), torch.randn(8, 1), None, torch.zeros(8, 2, dtype=torch.int64))
    with pytest.raises(InvalidData, match="is for several members"):
        method.step(batch)


def test_cycles_have_nobody_to_leave_rows_out():
    with pytest.raises(InvalidValue, match="is not for cycles"):
        gossamer.build(
            "rigl",
            network(),
            num_data=8,
            total_steps=8,
            likelihood="gaussian",
            members=4,
            leave_out=2,
            harvest="cycles",
        )


def test_batches_of_a_fit_say_who_leaves_out_their_rows():
    x = torch.arange(30.0)[:, None]
    dealt = left_out(30, 4, 2, seeded())
    examples = Examples(x, x, left_out=dealt)
    feed = Batches(examples, 8, torch.device("cpu"))
    plain = Batches(Examples(x, x), 8, torch.device("cpu"))
    for start in (0, 2):
        found = list(feed.epoch(seeded(4), start))
        assert len(found) == 4 - start
        for batch, usual in zip(found, plain.epoch(seeded(4), start), strict=True):
            assert torch.equal(batch.x, usual.x)
            assert batch.left_out is not None
            assert torch.equal(batch.left_out, dealt[batch.x[:, 0].long()])
