"""Replicas: other modules, the same tensors, the same numbers; and what cannot be replicated."""

from __future__ import annotations

import copy
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, MODELS, ids, mlp
from gossamer.errors import InvalidData, InvalidValue
from gossamer.nn import SparseLayer
from gossamer.nn.replica import Replicas, replicate


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
def test_the_same_numbers_over_the_same_tensors(case, engine):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(case.build(), 0.3, posterior_std=0.2, backend=engine).eval()
    twin = replicate(bnn)
    x = case.input()
    assert torch.equal(twin(x), bnn(x))
    with gs.sampling(bnn, seed=3):
        wanted = bnn(x)
        assert torch.equal(twin(x), twin(x)), "the other's state is not its own"
    with gs.sampling(twin, seed=3):
        assert torch.equal(twin(x), wanted)
    for (n, p), (m, q) in zip(bnn.named_parameters(), twin.named_parameters(), strict=True):
        assert n == m
        assert p is q
    mine, theirs = list(bnn.modules()), list(twin.modules())
    assert [type(m) for m in mine] == [type(m) for m in theirs], "shared modules stay shared"
    assert not {id(m) for m in mine} & {id(m) for m in theirs}


def test_modes_and_hooks_are_its_own():
    bnn = gs.to_bayesian(mlp(), 0.5).train()
    seen: list[nn.Module] = []
    bnn[0].register_forward_hook(lambda m, args, out: seen.append(m))
    twin = replicate(bnn).eval()
    assert bnn.training
    assert bnn[0].training
    twin(torch.randn(2, 6))
    assert seen == [twin[0]], "hooks come along and get the replica"
    twin[0].register_forward_hook(lambda m, args, out: seen.append("late"))
    bnn(torch.randn(2, 6))
    assert seen[-1] is bnn[0]


class Odd(nn.Module):
    """Its forward reaches its layers by every way but ``_modules``."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.way = way

    def tie(self) -> Odd:
        layer = self.layer
        ways = {
            "dict": {"a": [layer]},
            "tuple": (layer,),
            "hidden": layer,
            "method": layer.forward,
            "closure": lambda x: layer(x + 0.0),
            "partial": partial(nn.Module.__call__, layer),
            "weak": weakref.ref(layer),
            "object": Holder(layer),
        }
        self.__dict__["reach"] = ways[self.way]
        return self

    def forward(self, x):
        reach = self.reach
        if self.way == "dict":
            reach = reach["a"][0]
        elif self.way == "tuple":
            reach = reach[0]
        elif self.way == "weak":
            reach = reach()
        return reach(x)


class Holder:
    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "way", ["dict", "tuple", "hidden", "method", "closure", "partial", "weak", "object"]
)
def test_references_outside_of_the_registry_are_turned(way):
    """Unless they are, the original layer would answer: its mean, instead of a sample."""
    bnn = gs.to_bayesian(Odd(way), posterior_std=0.5)
    bnn.tie()
    bnn.eval()
    x = torch.randn(5, 4)
    twin = replicate(bnn)
    with gs.sampling(bnn, seed=1):
        wanted = bnn(x)
    with gs.sampling(twin, seed=1):
        assert torch.equal(twin(x), wanted)
    assert not torch.equal(twin(x), wanted)
    assert torch.equal(twin(x), bnn(x))


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.filterwarnings("ignore:only .* weights of linear maps:UserWarning")
def test_normed_weights(norm):
    net = nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2)).eval()
    bnn = gs.to_bayesian(net, exclude=["0*"], posterior_std=0.3, inplace=True).eval()
    x = torch.randn(3, 4)
    with gs.sampling(bnn, seed=0):
        wanted = bnn(x)
    twin = replicate(bnn)
    with gs.sampling(twin, seed=0):
        assert torch.equal(twin(x), wanted)


def test_a_compiled_model_predicts_as_what_it_was_compiled_from():
    bnn = gs.to_bayesian(mlp(), 0.5, posterior_std=0.3).eval()
    x = torch.randn(3, 6)
    compiled = torch.compile(bnn, backend="eager")
    assert type(replicate(compiled)) is type(bnn)
    assert torch.equal(gs.predict(compiled, x, 3).samples, gs.predict(bnn, x, 3).samples)
    bnn.compile(backend="eager")
    assert torch.equal(replicate(bnn)(x), bnn(x))


def test_other_tensors_of_another_size():
    torch.manual_seed(0)
    source = gs.to_sparse(mlp(), 0.2, backend="native").eval()
    target = gs.to_sparse(mlp(), 0.8, backend="native").eval()
    x = torch.randn(7, 6)
    before = copy.deepcopy(target.state_dict())
    twin = replicate(target, source.state_dict())
    assert torch.equal(twin(x), source(x))
    full = gs.to_sparse(mlp(), 0.0, backend="native").eval()
    assert torch.equal(replicate(target, full.state_dict())(x), full(x)), "without indices: full"
    assert torch.equal(replicate(full, target.state_dict())(x), target(x))
    for key, value in target.state_dict().items():
        assert torch.equal(value, before[key]), key
    layers = [m for m in target.modules() if isinstance(m, SparseLayer)]
    assert all(layer.nnz < layer.layout.numel for layer in layers)


def test_tensors_that_do_not_fit_are_refused_by_name():
    net = gs.to_sparse(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 0.5)
    state = dict(net.state_dict())
    name = next(n for n in state if n.endswith("indices"))
    with pytest.raises(InvalidData, match="must be 5 kept weights"):
        replicate(net, {name: state[name][:5]})
    with pytest.raises(InvalidValue, match=r"0.indices = .*positions must lie in"):
        replicate(net, {**state, name: state[name] + 1000})
    with pytest.raises(InvalidData, match=r"1.running_mean"):
        replicate(net, {"1.running_mean": torch.zeros(7)})


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_what_cannot_be_replicated_says_so():
    with pytest.raises(InvalidValue, match="without a shape yet; run one batch"):
        replicate(nn.Sequential(nn.LazyLinear(3)))
    scripted = nn.Sequential(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)))
    with pytest.raises(InvalidValue, match="training mode; call eval"):
        replicate(scripted)
    assert replicate(scripted.eval())(torch.ones(1, 3)).shape == (1, 2)
    net = nn.Sequential(nn.Linear(3, 2))
    net[0].__dict__["stranger"] = nn.Sequential(net[0])
    with pytest.raises(InvalidValue, match=r"stranger.*not registered"):
        replicate(net)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 2)
        return self.late(self.layer(x))


def test_parts_that_a_forward_pass_builds_are_refused():
    with pytest.raises(InvalidValue, match=r"builds parts of itself.*run one batch"):
        gs.predict(gs.to_bayesian(Lazy()), torch.ones(2, 3))
    bnn = gs.to_bayesian(Lazy())
    bnn(torch.ones(2, 3))
    assert gs.predict(bnn, torch.ones(2, 3)).probs.shape == (2, 2)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) + self.calls


class TestReplicas:
    def test_are_reused_and_never_lent_twice_at_once(self):
        replicas = Replicas(mlp())
        with replicas.borrow() as one, replicas.borrow() as two:
            assert one is not two
        with replicas.borrow() as three:
            assert three in (one, two)
            assert not three.training

    def test_one_that_remembers_a_pass_is_given_up(self):
        replicas = Replicas(Counting())
        with replicas.borrow() as one:
            first = one(torch.zeros(1, 3))
        with replicas.borrow() as two:
            assert torch.equal(two(torch.zeros(1, 3)), first)
        assert replicas.network.calls == 0

    def test_one_that_failed_is_given_up(self):
        replicas = Replicas(mlp())
        with pytest.raises(KeyError), replicas.borrow() as one:
            raise KeyError
        with replicas.borrow() as two:
            assert two is not one

    @pytest.mark.parametrize(
        "change",
        [
            lambda net: setattr(net[0], "indices", net[0].indices.clone()),
            lambda net: setattr(net[0], "bias", nn.Parameter(torch.ones(8))),
            lambda net: net[0].use_backend("masked"),
            lambda net: net.append(nn.Identity()),
            lambda net: net.register_forward_hook(lambda m, a, y: y + 1),
        ],
    )
    def test_a_change_of_the_network_is_seen(self, change):
        net = gs.to_sparse(nn.Sequential(nn.Linear(6, 8)), 0.5, backend="native").eval()
        replicas = Replicas(net)
        with replicas.borrow() as one:
            pass
        change(net)
        with replicas.borrow() as two:
            assert two is not one
            x = torch.randn(3, 6)
            assert torch.equal(two(x), net(x))
