"""Layers that shrink, grow and move: against masked dense networks and plain dictionaries."""

from __future__ import annotations

import copy
from functools import partial
from math import prod

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from cases.engines import needs_native
from gossamer.core.support import Support
from gossamer.errors import InvalidValue
from gossamer.nn import adopt, move, sparse_layers, weights_of
from gossamer.ops import Growth
from gossamer.optim import CVSGHMC

ENGINES = ["masked", pytest.param("native", marks=needs_native)]
every_engine = pytest.mark.parametrize("engine", ENGINES)


def dense_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2),
        nn.Flatten(),
        nn.Linear(75, 6),
        nn.ReLU(),
        nn.Linear(6, 2, bias=False),
    )


X = (5, 2, 6, 6)


def masked_output(net: nn.Module, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The plain network ``net`` with the weights of ``model`` scattered by hand."""
    plain = copy.deepcopy(net).to(x.dtype)
    for name, layer in sparse_layers(model).items():
        weight = torch.zeros(prod(layer.layout.shape), dtype=x.dtype)
        for position, value in zip(
            layer.support.positions().tolist(), layer.leading().tolist(), strict=True
        ):
            weight[position] = value
        module = plain.get_submodule(name)
        module.weight.data = weight.view(layer.layout.shape)
        if layer.bias is not None:
            module.bias.data = layer.bias.data.clone()
    return plain(x)


def keep_some(group, share: float, seed: int = 0) -> torch.Tensor:
    """Sorted positions within the present support, and their places in it."""
    generator = torch.Generator().manual_seed(seed)
    nnz = group.layer.nnz
    count = round(share * nnz)
    return torch.randperm(nnz, generator=generator)[:count].sort().values


def shrink(model: nn.Module, share: float, seed: int = 0) -> None:
    for number, group in enumerate(weights_of(model)):
        kept = keep_some(group, share, seed + number)
        positions = group.layer.support.positions()[kept]
        move(group, Support.from_positions(positions, group.layer.layout.shape), kept)


@every_engine
@pytest.mark.parametrize("sparsity", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shrinking_again_and_again_equals_masking_the_dense_network(engine, sparsity, dtype):
    net = dense_net()
    model = gs.to_sparse(net, sparsity, backend=engine).to(dtype)
    x = torch.randn(X, dtype=dtype)
    parameters = [id(p) for p in model.parameters()]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for round_ in range(4):
        model(x).square().sum().backward()
        held = {n: layer.leading().detach().clone() for n, layer in sparse_layers(model).items()}
        before = {n: layer.support.positions() for n, layer in sparse_layers(model).items()}
        grads = {n: layer.leading().grad.clone() for n, layer in sparse_layers(model).items()}
        shrink(model, 0.6, seed=round_)
        assert [id(p) for p in model.parameters()] == parameters, "no parameter is replaced"
        for name, layer in sparse_layers(model).items():
            assert layer.leading().dtype == dtype
            assert layer.nnz == layer.leading().numel() == layer.indices.numel()
            assert layer.indices.dtype == torch.int32
            kept = torch.isin(before[name], layer.support.positions())
            assert torch.equal(layer.leading().detach(), held[name][kept]), "values follow"
            assert torch.equal(layer.leading().grad, grads[name][kept]), "and so do gradients"
            layer.leading().grad = None
        torch.testing.assert_close(
            model(x), masked_output(net, model, x), rtol=tolerance, atol=tolerance
        )


@every_engine
def test_growing_back_to_a_full_support(engine):
    net = dense_net()
    model = gs.to_sparse(net, 0.7, backend=engine).double()
    for group in weights_of(model):
        full = Support.full(group.layer.layout.shape)
        before = group.values.detach().clone()
        source = group.layer.support.slots(full.positions())
        kept = source >= 0
        move(group, full, source)
        assert group.layer.indices is None
        assert torch.equal(group.values.detach()[kept], before)
        assert not group.values.detach()[~kept].any()
        torch.nn.init.normal_(group.values)
    x = torch.randn(X, dtype=torch.float64)
    torch.testing.assert_close(model(x), masked_output(net, model, x), rtol=1e-12, atol=1e-12)
    assert "4.indices" not in model.state_dict()


@every_engine
@pytest.mark.parametrize("target", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("source", [0.0, 0.5, 0.9])
def test_any_state_goes_into_any_fresh_model(engine, source, target):
    net = dense_net()
    one = gs.to_sparse(net, source, backend=engine)
    two = gs.to_sparse(dense_net(), target, backend=engine)
    x = torch.randn(X)
    parameters = [id(p) for p in two.parameters()]
    before = copy.deepcopy(one.state_dict())
    adopt(two, one.state_dict())
    assert [id(p) for p in two.parameters()] == parameters
    assert torch.equal(one(x), two(x))
    with torch.no_grad():
        for p in two.parameters():
            p.add_(1.0)
    for layer in sparse_layers(two).values():
        if layer.indices is not None:
            layer.indices.zero_()
    for key, value in one.state_dict().items():
        assert torch.equal(value, before[key]), "the copy is independent"


def test_a_model_of_the_same_sizes_is_loaded_in_place():
    """Nothing has to be resized then, so that gradients and compiled graphs stay."""
    one, two = gs.to_sparse(dense_net(), 0.5), gs.to_sparse(dense_net(), 0.5)
    two(torch.randn(X)).sum().backward()
    places = [p.data_ptr() for p in two.parameters()]
    adopt(two, one.state_dict())
    assert [p.data_ptr() for p in two.parameters()] == places
    assert all(p.grad is not None for p in two.parameters())


class Tied(nn.Module):
    """One weight under two names of layers, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.again = self.c

    def forward(self, x):
        return self.again(F.relu(self.c(self.b(F.relu(self.a(x))))))


@every_engine
def test_shared_weights_shrink_in_all_their_places(engine):
    net = Tied()
    model = gs.to_sparse(net, 0.3, backend=engine)
    x = torch.randn(3, 4)
    groups = weights_of(model)
    assert sorted(len(g.layers) for g in groups) == [1, 2]
    shrink(model, 0.5)
    assert model.a.leading() is model.b.leading()
    assert model.a.nnz == model.b.nnz
    dense = {n: getattr(model, n).weight.detach() for n in "abc"}
    hidden = F.linear(F.relu(F.linear(x, dense["a"], net.a.bias)), dense["b"], net.b.bias)
    wanted = F.linear(F.relu(F.linear(hidden, dense["c"], net.c.bias)), dense["c"], net.c.bias)
    torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-6)
    fresh = gs.to_sparse(Tied(), 0.1, backend=engine)
    adopt(fresh, model.state_dict())
    assert fresh.a.leading() is fresh.b.leading()
    assert torch.equal(fresh(x), model(x))


def test_a_layer_that_is_the_whole_model():
    model = gs.to_sparse(nn.Linear(5, 3), 0.5)
    other = gs.to_sparse(nn.Linear(5, 3), 0.2)
    adopt(other, model.state_dict())
    x = torch.randn(2, 5)
    assert torch.equal(model(x), other(x))


@every_engine
@pytest.mark.parametrize("bayesian", [False, True])
@pytest.mark.parametrize("size", [3, 12, 20, 40])
@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.SGD, momentum=0.9)]
)
def test_everything_follows_to_a_support_of_any_size(engine, bayesian, size, kind):
    """Against dictionaries from position to value: parameters, gradients, optimiser state."""
    torch.manual_seed(size)
    net = nn.Linear(8, 5)
    convert = gs.to_bayesian if bayesian else gs.to_sparse
    model = convert(net, 0.7, backend=engine)
    opt = kind(gs.parameter_groups(model, lr=0.01))
    for _ in range(2):
        opt.zero_grad()
        model(torch.randn(6, 8)).square().sum().backward()
        opt.step()
    (weight,) = weights_of(model)
    old = weight.layer.support.positions().tolist()
    std = None if not bayesian else model.weight_std.detach().clone()

    def values() -> dict[str, list[float]]:
        found = {}
        for vector in weight.layer.vectors:
            found[vector.name] = vector.parameter.detach().tolist()
            found[f"{vector.name}.grad"] = vector.parameter.grad.tolist()
            for key, value in opt.state[vector.parameter].items():
                if value.dim() > 0:
                    found[f"{vector.name}.{key}"] = value.tolist()
        return found

    before = values()
    support = Support.random((5, 8), size)
    new = support.positions().tolist()
    move(weight, support, weight.layer.support.slots(support.positions()), optimizer=opt)
    stayed = [old.index(p) for p in new if p in old]
    for name, vector in values().items():
        table = dict(zip(old, before[name], strict=True))
        kept = [before[name][i] for i in stayed] or before[name]
        fresh = sum(kept) / len(kept) if "sq" in name else 0.0
        if name == "weight_raw_std":
            assert std is not None
            fresh = float(torch.log(torch.expm1(std[stayed].mean() if stayed else std.mean())))
        wanted = [table.get(p, fresh) for p in new]
        assert vector == pytest.approx(wanted, rel=1e-5, abs=1e-12), name
    assert weight.layer.nnz == size
    opt.step()
    opt.zero_grad()
    model(torch.randn(6, 8)).square().sum().backward()
    opt.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [4, 30])
def test_a_loss_that_is_still_alive_does_not_hold_the_old_length(dtype, size):
    """A plain loop keeps its last loss; the next backward must meet the new length."""
    model = gs.to_bayesian(nn.Linear(8, 5), 0.7).to(dtype)
    opt = torch.optim.Adam(gs.parameter_groups(model, lr=0.01))
    (weight,) = weights_of(model)
    for _ in range(3):
        loss = model(torch.randn(6, 8, dtype=dtype)).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        support = Support.random((5, 8), size if weight.layer.nnz != size else size + 3)
        move(weight, support, weight.layer.support.slots(support.positions()), optimizer=opt)
    assert float(loss.detach()) > 0.0
    assert weight.values.grad.numel() == weight.layer.nnz


def test_two_weights_may_move_to_one_support():
    """A support is a value: moving one of them again must not move the other."""
    model = gs.to_sparse(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 0.5)
    one, two = weights_of(model)
    support = Support.from_positions(torch.arange(4), (4, 4))
    for weight in (one, two):
        move(weight, support, torch.full((4,), -1))
    move(one, Support.from_positions(torch.arange(8, 12), (4, 4)), torch.full((4,), -1))
    assert two.layer.support.positions().tolist() == support.positions().tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("error")
def test_weights_that_enter_under_a_sampler_move_and_have_a_prior():
    """What an optimiser keeps of its own it says for fresh weights: nothing is frozen by zeros."""
    model = gs.to_sparse(nn.Linear(8, 4, bias=False), 0.5)
    (weight,) = weights_of(model)
    opt = CVSGHMC(model.parameters(), lr=1e-3, num_data=10, temperature=1.0, weight_decay=0.3)
    model(torch.randn(3, 8)).sum().backward()
    opt.step()
    opt.set_decay(weight.values, torch.full((16,), 5.0))
    opt.set_frozen(weight.values, torch.ones(16, dtype=torch.bool))
    full = Support.full((4, 8))
    source = weight.layer.support.slots(full.positions())
    fresh = source < 0
    move(weight, full, source, optimizer=opt)
    state = opt.state[weight.values]
    assert state["decay"][fresh].tolist() == pytest.approx([0.3] * 16)
    assert set(state["decay"][~fresh].tolist()) == {5.0}
    before = weight.values.detach().clone()
    model(torch.randn(3, 8)).sum().backward()
    opt.step()
    moved = weight.values.detach() != before
    assert moved[fresh].all()
    assert not moved[~fresh].any()


def test_refusals():
    model = gs.to_sparse(nn.Sequential(nn.Linear(4, 3)), 0.5)
    weight = weights_of(model)[0]
    before = copy.deepcopy(model.state_dict())
    some = torch.tensor([1, 5, 7], dtype=torch.int32)
    slots = torch.tensor([0, 1, 2])
    for indices, source, message in (
        (None, torch.zeros(5, dtype=torch.int64), r"source.*\(5,\).*\(12,\)"),
        (some, slots[:2], r"source.*\(2,\).*\(3,\)"),
        (some, slots[:, None], r"source.*\(3, 1\).*\(3,\)"),
        (some, slots + 4, r"source.*slots in \[0, 6\)"),
        (some, slots - 2, "source.*or -1"),
        (some + 5, slots, r"indices of 0.*12.*\[0, 12\)"),
        (some - 2, slots, r"indices of 0.*-1"),
        (some.flip(0), slots, "sorted and distinct"),
        (torch.tensor([1, 1, 2]), slots, "sorted and distinct"),
    ):
        with pytest.raises(InvalidValue, match=message):
            move(weight, Support((3, 4), indices), source)
    with pytest.raises(InvalidValue, match=r"support shape = \(4, 3\): must equal \(3, 4\)"):
        move(weight, Support((4, 3), some), slots)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_refused_inside_a_compiled_function():
    model = gs.to_sparse(nn.Linear(4, 3), 0.5)
    (weight,) = weights_of(model)
    smaller = Support.from_positions(weight.layer.support.positions()[:3], (3, 4))

    def step() -> None:
        move(weight, smaller, torch.arange(3))

    with pytest.raises(InvalidValue, match="between steps"):
        torch.compile(step, backend="eager")()


@every_engine
def test_damaged_states_are_refused(engine):
    model = gs.to_sparse(nn.Sequential(nn.Linear(8, 4)), 0.5, backend=engine)
    good = copy.deepcopy(model.state_dict())
    for damage, message in (
        ({"0.indices": good["0.indices"] + 31}, r"must lie in \[0, 32\)"),
        ({"0.indices": good["0.indices"].flip(0)}, "positions must"),
        ({"0.indices": good["0.indices"][:3]}, "values|size mismatch"),
    ):
        with pytest.raises((InvalidValue, RuntimeError), match=message):
            adopt(model, {**good, **damage})
    missing = {k: v for k, v in good.items() if k != "0.indices"}
    with pytest.raises(RuntimeError, match="Missing key"):
        adopt(model, missing)


# --- few live input columns ----------------------------------------------------------------------


def put(layer: nn.Module, positions: torch.Tensor, values: torch.Tensor) -> None:
    """The layer on the given positions with the given values."""
    (weight,) = weights_of(layer)
    support = Support.from_positions(positions, layer.layout.shape)
    move(weight, support, torch.full((support.nnz,), -1))
    with torch.no_grad():
        weight.values.copy_(values)


def few_columns(outputs: int, inputs: int, live: list[int], seed: int = 0) -> nn.Module:
    """A masked linear layer that reads the given columns, each at random outputs."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(outputs, inputs, dtype=torch.bool)
    for column in live:
        mask[:, column] = torch.rand(outputs, generator=generator) < 0.6
        mask[column % outputs, column] = True
    layer = gs.to_sparse(nn.Linear(inputs, outputs), 0.0, backend="masked").double()
    positions = mask.flatten().nonzero().squeeze(1)
    values = torch.randn(positions.numel(), generator=generator, dtype=torch.float64)
    put(layer, positions, values)
    return layer


@pytest.mark.parametrize("rows", [(), (1,), (7,), (2, 3), (0,)])
@pytest.mark.parametrize("live", [[0], [11], [3, 4, 9], [0, 2, 5, 7, 8, 11], list(range(7))])
def test_reading_few_columns_equals_the_dense_product(live, rows):
    layer = few_columns(5, 12, live)
    assert bool(layer.pattern.derived) == (len(live) <= 6), "gathered up to half of the inputs"
    x = torch.randn(*rows, 12, dtype=torch.float64, requires_grad=True)
    seen = x.detach().clone().requires_grad_()
    weight = torch.zeros(60, dtype=torch.float64)
    weight[layer.support.positions()] = layer.leading().detach()
    dense = weight.view(5, 12).requires_grad_()
    bias = layer.bias.detach().clone().requires_grad_()
    wanted = F.linear(seen, dense, bias)
    found = layer(x)
    assert found.shape == (*rows, 5)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(wanted)
    found.backward(upstream)
    wanted.backward(upstream)
    positions = layer.support.positions()
    for ours, theirs in (
        (layer.leading().grad, dense.grad.flatten()[positions]),
        (x.grad, seen.grad),
        (layer.bias.grad, bias.grad),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@every_engine
def test_an_empty_support_gives_the_bias(engine):
    layer = gs.to_sparse(nn.Linear(6, 3), 0.5, backend=engine).double()
    put(layer, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64))
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    assert torch.equal(out, layer.bias.expand(4, 3))
    out.sum().backward()
    assert layer.leading().grad.shape == (0,)
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(layer.bias.grad, torch.full((3,), 4.0, dtype=torch.float64))


def test_growth_sees_the_columns_that_are_not_read():
    """An armed layer scores all positions off its support, so it must not compact."""
    layer = few_columns(4, 10, [2, 7])
    assert layer.pattern.derived
    x = torch.randn(6, 10, dtype=torch.float64)
    plain = layer(x)
    off = 40 - layer.nnz
    layer.growth = Growth.empty(layer.support, off, x.device, keep_dense=False)
    armed = layer(x)
    torch.testing.assert_close(armed, plain, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(armed)
    armed.backward(upstream)
    dense = (upstream.T @ x).flatten()
    positions = layer.support.positions()
    torch.testing.assert_close(layer.leading().grad, dense[positions], rtol=1e-12, atol=1e-12)
    free = torch.ones(40, dtype=torch.bool)
    free[positions] = False
    caught = torch.zeros(40, dtype=torch.float64)
    caught[layer.growth.positions] = layer.growth.scores.double()
    wanted = torch.where(free, dense.abs(), 0.0)
    torch.testing.assert_close(caught, wanted, rtol=1e-6, atol=1e-6)


def test_compaction_survives_copies_moves_and_engines():
    layer = few_columns(5, 12, [1, 6, 10])
    x = torch.randn(3, 12, dtype=torch.float64)
    wanted = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), wanted)
    single = copy.deepcopy(layer).to(torch.float32)
    assert single.indices.dtype == torch.int32
    torch.testing.assert_close(single(x.float()), wanted.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(single.to(torch.float64).pattern.derived[0], layer.pattern.derived[0])
    assert not [k for k in layer.state_dict() if k.startswith("pattern_")], "derived, never saved"
    # More columns: what was prepared for few must go.
    put(layer, torch.arange(60), torch.randn(60, dtype=torch.float64))
    assert not [n for n, _ in layer.named_buffers() if n.startswith("pattern_")]
    dense = layer.leading().detach().view(5, 12)
    torch.testing.assert_close(layer(x), F.linear(x, dense, layer.bias), rtol=1e-12, atol=1e-12)


@needs_native
def test_switching_engines_leaves_nothing_of_the_other():
    layer = few_columns(5, 12, [1, 6, 10]).float()
    x = torch.randn(3, 12)
    wanted = layer(x)
    masked = {n for n, _ in layer.named_buffers()}
    assert masked == {"indices", "pattern_live", "pattern_compact"}
    layer.use_backend("native")
    assert not masked & {n for n, _ in layer.named_buffers()} - {"indices"}
    torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-6)
    layer.use_backend("masked")
    assert {n for n, _ in layer.named_buffers()} == masked
    assert torch.equal(layer(x), wanted)


def test_indices_changed_in_place_are_noticed():
    layer = few_columns(2, 8, [1, 2])
    x = torch.randn(3, 8, dtype=torch.float64)
    layer(x)
    with torch.no_grad():
        layer.indices.copy_(layer.indices + 3)
    dense = torch.zeros(16, dtype=torch.float64)
    dense[layer.support.positions()] = layer.leading().detach()
    wanted = F.linear(x, dense.view(2, 8), layer.bias)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-12, atol=1e-12)
