"""Values and gradients of every layer of the zoo against the slow truth, in float64.

Tolerance 1e-10: sums of at most a few hundred products of numbers of size one, so rounding stays
below 1e-13, while any wrong index, sign or factor is of size one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, LAYERS, Layer, ids
from gossamer.core.priors import Gaussian
from gossamer.core.support import Support
from gossamer.errors import InvalidValue
from gossamer.nn import BayesianLayer, BayesianLinear, SparseLayer
from gossamer.ops import Layout, draw_seed, fold_seed, get_backend, normal_like
from reference import local_reparameterisation as truth

TOLERANCE = 1e-10
SPARSITY = {"full": 0.0, "sparse": 0.6}

every_layer = pytest.mark.parametrize("case", LAYERS, ids=ids(LAYERS))
every_backend = pytest.mark.parametrize("engine", BACKENDS)
every_support = pytest.mark.parametrize("kept", ["full", "sparse"])


@cache
def all_products(name: str) -> truth.Products:
    case = next(c for c in LAYERS if c.name == name)
    return truth.products_of(case.build(), case.shape[case.batch_dims :], case.output_size)


def make_layer(case: Layer, engine: str, kept: str, seed: int = 0) -> BayesianLayer:
    """A converted layer in float64 with random means, stds and bias."""
    generator = torch.Generator().manual_seed(seed)
    module = case.build().double()
    sparsity = 0.0 if module.weight.numel() == 1 else SPARSITY[kept]
    layer = gs.to_bayesian(module, sparsity, backend=engine, generator=generator)
    assert isinstance(layer, BayesianLayer)
    if not layer.backend.supports(layer.layout, torch.device("cpu"), torch.float64):
        pytest.skip(f"{engine} does not run this layout")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    return layer


def make_input(case: Layer) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(case.shape, generator=generator, dtype=torch.float64)


def flat(tensor: torch.Tensor, case: Layer) -> np.ndarray:
    """[rows, everything of one example]."""
    rows = int(np.prod(tensor.shape[: case.batch_dims], initial=1))
    return tensor.detach().reshape(rows, -1).numpy()


def arguments(layer: BayesianLayer, x: torch.Tensor, case: Layer) -> list:
    bias = None if layer.bias is None else layer.bias.detach().numpy()
    values = [layer.weight_mean.detach().numpy(), layer.weight_raw_std.detach().numpy()]
    return [flat(x, case), *values, bias]


def check(layer, case, x, y, upstream, expected: truth.Result) -> None:
    def close(got, wanted, what):
        np.testing.assert_allclose(
            got, wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{what} of {case.name}"
        )

    (y * upstream).sum().backward()
    close(flat(y, case), expected.y, "output")
    close(flat(x.grad, case), expected.x, "gradient to x")
    close(layer.weight_mean.grad.numpy(), expected.mean, "gradient to mean")
    if layer.weight_raw_std.grad is None:
        assert np.all(expected.raw_std == 0)
    else:
        close(layer.weight_raw_std.grad.numpy(), expected.raw_std, "gradient to raw_std")
    if layer.bias is not None:
        close(layer.bias.grad.numpy(), expected.bias, "gradient to bias")


def upstream_of(y: torch.Tensor) -> torch.Tensor:
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own
@every_layer
def test_the_truth_agrees_with_torch(case):
    """The slow truth itself: with a full support and no noise it is torch's own layer."""
    module, x = case.build().double(), make_input(case)
    products = all_products(case.name)
    weight = module.weight.detach().flatten().numpy()
    bias = None if module.bias is None else module.bias.detach().numpy()
    zero = np.zeros_like(weight)
    y = module(x, **case.call)
    upstream = np.zeros_like(flat(y, case))
    result = truth.drawn(products, flat(x, case), weight, zero, bias, zero, upstream)
    assert y.shape[case.batch_dims :] == products.out_shape
    np.testing.assert_allclose(flat(y, case), result.y, rtol=TOLERANCE, atol=TOLERANCE)


@every_support
@every_backend
@every_layer
def test_local_noise(case, engine, kept):
    layer, x = make_layer(case, engine, kept), make_input(case).requires_grad_()
    torch.manual_seed(11)
    seed = draw_seed()
    torch.manual_seed(11)
    y = layer.train()(x, **case.call)
    noise, upstream = normal_like(seed, y), upstream_of(y)
    products = all_products(case.name).on(layer.support.positions().numpy())
    expected = truth.local(
        products, *arguments(layer, x, case), flat(noise, case), flat(upstream, case)
    )
    check(layer, case, x, y, upstream, expected)


@every_support
@every_backend
@every_layer
def test_weight_noise(case, engine, kept):
    layer, x = make_layer(case, engine, kept), make_input(case).requires_grad_()
    with gs.sampling(layer.eval(), seed=5, noise="weight"):
        y = layer(x, **case.call)
    noise = normal_like(torch.tensor(fold_seed(5, 0)), layer.weight_mean).numpy()
    upstream = upstream_of(y)
    products = all_products(case.name).on(layer.support.positions().numpy())
    expected = truth.drawn(products, *arguments(layer, x, case), noise, flat(upstream, case))
    check(layer, case, x, y, upstream, expected)


@every_support
@every_backend
@every_layer
def test_mean(case, engine, kept):
    layer, x = make_layer(case, engine, kept), make_input(case).requires_grad_()
    y = layer.eval()(x, **case.call)
    upstream = upstream_of(y)
    products = all_products(case.name).on(layer.support.positions().numpy())
    zero = np.zeros(layer.nnz)
    expected = truth.drawn(products, *arguments(layer, x, case), zero, flat(upstream, case))
    check(layer, case, x, y, upstream, expected)


@every_backend
@every_layer
def test_deterministic_twin(case, engine):
    """``to_sparse``: the same map from ``weight_values``, with the same gradients."""
    bayesian = make_layer(case, engine, "sparse")
    module = case.build().double()
    sparsity = 0.0 if module.weight.numel() == 1 else SPARSITY["sparse"]
    layer = gs.to_sparse(
        module, sparsity, backend=engine, generator=torch.Generator().manual_seed(0)
    )
    assert layer.support.same_as(bayesian.support), "the same generator must give the same support"
    with torch.no_grad():
        layer.weight_values.copy_(bayesian.weight_mean)
        if layer.bias is not None:
            layer.bias.copy_(bayesian.bias)
    x = make_input(case).requires_grad_()
    y = layer(x, **case.call)
    upstream = upstream_of(y)
    (y * upstream).sum().backward()
    zero = np.zeros(layer.nnz)
    products = all_products(case.name).on(layer.support.positions().numpy())
    expected = truth.drawn(products, *arguments(bayesian, x, case), zero, flat(upstream, case))
    np.testing.assert_allclose(flat(y, case), expected.y, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(
        layer.weight_values.grad.numpy(), expected.mean, rtol=TOLERANCE, atol=TOLERANCE
    )


@every_backend
@every_layer
def test_weight_property_is_the_scattered_draw_and_differentiable(case, engine):
    layer = make_layer(case, engine, "sparse").eval()
    places = layer.support.positions()
    upstream = torch.randn(layer.layout.numel, dtype=torch.float64)
    for noise in (None, "weight"):
        layer.zero_grad()
        if noise is None:
            weight, epsilon = layer.weight, torch.zeros(layer.nnz, dtype=torch.float64)
        else:
            with gs.sampling(layer, seed=5, noise=noise):
                weight = layer.weight
            epsilon = normal_like(torch.tensor(fold_seed(5, 0)), layer.weight_mean)
        expected = torch.zeros(layer.layout.numel, dtype=torch.float64)
        expected[places] = (layer.weight_mean + layer.weight_std * epsilon).detach()
        assert weight.shape == layer.layout.shape
        assert torch.equal(weight.detach().flatten(), expected)
        (weight.flatten() * upstream).sum().backward()
        assert torch.equal(layer.weight_mean.grad, upstream[places])
        if noise is not None:
            slope = torch.sigmoid(layer.weight_raw_std.detach())
            wanted = upstream[places] * epsilon * slope
            # One rounding of the product's order.
            torch.testing.assert_close(layer.weight_raw_std.grad, wanted, rtol=1e-14, atol=0)


@every_backend
def test_variance_zero_gives_the_mean_and_no_gradient_to_the_std(engine):
    """An empty output row, a dead input and an input of zeros: no epsilon, no NaN, gradient 0."""
    support = Support.from_positions(torch.tensor([0, 2, 8]), (3, 4))  # row 1 is empty
    mean = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    layer = BayesianLinear(
        Layout("linear", (3, 4)),
        support,
        mean,
        torch.full_like(mean, 0.5),
        nn.Parameter(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)),
        prior=Gaussian(1.0),
        backend=engine,
    )
    # Row 0: everything dead. Row 1: only inputs that no kept weight reads. Row 2: input 0 alone.
    x = torch.tensor(
        [[0.0, 0, 0, 0], [0, 5, 0, 7], [2, 0, 0, 0]], dtype=torch.float64, requires_grad=True
    )
    y = layer.train()(x)
    quiet = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
    assert torch.equal(y.detach()[quiet], (x @ layer.weight.T * 0 + layer.bias).detach()[quiet])
    y[quiet].sum().backward()
    assert torch.equal(layer.weight_raw_std.grad, torch.zeros(3, dtype=torch.float64))
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(layer.weight_mean.grad).all()
    layer.zero_grad()
    layer(x).square().sum().backward()
    assert torch.isfinite(layer.weight_raw_std.grad).all()
    # Weights 0 and 8 (input 0) are alive in the last row only; weight 2 reads a dead input.
    assert (layer.weight_raw_std.grad != 0).tolist() == [True, False, True]


@every_backend
def test_a_non_finite_std_is_not_silently_replaced(engine):
    layer = gs.to_bayesian(nn.Linear(3, 2), backend=engine).train()
    with torch.no_grad():
        layer.weight_raw_std[0] = float("nan")
    try:
        y = layer(torch.ones(1, 3))
    except ArithmeticError:
        return
    assert torch.isnan(y[0, 0]), "a NaN std must raise or show in the output, not become a mean"


@every_backend
@pytest.mark.parametrize("training", [True, False])
def test_function_transforms(engine, training):
    """``torch.func.grad`` of a functional call is the backward's gradient."""
    layer = gs.to_bayesian(nn.Linear(5, 4), 0.5, backend=engine).train(training)
    x = torch.randn(3, 5)

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    torch.manual_seed(1)
    got = torch.func.grad(loss)(dict(layer.named_parameters()))
    torch.manual_seed(1)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(got[name], expected, rtol=1e-6, atol=1e-7)  # float32


def test_layer_rejects_a_support_of_another_shape_and_a_bad_prior():
    layout, bias = Layout("linear", (2, 3)), None
    with pytest.raises(InvalidValue, match=r"support shape = \(3, 2\): must equal \(2, 3\)"):
        BayesianLinear(
            layout,
            Support.full((3, 2)),
            torch.ones(6),
            torch.ones(6),
            bias,
            prior=Gaussian(1.0),
        )
    with pytest.raises(InvalidValue, match=r"prior_std = 0\.0: must be finite and > 0"):
        BayesianLinear(
            layout, Support.full((2, 3)), torch.ones(6), torch.ones(6), bias, prior=Gaussian(0.0)
        )
    with pytest.raises(InvalidValue, match="must be Bayesian or deterministic"):
        SparseLayer(layout, Support.full((2, 3)), bias).leading()


@every_backend
def test_properties_and_repr(engine):
    layer = gs.to_bayesian(nn.Linear(10, 4), 0.75, backend=engine)
    assert (layer.nnz, layer.sparsity, layer.density) == (10, 0.75, 0.25)
    assert layer.backend is get_backend(engine)
    assert repr(layer) == "BayesianLinear(shape=(4, 10), nnz=10, sparsity=0.75)"
    assert layer.indices.dtype == torch.int32
    assert gs.to_bayesian(nn.Linear(10, 4)).indices is None, "a full support stores no index"
    assert layer.weight_mean.shape == layer.weight_raw_std.shape == (10,)
