"""A network that reads tensors of its own by the place of a row is refused; no other is."""

from __future__ import annotations

import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.prediction import Posterior, StoredDraws, mixture, posterior_of
from gossamer.prediction.passes import ROW_BLOCK
from gossamer.prediction.row_wise import MOST_PLACES, tensors_by_row

ROWS, TOKENS = ROW_BLOCK + 44, 6
GLOBAL_MASK = torch.zeros(ROWS, TOKENS)


class Pooled(nn.Module):
    """Classes from the mean of the unmasked tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids, mask):
        weight = mask.float().unsqueeze(-1)
        return self.head((self.embed(ids) * weight).sum(1) / weight.sum(1))


def sentences(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(20, (rows, TOKENS), generator=generator)
    length = torch.randint(1, TOKENS + 1, (rows, 1), generator=generator)
    return ids, torch.arange(TOKENS) < length


class Held(nn.Module):
    """The wrapper that many write: the masks of all rows are an attribute."""

    def __init__(self, net: nn.Module, mask: torch.Tensor) -> None:
        super().__init__()
        self.net, self.mask = net, mask

    def forward(self, ids):
        return self.net(ids, self.mask[: len(ids)])


def attribute(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    return Held(net, mask)


def buffer(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    wrapper = Held(net, None)  # type: ignore[arg-type]
    del wrapper.mask
    wrapper.register_buffer("mask", mask)
    return wrapper


def in_a_dictionary(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    class Inside(Held):
        def forward(self, ids):
            return self.net(ids, self.mask["masks"][0][: len(ids)])

    return Inside(net, {"masks": [mask]})  # type: ignore[arg-type]


def in_an_object(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    class Inside(Held):
        def forward(self, ids):
            return self.net(ids, self.mask.batch.mask[: len(ids)])

    batch = types.SimpleNamespace(batch=types.SimpleNamespace(mask=mask))
    return Inside(net, batch)  # type: ignore[arg-type]


def closure(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    class Closing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, ids):
            return self.net(ids, mask[: len(ids)])

    return Closing()


def global_name(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    GLOBAL_MASK.copy_(mask[:ROWS])

    class Reading(Held):
        def forward(self, ids):
            return self.net(ids, GLOBAL_MASK[: len(ids)])

    return Reading(net, None)  # type: ignore[arg-type]


def function(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.with_mask = net, partial(lambda m, ids: (ids, m[: len(ids)]), mask)

        def forward(self, ids):
            return self.net(*self.with_mask(ids))

    return Calling()


def hook(net: nn.Module, mask: torch.Tensor) -> nn.Module:
    net.register_forward_pre_hook(lambda module, args: (args[0], mask[: len(args[0])]))
    return net


WAYS = [attribute, buffer, in_a_dictionary, in_an_object, closure, global_name, function, hook]
SENTENCE = r"answers by the place of a row: it reads .* row by row.*predict\(model, \{"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_masks_of_all_rows_are_refused(way: Any) -> None:
    """Before, the second block got the masks of rows 0 to 43, without a word."""
    torch.manual_seed(0)
    ids, mask = sentences()
    net = way(Pooled(), mask)
    for source in (net, gs.to_bayesian(net, 0.2, posterior_std=0.3)):
        with pytest.raises(InvalidValue, match=SENTENCE):
            gs.predict(source, ids)
    # As it was meant, and as the message says.
    plain = Pooled().eval()
    found = gs.predict(plain, {"ids": ids, "mask": mask}).probs
    torch.testing.assert_close(found, plain(ids, mask).softmax(1).detach(), rtol=1e-5, atol=1e-6)


def test_masks_that_differ_late_are_found() -> None:
    """Sorted by length: the masks of the first block are all alike."""
    ids, mask = sentences()
    mask[:280] = True
    mask[280:] = torch.arange(TOKENS) < 2
    with pytest.raises(InvalidValue, match=SENTENCE):
        gs.predict(Held(Pooled(), mask), ids)


def test_masks_of_more_rows_are_found() -> None:
    """Those of a whole data set, of which the first rows are asked about."""
    ids, _ = sentences()
    _, mask = sentences(900)
    with pytest.raises(InvalidValue, match=SENTENCE):
        gs.predict(Held(Pooled(), mask), ids)


def test_rows_of_one_block_that_are_cut_into_passes() -> None:
    torch.manual_seed(0)
    ids, mask = torch.randint(20, (40, 9000)), torch.rand(40, 9000) < 0.5
    mask[::2, 10:] = False
    mask[:, 0] = True
    with pytest.raises(InvalidValue, match=SENTENCE):
        gs.predict(Held(Pooled(), mask), ids)


def test_samples_that_share_a_pass() -> None:
    """Two rows, nine samples: the rows of sample 1 come third and fourth."""
    ids, mask = sentences(2)
    mask[0], mask[1] = True, torch.arange(TOKENS) < 1
    bnn = gs.to_bayesian(Held(Pooled(), mask), 0.2, posterior_std=0.3)
    with pytest.raises(InvalidValue, match=SENTENCE):
        gs.predict(bnn, ids, 9)
    _, many = sentences(900)
    bnn = gs.to_bayesian(Held(Pooled(), many), 0.2, posterior_std=0.3)
    with pytest.raises(InvalidValue, match=SENTENCE):
        gs.predict(bnn, ids, 9)


def test_one_pass_of_all_rows_is_right_and_stays_so() -> None:
    ids, mask = sentences(40)
    net = Held(Pooled(), mask).eval()
    found = gs.predict(net, ids).probs
    torch.testing.assert_close(found, net(ids).softmax(1).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["stored", "mixture", "tempered", "last layer"])
def test_every_way_to_ask(kind: str) -> None:
    ids, mask = sentences()
    net, y = Held(Pooled(), mask).eval(), torch.zeros(ROWS, dtype=torch.long)
    ways = {
        "stored": lambda: Posterior(StoredDraws(net, [net.state_dict()]), gs.Categorical()),
        "mixture": lambda: mixture([posterior_of(net)]),
        "tempered": lambda: gs.tempered(net, (ids, y)),
        "last layer": lambda: gs.last_layer(net, (ids, y)),
    }
    with pytest.raises(InvalidValue, match=SENTENCE):
        ways[kind]().predict(ids)


def test_moments() -> None:
    class Shifted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.shift = torch.randn(ROWS, 3)

        def forward(self, x):
            return super().forward(x) + self.shift[: x.shape[0]]

    bnn = gs.to_bayesian(nn.Sequential(nn.Linear(4, 4), Shifted()), exclude=["1"])
    with pytest.raises(InvalidValue, match=SENTENCE):
        gs.predict_moments(bnn, torch.randn(ROWS, 4))


class Positions(nn.Module):
    """Tokens with a table of positions, which has more rows than the inputs."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)
        self.register_buffer("table", table)

    def forward(self, ids):
        return self.head((self.embed(ids) + self.table[: ids.shape[1]]).mean(1))


class Random(Positions):
    def forward(self, ids):
        return F.dropout(super().forward(ids), 0.5, training=True)


class RandomByItself(Positions):
    """Noise that torch's generator knows nothing of."""

    generator = torch.Generator()

    def forward(self, ids):
        noise = torch.randn(len(ids), 3, generator=self.generator)
        return super().forward(ids) + noise


class Normed(Positions):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(table)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, ids):
        return self.norm(super().forward(ids))


class Meeting(Normed):
    """Statistics over the rows of a pass."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(table)
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)


class RuledOut(Positions):
    def forward(self, ids):
        logits = super().forward(ids)
        return torch.cat([logits, torch.full_like(logits[:, :1], -torch.inf)], 1)


@pytest.mark.parametrize("kind", [Positions, Random, RandomByItself, Normed, Meeting, RuledOut])
@pytest.mark.parametrize("noise", ["weight", "local"])
def test_no_false_alarm(kind: type[Positions], noise: str) -> None:
    """They hold a tensor that could be one of rows, and answer row by row."""
    torch.manual_seed(0)
    ids, _ = sentences()
    net = kind(torch.randn(2000, 8))
    assert [name for name, _ in tensors_by_row(net, ROWS)] == ["table"]
    for source in (net, gs.to_bayesian(net, 0.2, posterior_std=0.3)):
        for rows in (ids[:2], ids):
            before = torch.get_rng_state()
            found = gs.predict(source, rows, 9, noise=noise)
            assert found.probs.shape[0] == len(rows)
            if kind is not Random:
                assert torch.equal(torch.get_rng_state(), before)


def test_a_random_network_draws_what_it_drew() -> None:
    """The check leaves torch's generator where it was."""
    ids, _ = sentences()
    net = Random(torch.randn(2000, 8))
    torch.manual_seed(3)
    found = gs.predict(net, ids).probs
    del net._buffers["table"]
    net.table = nn.Parameter(torch.zeros(1, 8))  # a parameter is never asked about
    assert not list(tensors_by_row(net, ROWS))
    torch.manual_seed(3)
    again = gs.predict(net, ids).probs
    assert torch.equal(found.isfinite(), again.isfinite())
    assert torch.equal(torch.get_rng_state(), _state_after(net, ids))


def _state_after(net: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        for block in ids.split(ROW_BLOCK):
            net(block)
    return torch.get_rng_state()


class Counted(Positions):
    calls = 0

    def forward(self, ids):
        type(self).calls += 1
        return super().forward(ids)


def test_a_network_without_such_tensors_runs_no_further_pass() -> None:
    ids, _ = sentences()
    posterior = posterior_of(Counted(torch.zeros(TOKENS, 8)))
    Counted.calls = 0
    posterior.predict(ids)
    assert Counted.calls == 2, "one pass per block"


def test_a_tensor_is_asked_about_once() -> None:
    ids, mask = sentences()
    net = Counted(torch.randn(2000, 8))
    posterior = posterior_of(net)
    Counted.calls = 0
    for _ in range(3):
        posterior.predict(ids)
    assert Counted.calls == 3 * 2 + 1
    net.table.mul_(2.0)  # it might hold rows now
    posterior.predict(ids)
    assert Counted.calls == 4 * 2 + 2
    held = Held(Pooled(), torch.ones(ROWS, TOKENS))
    posterior = posterior_of(held)
    posterior.predict(ids)
    held.mask = mask
    with pytest.raises(InvalidValue, match=SENTENCE):
        posterior.predict(ids)


def test_the_pass_is_small() -> None:
    """Eight rows where a table differs from row to row, and never more than its limit."""
    seen: list[int] = []

    class Sized(Positions):
        def forward(self, ids):
            seen.append(len(ids))
            return super().forward(ids)

    ids, _ = sentences()
    gs.predict(Sized(torch.randn(2000, 8)), ids)
    assert seen == [8, ROW_BLOCK, 44]
    seen.clear()
    late = torch.zeros(2000, 8)
    late[MOST_PLACES:] = 1.0
    gs.predict(Sized(late), ids)
    assert seen == [ROW_BLOCK, 44]


def test_threads_get_the_bits_of_one() -> None:
    ids, _ = sentences()
    net = gs.to_bayesian(Positions(torch.randn(2000, 8)), 0.2, posterior_std=0.3)
    wanted = [posterior_of(net).predict(rows, 9).samples for rows in (ids[:2], ids)]
    posterior = posterior_of(net)

    def ask(_: int) -> bool:
        found = [posterior.predict(rows, 9).samples for rows in (ids[:2], ids)]
        return all(map(torch.equal, found, wanted))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(12)))
