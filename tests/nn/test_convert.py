"""Conversion to sparse Bayesian and sparse layers and back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from cases.zoo import LAYERS, MODELS, convnet, ids, mlp
from gossamer.core.allocation import DISTRIBUTION
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import (
    BayesianConv2d,
    BayesianLinear,
    SparseConv2d,
    SparseLinear,
    sparse_layers,
    weights_of,
)

every_model = pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
CONVERSIONS = [gs.to_bayesian, gs.to_sparse]


@st.composite
def networks(draw):
    """A chain of tiny layers of every kind; only shapes of weights matter."""
    small = st.integers(1, 5)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        a, b, k = draw(small), draw(small), draw(st.integers(1, 3))
        makers = [
            lambda a=a, b=b: nn.Linear(a, b),
            lambda a=a, b=b, k=k: nn.Conv2d(a, b, k),
            lambda a=a, k=k: nn.Conv1d(a, 2 * a, k, groups=a),
            lambda a=a, b=b, k=k: nn.ConvTranspose1d(2 * a, 2 * b, k, groups=2),
        ]
        layers.append(draw(st.sampled_from(makers))())
    return nn.Sequential(*layers)


@given(
    networks(),
    st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99]),
    st.sampled_from(sorted(DISTRIBUTION)),
    st.sampled_from(CONVERSIONS),
)
@settings(max_examples=80, deadline=None)
@example(nn.Sequential(nn.Linear(1, 1)), 0.0, "uniform_dense_first", gs.to_sparse)
@example(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), 0.5, "erk", gs.to_bayesian)
def test_the_number_kept_is_exact(net, sparsity, distribution, convert):
    total = sum(layer.weight.numel() for layer in net)
    budget = round((1.0 - sparsity) * total)
    first = net[0].weight.numel()
    impossible = budget < len(net)
    if distribution == "uniform_dense_first":
        impossible |= budget - first < len(net) - 1
    if impossible:
        with pytest.raises(InvalidValue, match="sparsity"):
            convert(net, sparsity, sparsity_distribution=distribution)
        return
    layers = sparse_layers(convert(net, sparsity, sparsity_distribution=distribution)).values()
    assert len(layers) == len(net)
    assert sum(layer.nnz for layer in layers) == budget
    assert all(1 <= layer.nnz <= layer.layout.numel for layer in layers)
    assert all(layer.leading().shape == (layer.nnz,) for layer in layers)


@every_model
@pytest.mark.parametrize("convert", CONVERSIONS)
def test_every_model_of_the_zoo_meets_its_budget(case, convert):
    net = case.build()
    converted = convert(net, 0.7)
    kept = sum(group.layer.nnz for group in weights_of(converted))
    size = sum(group.layer.layout.numel for group in weights_of(converted))
    assert kept == round((1 - 0.7) * size)
    assert torch.isfinite(converted.eval()(case.input())).all()


def test_means_are_the_weights_divided_by_the_root_of_the_density():
    net = mlp()
    bnn = gs.to_bayesian(net, 0.8)
    for name, layer in sparse_layers(bnn).items():
        own = net.get_submodule(name).weight.detach().flatten()[layer.support.positions()]
        expected = own / np.sqrt(layer.nnz / layer.layout.numel)
        torch.testing.assert_close(layer.weight_mean.detach(), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(layer.bias, net.get_submodule(name).bias, rtol=0, atol=0)


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_rescale_can_be_switched_off(convert):
    net = mlp()
    for name, layer in sparse_layers(convert(net, 0.8, rescale=False)).items():
        own = net.get_submodule(name).weight.detach().flatten()[layer.support.positions()]
        assert torch.equal(layer.leading().detach(), own)


def test_a_full_support_keeps_every_weight_as_it_is():
    net = mlp()
    for name, layer in sparse_layers(gs.to_bayesian(net).eval()).items():
        assert torch.equal(layer.weight, net.get_submodule(name).weight)


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_magnitude_keeps_the_largest_without_rescaling(convert):
    net = convnet()
    sparse = convert(net, 0.6, support="magnitude")
    for name, layer in sparse_layers(sparse).items():
        own = net.get_submodule(name).weight.detach().flatten()
        kept = layer.support.positions()
        assert torch.equal(layer.leading().detach(), own[kept])
        dropped = own[~layer.support.contains(torch.arange(own.numel()))]
        assert own[kept].abs().min() >= dropped.abs().max()


def test_activations_keep_their_scale():
    """1/√density: for white inputs the output's variance, Σw², stays that of the dense layer.

    Mean ratio over 200 supports: its standard error is 1 %, the effect without rescaling 90 %.
    """
    net = nn.Linear(400, 1, bias=False)
    dense = float(net.weight.detach().square().sum())
    ratios = []
    for seed in range(200):
        sparse = gs.to_sparse(net, 0.9, generator=torch.Generator().manual_seed(seed))
        ratios.append(float(sparse.weight_values.detach().square().sum()) / dense)
    assert abs(np.mean(ratios) - 1) < 0.04


@every_model
@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize("sparsity", [0.0, 0.6])
def test_the_way_back_computes_the_same(case, convert, sparsity):
    torch.manual_seed(1)
    net = case.build()
    converted = convert(net, sparsity, rescale=False).eval()
    back = gs.to_deterministic(converted)
    assert not sparse_layers(back)
    assert [type(m) for m in back.modules()] == [type(m) for m in net.modules()]
    x = case.input()
    # Same products in the same engine; a fused kernel may round once more.
    torch.testing.assert_close(back(x), converted(x), rtol=1e-5, atol=1e-6)
    assert set(back.state_dict()) == set(net.state_dict())
    if sparsity == 0.0:
        for name, value in net.state_dict().items():
            assert torch.equal(back.state_dict()[name], value), name


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own
@pytest.mark.parametrize("case", LAYERS, ids=ids(LAYERS))
def test_the_way_back_keeps_the_geometry(case):
    module = case.build()
    back = gs.to_deterministic(gs.to_bayesian(module))
    assert type(back) is type(module)
    x = torch.randn(case.shape)
    expected = module(x, **case.call)
    torch.testing.assert_close(back(x, **case.call), expected, rtol=1e-5, atol=1e-6)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups"):
        assert getattr(back, name, None) == getattr(module, name, None)


def test_copy_by_default_and_in_place_on_request():
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    bnn = gs.to_bayesian(net, 0.5)
    assert bnn is not net
    assert isinstance(net[0], nn.Linear)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items()), "nothing is shared"
    first = net[0]
    again = gs.to_bayesian(net, 0.5, inplace=True)
    assert again is net
    assert isinstance(net[0], BayesianLinear)
    assert net[0].bias is first.bias, "biases are taken over as they are"
    assert gs.to_deterministic(net) is not net
    assert gs.to_deterministic(net, inplace=True) is net
    assert isinstance(net[0], nn.Linear)


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_dtype_mode_and_requires_grad_are_kept(convert):
    net = mlp().double()
    net[0].eval()
    net[2].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    converted = convert(net, 0.5)
    assert all(p.dtype == torch.float64 for p in converted.parameters())
    assert [converted[i].training for i in (0, 2, 4)] == [False, True, True]
    for name, layer in sparse_layers(converted).items():
        for key, parameter in layer.named_parameters():
            frozen = (name, key[:6]) in {("2", "weight"), ("4", "bias")}
            assert parameter.requires_grad == (not frozen), (name, key)
    back = gs.to_deterministic(converted)
    assert [back[i].training for i in (0, 2, 4)] == [False, True, True]
    assert [back[i].weight.requires_grad for i in (0, 2, 4)] == [True, False, True]
    assert not back[4].bias.requires_grad
    assert back[0].weight.dtype == torch.float64


def test_the_generator_decides_alone():
    net = mlp()
    state = torch.get_rng_state()
    one = gs.to_bayesian(net, 0.5, generator=torch.Generator().manual_seed(4))
    assert torch.equal(state, torch.get_rng_state()), "the global generator is not used"
    two = gs.to_bayesian(net, 0.5, generator=torch.Generator().manual_seed(4))
    three = gs.to_bayesian(net, 0.5, generator=torch.Generator().manual_seed(5))
    for a, b, c in zip(*(sparse_layers(m).values() for m in (one, two, three)), strict=True):
        assert a.support.same_as(b.support)
        assert not a.support.same_as(c.support)
    torch.manual_seed(6)
    by_default = gs.to_bayesian(net, 0.5)
    torch.manual_seed(6)
    again = gs.to_bayesian(net, 0.5)
    assert by_default[0].support.same_as(again[0].support)


def test_classes():
    bayesian, sparse = gs.to_bayesian(convnet()), gs.to_sparse(convnet())
    assert [type(m) for m in sparse_layers(bayesian).values()] == [
        BayesianConv2d,
        BayesianConv2d,
        BayesianLinear,
    ]
    assert [type(m) for m in sparse_layers(sparse).values()] == [
        SparseConv2d,
        SparseConv2d,
        SparseLinear,
    ]
    assert isinstance(bayesian[1], nn.BatchNorm2d)
    names = {n for n, _ in sparse[0].named_parameters()}
    assert names == {"weight_values"}, "one parameter, ordinary, 1-D"


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sparsity": 1}, InvalidValue, r"sparsity = 1: must lie in \[0, 1\)"),
        ({"sparsity": -0.1}, InvalidValue, r"sparsity = -0.1: must lie in \[0, 1\)"),
        ({"sparsity": 0.9999}, InvalidValue, "one would be empty; use at most"),
        (
            {"sparsity": 0.9, "sparsity_distribution": "uniform_dense_first"},
            InvalidValue,
            "layer 0 alone has 60 of the 16 weights",
        ),
        ({"sparsity_distribution": "er"}, UnknownName, "sparsity_distribution = er: is not known"),
        ({"support": "biggest"}, UnknownName, "choose one of: magnitude, random"),
        ({"backend": "dense"}, UnknownName, "backend = dense: is not known"),
        ({"include": ["nothing"]}, InvalidValue, "include = 'nothing': matches no module"),
        ({"exclude": ["*"]}, InvalidValue, "has no layer to convert"),
    ],
)
def test_wrong_arguments(convert, arguments, error, message):
    net = mlp()
    with pytest.raises(error, match=message) as caught:
        convert(net, **arguments, inplace=True)
    assert "\n" not in str(caught.value)
    assert all(isinstance(net[i], nn.Linear) for i in (0, 2, 4)), "a refused model is untouched"


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_models_that_cannot_be_converted(convert):
    with pytest.raises(
        InvalidValue,
        match=r"model = Embedding: has no layer to convert; found Embedding \(9 weights, root:",
    ):
        convert(nn.Embedding(3, 3))
    with pytest.raises(InvalidValue, match="model = 0: is sparse already"):
        convert(gs.to_bayesian(mlp()))
    with pytest.raises(InvalidValue, match="model = root: is sparse already"):
        convert(gs.to_bayesian(nn.Linear(2, 2)))
