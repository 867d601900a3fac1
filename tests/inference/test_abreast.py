"""Members abreast against the same members one beside the other, and their parts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import GossamerError, InvalidValue
from gossamer.inference.abreast import Abreast, Together, seen_shares
from gossamer.inference.batch import Batch
from gossamer.inference.joining import joined, joined_state, parted
from gossamer.inference.leaving import left_out
from gossamer.likelihoods import Gaussian
from gossamer.models import mlp
from gossamer.nn import to_sparse

MEMBERS = 4
ROWS = 48


def data(outputs: int = 1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, generator=generator)
    return x, torch.stack([x[:, i] + (2.0 * x[:, i + 1]).sin() for i in range(outputs)], 1)


def network(outputs: int = 1, **options: object):
    settings: dict[str, object] = {"hidden": (12, 9), **options}
    return lambda: mlp(input_shape=(5,), output_size=outputs, **settings)


def build(harvest: str, make=None, method: str = "rigl", **settings: object):
    torch.manual_seed(3)
    options: dict[str, object] = {"likelihood": "gaussian", "members": MEMBERS, **settings}
    if method == "rigl":
        options.setdefault("member_sparsity", 0.6)
    own = network() if make is None else make
    return gossamer.build(
        method,
        own,
        num_data=ROWS,
        total_steps=40,
        harvest=harvest,
        generator=torch.Generator().manual_seed(9),
        **options,
    )


def batches(count: int, leave_out: int = 0, outputs: int = 1, weighted: bool = False):
    x, y = data(outputs)
    generator = torch.Generator().manual_seed(5)
    dealt = left_out(ROWS, MEMBERS, leave_out, generator) if leave_out else None
    for _ in range(count):
        rows = torch.randperm(ROWS, generator=generator)[:16]
        weight = torch.rand(16, generator=generator) if weighted else None
        yield Batch(x[rows], y[rows], weight, None if dealt is None else dealt[rows])


def members_of(method):
    return method.posterior().members


FIXED = {"likelihood": Gaussian(0.3), "swap_fraction": 0.0}


@pytest.mark.parametrize(
    ("settings", "leave_out", "weighted"),
    [
        ({}, 0, False),
        ({}, 2, False),
        ({}, 2, True),
        ({"average": 0.25, "lr_floor": 0.3}, 2, False),
        ({"optimizer": "sgd", "lr": 0.05, "decay_biases": True}, 0, True),
    ],
)
def test_members_learn_what_they_learn_apart(settings, leave_out, weighted):
    """Without swaps and without a learnt noise, which they would share, to rounding."""
    options = {**FIXED, **settings, "leave_out": leave_out}
    apart, together = build("runs", **options), build("abreast", **options)
    for batch in batches(40, leave_out, weighted=weighted):
        one, other = apart.step(batch), together.step(batch)
        assert other.nll == pytest.approx(one.nll, rel=1e-3, abs=1e-4)
        assert other.lr == one.lr
    x, _ = data()
    for one, other in zip(members_of(apart), members_of(together), strict=True):
        assert int(one.size["nnz"]) == int(other.size["nnz"])
        torch.testing.assert_close(
            one.predict(x, 1).mean, other.predict(x, 1).mean, rtol=2e-3, atol=2e-3
        )


@pytest.mark.parametrize("backend", ["native", "masked"])
@pytest.mark.parametrize("options", [{}, {"skip": True, "columns": [0, 2, 3]}])
def test_members_begin_with_the_same_weights_as_apart(backend, options):
    apart, together = (
        build(harvest, network(2, **options), backend=backend) for harvest in ("runs", "abreast")
    )
    x, _ = data()
    for one, other in zip(members_of(apart), members_of(together), strict=True):
        mine, theirs = one.network(), other.network()
        assert [name for name, _ in mine.named_modules()] == [
            name for name, _ in theirs.named_modules()
        ]
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
        torch.testing.assert_close(one.predict(x, 1).mean, other.predict(x, 1).mean)


def test_the_total_is_exact_through_swaps_and_members_differ():
    method = build("abreast", update_every=5)
    total = method.posterior().size["nnz"]
    before = [member.network().state_dict() for member in copy.deepcopy(members_of(method))]
    swaps = sum(method.step(batch).swap is not None for batch in batches(40))
    assert swaps >= 4
    now = [member.network().state_dict() for member in members_of(method)]
    assert (
        method.posterior().size["nnz"]
        == total
        == sum(len(s["1.weight_values"]) for s in now)
        + (sum(len(s[k]) for s in now for k in ("3.weight_values", "5.weight_values")))
    )
    kept = [s["3.indices"].tolist() for s in now]
    assert any(b["3.indices"].tolist() != n for b, n in zip(before, kept, strict=True))
    assert kept[0] != kept[1]


def test_the_posterior_is_that_of_the_joined_network():
    """Parts are slices: what they answer is what the joined network computes, after swaps too."""
    method = build("abreast", network(3), update_every=5)
    for batch in batches(30, outputs=3):
        method.step(batch)
    x, _ = data()
    with torch.no_grad():
        whole = method.model.eval()(x).unflatten(1, (MEMBERS, 3))
    for number, member in enumerate(members_of(method)):
        torch.testing.assert_close(member.predict(x, 1).mean, whole[:, number])


def test_the_posterior_follows_later_steps_without_being_cut_anew():
    method = build("abreast", swap_fraction=0.0)
    first = method.posterior().members[0]
    x, _ = data()
    before = first.predict(x, 1).mean
    for batch in batches(3):
        method.step(batch)
    assert not torch.equal(first.predict(x, 1).mean, before)
    assert method.posterior().members[0].draws.network is first.draws.network


def test_resume_goes_on_bit_for_bit():
    one = build("abreast", update_every=5, leave_out=2)
    feed = list(batches(30, 2))
    for batch in feed[:14]:
        one.step(batch)
    other = build("abreast", update_every=5, leave_out=2)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for batch in feed[14:]:
        assert one.step(batch) == other.step(batch)
    x, _ = data()
    assert torch.equal(one.posterior().predict(x, 4).mean, other.posterior().predict(x, 4).mean)


def test_a_foreign_state_is_refused():
    method = build("abreast")
    with pytest.raises(InvalidValue, match="not saved by a rigl run"):
        method.load_state_dict(build("runs").state_dict())
    with pytest.raises(InvalidValue, match="not saved by a rigl run"):
        method.load_state_dict(build("abreast", members=2).state_dict())


def test_classes_abreast():
    torch.manual_seed(0)
    method = build("abreast", network(3), likelihood="categorical")
    x, _ = data()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    infos = [method.step((x, y)) for _ in range(40)]
    outputs = method.model(x).unflatten(1, (MEMBERS, 3))
    right = outputs.argmax(2) == y[:, None]
    assert method.likelihood.name == "categorical"
    assert infos[-1].nll < infos[0].nll - 0.05
    assert infos[-1].accuracy == pytest.approx(float(right.float().mean()), abs=0.02)
    probs = torch.stack([member.predict(x, 1).probs for member in members_of(method)])
    torch.testing.assert_close(method.posterior().predict(x, MEMBERS).probs, probs.mean(0))


def test_dense_members_abreast():
    method = build("abreast", method="sgd")
    assert isinstance(method, Abreast)
    assert method.posterior().size["sparsity"] == 0.0
    method.step(next(iter(batches(1))))


def test_shares_are_means_over_what_a_member_sees():
    x, y = data()
    gone = left_out(ROWS, MEMBERS, 2, torch.Generator().manual_seed(1))
    batch = Batch(x, y, None, gone)
    values = torch.randn(ROWS, MEMBERS)
    found = (values * seen_shares(batch, MEMBERS)).mean(0)
    for number in range(MEMBERS):
        kept = (gone != number).all(1)
        torch.testing.assert_close(found[number], values[kept, number].mean())
    few = Batch(x[:2], y[:2], None, torch.tensor([[0, 2], [1, 3]]))
    assert torch.equal(seen_shares(few, MEMBERS), torch.zeros(2, MEMBERS)), "one row is too few"
    assert seen_shares(Batch(x, y), MEMBERS) is None


def test_a_layer_that_members_keep_whole_is_not_armed():
    """The joined network divides its weights otherwise than its members did: they win."""
    method = build("abreast", network(hidden=(16,)), member_sparsity=0.5)
    assert members_of(method)[0].network()[3].nnz == 16, "the last layer of a member is whole"
    for batch in batches(6):
        method.step(batch)


def test_full_and_partial_layers_are_cut_alike():
    """A layer that one member keeps whole and another does not, as swaps may leave it."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2)]
    sparse = [to_sparse(nets[0], 0.0), to_sparse(nets[1], 0.4)]
    whole = to_sparse(joined(nets), 0.2)
    gossamer.nn.adopt(whole, joined_state(sparse))
    x = torch.randn(6, 3)
    for one, other in zip(sparse, parted(whole, nets[0], 2), strict=True):
        torch.testing.assert_close(one(x), other(x))
        assert [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 1)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (Own, {}, "is|may mix|Own"),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), {}, "1"),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(), nn.Linear(4, 1)), {}, "Dropout"),
        (None, {"clip_norm": 1.0}, "clip_norm"),
        (None, {"method": "ssvi"}, "noise"),
        (None, {"method": "ngvi"}, "abreast"),
    ],
)
def test_what_cannot_lie_abreast_is_refused_with_the_way(make, settings, words):
    with pytest.raises(GossamerError, match=words) as raised:
        build("abreast", make, member_sparsity=0.5, **settings)
    assert "harvest='runs'" in str(raised.value)


def test_the_likelihood_of_all_is_the_sum_of_each():
    own = Gaussian("learn")
    together = Together(own, 3)
    output, target = torch.randn(7, 6), torch.randn(7, 2)
    apart = sum(own.log_lik(output[:, 2 * k : 2 * k + 2], target) for k in range(3))
    torch.testing.assert_close(together.log_lik(output, target), apart)
