from __future__ import annotations

import pytest
import torch

from gossamer.data import Rows, batches, row_batches
from gossamer.errors import InvalidData, InvalidValue, UnknownName

X = torch.arange(20.0).view(10, 2)
Y = torch.arange(10)
IMAGES = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_row_once_with_its_target() -> None:
    epoch = list(batches(X, Y, 4, generator()))
    assert [len(x) for x, _ in epoch] == [4, 4, 2]
    x, y = (torch.cat(part) for part in zip(*epoch, strict=True))
    assert sorted(y.tolist()) == list(range(10))
    assert y.tolist() != list(range(10))
    assert torch.equal(x, X[y])


def test_drop_last() -> None:
    assert [len(x) for x, _ in batches(X, Y, 4, generator(), drop_last=True)] == [4, 4]
    assert [len(x) for x, _ in batches(X, Y, 5, generator(), drop_last=True)] == [5, 5]
    assert [len(x) for x, _ in batches(X, Y, 10, generator())] == [10]


def test_the_state_at_the_start_decides_the_epoch() -> None:
    source = generator(7)
    list(batches(X, Y, 3, source))
    state = source.get_state()
    plain = [y.tolist() for _, y in batches(X, Y, 3, source)]
    after = source.get_state()
    source.set_state(state)
    disturbed = []
    for _, y in batches(X, Y, 3, source):
        torch.rand(5, generator=source)
        disturbed.append(y.tolist())
    assert disturbed == plain
    source.set_state(state)
    next(batches(X, Y, 3, source))
    assert torch.equal(source.get_state(), after)
    assert [y.tolist() for _, y in batches(X, Y, 3, source)] != plain


def test_going_on_inside_an_epoch_is_bit_for_bit() -> None:
    whole = list(batches(IMAGES, Y, 3, generator(), augment="crop_flip"))
    rest = list(batches(IMAGES, Y, 3, generator(), augment="crop_flip", start=2))
    assert len(rest) == 2
    for (x, y), (x_again, y_again) in zip(whole[2:], rest, strict=True):
        assert torch.equal(x, x_again)
        assert torch.equal(y, y_again)
    assert list(batches(X, Y, 3, generator(), start=4)) == []


def test_augmentation_changes_inputs_and_not_the_order() -> None:
    plain = list(batches(IMAGES, Y, 5, generator()))
    changed = list(batches(IMAGES, Y, 5, generator(), augment="crop_flip"))
    for (x, y), (x_changed, y_changed) in zip(plain, changed, strict=True):
        assert torch.equal(y, y_changed)
        assert not torch.equal(x, x_changed)


def test_own_augmentation() -> None:
    def add_noise(x: torch.Tensor, source: torch.Generator) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=source)

    one = [x for x, _ in batches(X, Y, 5, generator(), augment=add_noise)]
    two = [x for x, _ in batches(X, Y, 5, generator(), augment=add_noise)]
    assert torch.equal(torch.cat(one), torch.cat(two))
    assert not torch.equal(one[0], X[next(batches(X, Y, 5, generator()))[1]])


@pytest.mark.parametrize("size", [0, -1, 11])
def test_batch_size_outside_its_rule_raises_at_the_call(size: int) -> None:
    with pytest.raises(InvalidValue, match=f"batch_size = {size}: .*number of samples, 10"):
        batches(X, Y, size, generator())


def test_other_faults_raise_at_the_call() -> None:
    with pytest.raises(InvalidData, match="y = 9 rows"):
        batches(X, Y[:9], 2, generator())
    with pytest.raises(UnknownName, match=r"augment = mixup.*crop_flip"):
        batches(X, Y, 2, generator(), augment="mixup")
    with pytest.raises(InvalidValue, match="start = 6"):
        batches(X, Y, 2, generator(), start=6)
    with pytest.raises(InvalidData, match="weight = 9 rows"):
        row_batches(Rows(X, Y, torch.ones(9)), 2, generator())


def test_weights_come_with_their_rows() -> None:
    epoch = list(row_batches(Rows(X, Y, Y / 8), 4, generator()))
    assert [y.tolist() for _, y in batches(X, Y, 4, generator())] == [b.y.tolist() for b in epoch]
    for x, y, weight in epoch:
        assert torch.equal(x, X[y])
        assert weight is not None
        assert torch.equal(weight, y / 8)
    assert all(rows.weight is None for rows in row_batches(Rows(X, Y), 4, generator()))


@pytest.mark.parametrize("augment", [None, "crop_flip"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_parts_of_all_ranks_are_the_batch(size: int, augment: str | None) -> None:
    """Ten rows in batches of four: the last one has two, fewer than some numbers of ranks."""
    rows = Rows(IMAGES, Y, Y / 8)
    sources = [generator(3) for _ in range(size)]
    epochs = [
        list(row_batches(rows, 4, source, augment, shard=(rank, size)))
        for rank, source in enumerate(sources)
    ]
    alone = generator(3)
    whole = list(row_batches(rows, 4, alone, augment))
    assert [len(batch.x) for batch in whole] == [4, 4, 2]
    for batch, *parts in zip(whole, *epochs, strict=True):
        for expected, *found in zip(batch, *parts, strict=True):
            assert torch.equal(torch.cat(found), expected)
        lengths = [len(part.x) for part in parts]
        assert max(lengths) - min(lengths) <= 1
    assert all(torch.equal(source.get_state(), alone.get_state()) for source in sources)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
def test_shards_outside_their_rule(shard: tuple[int, int]) -> None:
    with pytest.raises(InvalidValue, match=r"shard = .*0 <= rank < size"):
        row_batches(Rows(X, Y), 2, generator(), shard=shard)
