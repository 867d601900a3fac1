"""State: round trips are bit-equal, damage is refused by name."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, MODELS, OneParameter, ids, mlp
from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers

every_model = pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
every_backend = pytest.mark.parametrize("engine", BACKENDS)
CONVERSIONS = {"bayesian": gs.to_bayesian, "sparse": gs.to_sparse}


def build(case, convert: str, seed: int, engine: str = "masked") -> nn.Module:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = CONVERSIONS[convert](case.build(), 0.5, generator=generator, backend=engine)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return net


def outputs(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The means, a draw, local noise, and a training pass."""
    results = [model.eval()(x)]
    for noise in ("weight", "local"):
        with gs.sampling(model, seed=3, noise=noise):
            results.append(model(x))
    torch.manual_seed(9)
    results.append(model.train()(x))
    return results


def equal(one: nn.Module, two: nn.Module, x: torch.Tensor) -> bool:
    pairs = zip(outputs(one, x), outputs(two, x), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@every_model
@every_backend
@pytest.mark.parametrize("convert", sorted(CONVERSIONS))
def test_a_state_dict_in_a_model_with_another_support(case, engine, convert):
    one, two = build(case, convert, 1, engine), build(case, convert, 2, engine)
    x = case.input()
    state = one.state_dict()
    assert any(not layer.support.is_full for layer in sparse_layers(one).values())
    assert not equal(one, two, x)
    one.load_state_dict(state)  # BatchNorm moved in the comparison
    two.load_state_dict(copy.deepcopy(state))
    assert equal(one, two, x)
    for a, b in zip(sparse_layers(one).values(), sparse_layers(two).values(), strict=True):
        assert a.support.same_as(b.support)


@every_model
@every_backend
def test_copies_and_casts(case, engine):
    net, x = build(case, "bayesian", 1, engine), case.input()
    twin = copy.deepcopy(net)
    assert equal(copy.deepcopy(net), twin, x)
    cast = copy.deepcopy(net).to(torch.float64).to(torch.float32).to("cpu")
    assert equal(cast, copy.deepcopy(net), x)
    with torch.no_grad():
        next(iter(sparse_layers(cast).values())).weight_mean.add_(1.0)
    assert not torch.equal(cast.eval()(x), net.eval()(x)), "copies share nothing"


@every_model
def test_torch_save_weights_only(case):
    """Tensors alone: the state loads without running any code from the file."""
    one, two = build(case, "bayesian", 1), build(case, "bayesian", 2)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file, weights_only=True))
    assert equal(one, two, case.input())


def test_double_precision_computes_in_double():
    net = gs.to_bayesian(mlp(), 0.5).to(torch.float64)
    assert all(p.dtype == torch.float64 for p in net.parameters())
    assert all(layer.indices.dtype == torch.int32 for layer in sparse_layers(net).values())
    y = net.train()(torch.randn(3, 6, dtype=torch.float64))
    assert y.dtype == torch.float64
    y.sum().backward()
    assert net[0].weight_raw_std.grad.dtype == torch.float64


def test_sharing_survives_copies_casts_and_state():
    one, two = (gs.to_bayesian(OneParameter(), 0.5) for _ in range(2))
    two.load_state_dict(one.state_dict())
    for net in (two, copy.deepcopy(one), copy.deepcopy(one).double()):
        assert net.first.weight_mean is net.second.weight_mean
        assert torch.equal(net.first.indices, net.second.indices)


def test_at_most_16_index_bytes_per_kept_weight():
    for layer in sparse_layers(gs.to_bayesian(mlp(), 0.5)).values():
        bytes_ = sum(
            b.numel() * b.element_size() for b in layer.buffers() if not b.is_floating_point()
        )
        assert bytes_ <= 16 * layer.nnz


def _replace(state, value):
    return {**state, "2.indices": value}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda i: i.flip(0), "positions must be sorted and distinct"),
        (lambda i: torch.cat([i[:1], i[:-1]]), "positions must be sorted and distinct"),
        (lambda i: torch.cat([i[:-1], torch.tensor([80])]), r"80: positions must lie in \[0, 80\)"),
        (lambda i: torch.cat([torch.tensor([-1]), i[1:]]), r"-1: positions must lie in \[0, 80\)"),
        (lambda i: i[None], "must be a vector of flat positions"),
        (lambda i: i + 0.25, "2.indices"),
    ],
    ids=["reversed", "repeated", "too-large", "negative", "matrix", "fractional"],
)
def test_damaged_indices_are_refused_by_name(damage, message):
    net = gs.to_bayesian(mlp(), 0.5)
    state = net.state_dict()
    kept = state["2.indices"].clone()
    with pytest.raises(InvalidValue, match=message) as caught:
        net.load_state_dict(_replace(state, damage(state["2.indices"])))
    assert "2.indices" in str(caught.value)
    assert torch.equal(net[2].indices, kept)


def test_a_state_of_another_size_is_refused():
    net = gs.to_bayesian(mlp(), 0.5)
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight_mean"):
        net.load_state_dict(gs.to_bayesian(mlp(), 0.6).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*indices"):
        net.load_state_dict(gs.to_bayesian(mlp()).state_dict())


def test_state_dict_names():
    """What a checkpoint holds: names are part of the contract."""
    state = gs.to_bayesian(nn.Linear(6, 4), 0.5).state_dict()
    assert list(state) == ["bias", "weight_mean", "weight_raw_std", "indices"]
    assert list(gs.to_sparse(nn.Linear(6, 4)).state_dict()) == ["bias", "weight_values"]
