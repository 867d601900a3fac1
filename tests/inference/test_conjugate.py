"""Bayesian linear regression, whose mean-field optimum is known in closed form.

With noise σ², prior s² and precision Λ = XᵀX/σ² + I/s², the ELBO of a diagonal Gaussian is maximal
at the exact posterior mean Λ⁻¹Xᵀy/σ² and the std 1/√Λ_ii.

The settings were found by simulating many data sets: over 16 of them the largest error was
0.03 posterior std in a mean and 1.4 % in a std, so the bounds leave room for other seeds.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs

ROWS, INPUTS, NOISE, PRIOR = 100, 6, 0.5, 0.5
STEPS, BATCH = 1000, 50
# Every row stands 32 times in its mini-batch, with noise of its own each time: the same expected
# gradient with less variance, which saves steps.
DRAWS = 32


def regression(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs with pairwise correlation ½, and their noisy linear response."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(ROWS, 1, generator=generator)
    x = (common + torch.randn(ROWS, INPUTS, generator=generator)) / 2**0.5
    truth = torch.randn(INPUTS, generator=generator)
    return x, x @ truth + NOISE * torch.randn(ROWS, generator=generator)


def optimum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = x.double(), y.double()
    precision = x.T @ x / NOISE**2 + torch.eye(INPUTS, dtype=torch.float64) / PRIOR**2
    return torch.linalg.solve(precision, x.T @ y / NOISE**2), precision.diagonal().rsqrt()


@pytest.mark.parametrize(
    ("name", "settings", "seed"),
    [("dense_vi", {}, 0), ("dense_vi", {"kl_warmup": 0.1}, 1), ("ssvi", {"sparsity": 0.0}, 2)],
)
def test_reaches_the_mean_field_optimum(name, settings, seed):
    x, y = regression(seed)
    torch.manual_seed(seed)
    method = gs.build(
        name,
        nn.Linear(INPUTS, 1, bias=False),
        num_data=ROWS,
        total_steps=STEPS,
        likelihood=gs.Gaussian(noise_std=NOISE),
        **{
            "prior_std": PRIOR,
            "posterior_std": 0.1,
            "kl_weight": 1.0,
            "kl_warmup": 0.0,
            "lr": 0.03,
            "std_lr": 0.01,
            **settings,
        },
    )
    order = torch.Generator().manual_seed(seed + 1000)
    for _ in range(STEPS * BATCH // ROWS):
        for rows in torch.randperm(ROWS, generator=order).split(BATCH):
            many = rows.repeat(DRAWS)
            method.step((x[many], y[many]))
    mean, std = optimum(x, y)
    layer = method.model
    correlation = torch.corrcoef(x.T)
    assert correlation.min() > 0.2, "the inputs are correlated"
    assert ((layer.weight_mean.detach() - mean) / std).abs().max() < 0.1
    assert (layer.weight_std.detach() / std - 1.0).abs().max() < 0.02


def test_prediction_has_the_epistemic_spread_of_the_optimum():
    """At the optimum set by hand: mean xᵀm and std √Σ x_i² s_i² over 4000 samples."""
    x, y = regression(0)
    mean, std = optimum(x, y)
    bnn = gs.to_bayesian(nn.Linear(INPUTS, 1, bias=False), posterior_std=0.1)
    with torch.no_grad():
        bnn.weight_mean.copy_(mean)
        bnn.weight_raw_std.copy_(torch.log(torch.expm1(std)))
    few = x[:5]
    pred = gs.predict(bnn, few, 4000, likelihood=gs.Gaussian(NOISE))
    spread = (few.double().square() @ std.square()).sqrt()
    # Std errors: spread/√4000 for the mean and spread/√8000 for the std; five of them.
    assert (((pred.mean - few.double() @ mean) / spread).abs() < 5 / 4000**0.5).all()
    assert ((pred.epistemic / spread - 1).abs() < 5 / 8000**0.5).all()
    torch.testing.assert_close(pred.aleatoric, torch.full((5,), NOISE), rtol=1e-6, atol=0.0)
