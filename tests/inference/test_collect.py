"""Kept samples: what is shared, what goes to files, what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file

from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference.collect import Collection

FLOATS, WORD = 10, 4


def state(seed: int, **fixed: torch.Tensor) -> dict[str, torch.Tensor]:
    """Ten floats that the seed decides, an integer scalar, and what is given."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(FLOATS, generator=generator),
        "steps": torch.tensor(seed),
        **fixed,
    }


def assert_holds(collection: Collection, wanted: list[dict[str, torch.Tensor]]) -> None:
    assert len(collection) == len(wanted)
    for found, truth in zip(collection, wanted, strict=True):
        assert list(found) == list(truth)
        for name, value in truth.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name


def test_what_did_not_change_is_kept_once():
    frozen, indices = torch.randn(100), torch.arange(7, dtype=torch.int32)
    states = [state(i, frozen=frozen, indices=indices) for i in range(5)]
    kept = Collection()
    for one in states:
        kept.add(one)
    changing = FLOATS * WORD + 8
    shared = 100 * WORD + 7 * 4
    assert kept.nbytes == 5 * changing + shared
    assert kept.nbytes_unshared == 5 * (changing + shared)
    assert_holds(kept, states)
    assert torch.equal(kept[-1]["w"], states[4]["w"])


@pytest.mark.parametrize(
    "second",
    [
        torch.ones(4),
        torch.ones(3, dtype=torch.float64),
        torch.ones(1, 3),
        torch.tensor([1.0, 3, 2]),  # two of three: as changes they would take more
    ],
)
def test_another_size_type_shape_or_value_is_kept_anew(second):
    kept = Collection()
    kept.add({"w": torch.ones(3)})
    kept.add({"w": second})
    assert kept.nbytes == 12 + second.numel() * second.element_size()
    assert_holds(kept, [{"w": torch.ones(3)}, {"w": second}])


def test_names_may_come_and_go():
    """A full support has no indices; after pruning it has."""
    states = [
        {"w": torch.ones(3)},
        {"w": torch.ones(3), "i": torch.arange(3)},
        {"w": torch.ones(3)},
    ]
    kept = Collection()
    for one in states:
        kept.add(one)
    assert_holds(kept, states)
    assert kept.nbytes == 12 + 24


def test_samples_are_copies():
    parameter = torch.nn.Parameter(torch.ones(3))
    kept = Collection()
    kept.add({"w": parameter})
    with torch.no_grad():
        parameter.zero_()
    assert kept[0]["w"].tolist() == [1.0, 1.0, 1.0]
    assert not kept[0]["w"].requires_grad


def test_without_a_folder_the_budget_refuses_and_keeps_what_it_has():
    one = FLOATS * WORD + 8
    kept = Collection(budget=2 * one)
    states = [state(i) for i in range(3)]
    kept.add(states[0])
    kept.add(states[1])
    with pytest.raises(InvalidValue, match=rf"{2 * one} bytes.*sample 2.*{3 * one} bytes.*folder"):
        kept.add(states[2])
    assert_holds(kept, states[:2])
    kept.add(states[1])  # costs nothing
    assert_holds(kept, [*states[:2], states[1]])


@pytest.mark.parametrize("budget", [0, 1, 48, 100, 2 * 48, 10_000])
def test_with_a_folder_memory_stays_within_the_budget(budget, tmp_path):
    folder = tmp_path / "deep" / "samples"
    frozen = torch.randn(3)
    states = [state(i, frozen=frozen) for i in range(6)]
    kept = Collection(budget, folder)
    for one in states:
        kept.add(one)
        assert kept.nbytes <= budget
    assert_holds(kept, states)
    total = 6 * (FLOATS * WORD + 8) + 12
    assert folder.exists() == (budget < total)
    if budget < total:
        stored = [t for path in folder.iterdir() for t in load_file(path).values()]
        on_disk = sum(t.numel() * t.element_size() for t in stored)
        assert on_disk + kept.nbytes == total, "each tensor once, here or there"


@pytest.mark.parametrize("budgets", [(None, None), (60, 60), (None, 60), (60, None)])
def test_a_saved_collection_goes_on(budgets, tmp_path):
    states = [state(i, frozen=torch.ones(4)) for i in range(5)]
    first, second = (Collection(b, tmp_path / str(i)) for i, b in enumerate(budgets))
    for one in states[:3]:
        first.add(one)
    saved = copy.deepcopy(first.state_dict())
    assert sum(t.numel() * t.element_size() for t in saved["tensors"].values()) == 3 * 48 + 16
    second.add(state(99))
    second.load_state_dict(saved)
    for one in states[3:]:
        second.add(one)
    assert_holds(second, states)
    assert_holds(first, states[:3])
    for tensor in saved["tensors"].values():
        tensor.zero_()
    assert_holds(second, states)


def test_two_runs_may_share_a_folder(tmp_path):
    one, two = Collection(0, tmp_path), Collection(0, tmp_path)
    mine, theirs = [state(i) for i in range(3)], [state(10 + i) for i in range(3)]
    for a, b in zip(mine, theirs, strict=True):
        one.add(a)
        two.add(b)
    assert_holds(one, mine)
    assert_holds(two, theirs)


def test_strides_and_empty_tensors(tmp_path):
    odd = {"t": torch.randn(4, 3).T, "none": torch.empty(0), "same": torch.ones(2).expand(5, 2)}
    kept = Collection(0, tmp_path)
    kept.add(odd)
    assert_holds(kept, [odd])


def test_clearing():
    kept = Collection()
    kept.add(state(0))
    kept.clear()
    assert len(kept) == 0
    assert kept.nbytes == 0
    kept.add(state(1))
    assert_holds(kept, [state(1)])


def test_errors(tmp_path):
    with pytest.raises(InvalidValue, match=r"budget.*-1"):
        Collection(-1)
    kept = Collection()
    kept.add(state(0))
    damaged = kept.state_dict()
    del damaged["tensors"]["0"]
    other = Collection()
    other.add(state(5))
    with pytest.raises(InvalidData, match=r"samples = 0.*not in the state"):
        other.load_state_dict(damaged)
    assert_holds(other, [state(5)])
    with pytest.raises(IndexError):
        kept[1]
    with pytest.raises(InvalidValue, match="budget"):
        Collection(10).load_state_dict(kept.state_dict())
