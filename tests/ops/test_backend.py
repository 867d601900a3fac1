"""The backend protocol: every engine of the table, called directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases.zoo import BACKENDS, LAYERS, ids
from gossamer.core.support import Support
from gossamer.errors import UnknownName
from gossamer.nn.candidates import twin_of
from gossamer.ops import BACKENDS as TABLE
from gossamer.ops import Layout, Pattern, get_backend, normal_like
from reference import local_reparameterisation as truth

every_backend = pytest.mark.parametrize("engine", BACKENDS)


def pattern_of(engine: str, support: Support, layout: Layout) -> Pattern:
    return Pattern(support.indices, TABLE[engine].prepare(support.indices, layout))


def test_the_table_is_keyed_by_name():
    assert {name: engine.name for name, engine in TABLE.items()} == {n: n for n in TABLE}
    assert "masked" in TABLE
    with pytest.raises(UnknownName, match=r"backend = dense: is not known; choose one of:.*masked"):
        get_backend("dense")


def test_the_reference_takes_everything():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert get_backend("masked").supports(Layout("linear", (2, 2)), torch.device("cpu"), dtype)


@every_backend
@pytest.mark.parametrize("case", LAYERS, ids=ids(LAYERS))
def test_moments(case, engine):
    """Mean and variance of the output are W x + b and (σ⊙σ)(x⊙x); tolerance as in test_base."""
    if case.output_size is not None:
        case = next(c for c in LAYERS if c.name == case.name.replace("output-size", "plain"))
    module = case.build().double()
    layout = twin_of(module).layout(module)
    if not TABLE[engine].supports(layout, torch.device("cpu"), torch.float64):
        pytest.skip(f"{engine} does not run this layout")
    generator = torch.Generator().manual_seed(4)
    nnz = max(1, layout.numel // 2)
    support = Support.random(layout.shape, nnz, generator)
    mean, raw = torch.randn(2, support.nnz, generator=generator, dtype=torch.float64)
    x = torch.randn(case.shape, generator=generator, dtype=torch.float64)
    std = torch.nn.functional.softplus(raw)
    centre, variance = TABLE[engine].moments(
        x, mean, std.square(), pattern_of(engine, support, layout), layout, module.bias
    )
    products = truth.products_of(module, case.shape[case.batch_dims :])
    kept = products.on(support.positions().numpy())
    bias = None if module.bias is None else module.bias.detach().numpy()
    rows = int(np.prod(case.shape[: case.batch_dims], initial=1))
    zero = np.zeros((rows, int(np.prod(products.out_shape))))
    expected = truth.local(
        kept, x.reshape(rows, -1).numpy(), mean.numpy(), raw.numpy(), bias, zero, zero
    )
    for got, wanted in ((centre, expected.y), (variance, expected.variance)):
        flat = got.detach().reshape(rows, -1).numpy()
        np.testing.assert_allclose(flat, wanted, rtol=1e-10, atol=1e-10)
    assert (variance >= 0).all()


@every_backend
def test_local_noise_is_the_normal_of_the_output(engine):
    """The contract that all engines share: ε = normal_like(seed, y)."""
    layout, seed = Layout("linear", (3, 2)), torch.tensor(8)
    x = torch.ones(4, 2, dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    y = TABLE[engine].local(x, 0 * ones, ones, Pattern(None), layout, None, seed, None)
    expected = 2**0.5 * normal_like(seed, y)
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=0)  # roundings of sqrt(2)


@every_backend
def test_a_full_support_is_viewed_not_copied(engine):
    values = torch.arange(6.0)
    weight = TABLE[engine].weight(values, Pattern(None), Layout("linear", (2, 3)), None)
    assert weight.shape == (2, 3)
    assert weight.data_ptr() == values.data_ptr()


@every_backend
@pytest.mark.parametrize("kind", ["local", "product"])
def test_gradients_numerically(engine, kind):
    """torch's finite differences, with an output that no kept weight reaches."""
    layout = Layout("conv", (2, 1, 2), (1,), ((1, 1),), (1,))
    support = Support.from_positions(torch.tensor([0, 1]), layout.shape)  # channel 1 is empty
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    mean, variance = torch.rand(2, 2, generator=generator, dtype=torch.float64)
    mean, variance = mean.requires_grad_(), variance.requires_grad_()
    bias = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    seed = torch.tensor(3)
    pattern = pattern_of(engine, support, layout)

    def local(x, mean, variance, bias):
        return TABLE[engine].local(x, mean, variance, pattern, layout, bias, seed, None)

    def product(x, mean, bias):
        return TABLE[engine].product(x, mean, pattern, layout, bias, None)

    inputs = (x, mean, variance, bias) if kind == "local" else (x, mean, bias)
    assert torch.autograd.gradcheck(local if kind == "local" else product, inputs)


@every_backend
def test_an_empty_batch(engine):
    layout = Layout("linear", (3, 2))
    ones = torch.ones(6, requires_grad=True)
    none = Pattern(None)
    y = TABLE[engine].local(torch.ones(0, 2), ones, ones, none, layout, None, torch.tensor(1), None)
    assert y.shape == (0, 3)
    y.sum().backward()
    assert torch.equal(ones.grad, torch.zeros(6))
