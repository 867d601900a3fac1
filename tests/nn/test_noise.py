"""Distribution of the outputs over many draws, against the formulas, within 4 standard errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS
from reference import local_reparameterisation as truth

DRAWS = 20_000
every_backend = pytest.mark.parametrize("engine", BACKENDS)
CASES = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "conv": (lambda: nn.Conv2d(2, 2, 2, padding=1, padding_mode="reflect"), (2, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 2, 3, stride=2), (2, 3)),
}


def setup(name: str, engine: str):
    build, shape = CASES[name]
    generator = torch.Generator().manual_seed(0)
    module = build().double()
    layer = gs.to_bayesian(module, 0.4, backend=engine, generator=generator)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    products = truth.products_of(module, shape).on(layer.support.positions().numpy())
    zero = np.zeros((2, int(np.prod(products.out_shape))))
    arguments = (layer.weight_mean, layer.weight_raw_std, layer.bias)
    exact = truth.local(
        products,
        x.reshape(2, -1).numpy(),
        *(a.detach().numpy() for a in arguments),
        zero,
        zero,
    )
    return layer, x, products, exact


def check_moments(draws: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    n = len(draws)
    alive = variance > 0
    assert alive.any()
    error = np.abs(draws.mean(0) - mean)[alive] / np.sqrt(variance[alive] / n)
    assert error.max() < 4
    spread = np.abs(draws.var(0, ddof=1) / np.where(alive, variance, 1) - 1)[alive]
    assert (spread / np.sqrt(2 / (n - 1))).max() < 4
    still = draws[:, ~alive] - mean[~alive]
    # Rounding of the sum alone.
    assert still.size == 0 or np.abs(still).max() < 1e-12


@every_backend
@pytest.mark.parametrize("name", sorted(CASES))
def test_local_noise_is_independent_per_row_and_output(name, engine):
    layer, x, _, exact = setup(name, engine)
    torch.manual_seed(1)
    rows = x[:1].expand(DRAWS, *x.shape[1:])
    y = layer.train()(rows).detach().reshape(DRAWS, -1).numpy()
    check_moments(y, exact.y[0], exact.variance[0])
    alive = exact.variance[0] > 0
    correlation = np.corrcoef(y[:, alive].T) - np.eye(alive.sum())
    assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)  # the largest of many pairs
    lagged = np.corrcoef(y[1:, alive][:, 0], y[:-1, alive][:, 0])[0, 1]
    assert abs(lagged) < 4 / np.sqrt(DRAWS)


@every_backend
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_drawn_theta_correlates_the_rows(name, engine):
    """Weight noise: the same marginals, and Cov(y_a, y_b) = Σ σ² x_a x_b between two rows."""
    layer, x, products, exact = setup(name, engine)
    draws = []
    for seed in range(1500):
        with gs.sampling(layer.eval(), seed=seed), torch.no_grad():
            draws.append(layer(x).reshape(2, -1).numpy())
    y = np.stack(draws)
    for row in (0, 1):
        check_moments(y[:, row], exact.y[row], exact.variance[row])
    std = truth.softplus(layer.weight_raw_std.detach().numpy())
    flat = x.reshape(2, -1).numpy()
    size = int(np.prod(products.out_shape))
    # The two rows' coefficients of every weight in every output, to be multiplied weight by weight.
    maps = np.zeros((2, size, layer.nnz))
    for o, i, w in zip(products.o, products.i, products.w, strict=True):
        maps[:, o, w] += flat[:, i]
    expected = (maps[0] * maps[1] * std**2).sum(-1)
    centred = y - y.mean(0)
    covariance = (centred[:, 0] * centred[:, 1]).mean(0)
    bound = np.sqrt(
        ((maps[0] * std) ** 2).sum(-1) * ((maps[1] * std) ** 2).sum(-1) + expected**2
    ) / np.sqrt(len(y))
    assert (np.abs(covariance - expected) <= 4 * bound + 1e-12).all()
    assert (np.abs(expected) > 4 * bound).any(), "the covariance asked about is not just noise"
