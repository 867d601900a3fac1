"""The empirical-Bayes prior: its scale by search, its derivatives by differences, its floor."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from gossamer.core.priors import EmpiricalGaussian, Gaussian, prior_from_json, prior_to_json
from gossamer.errors import InvalidValue

DOUBLE = torch.float64
MEAN = torch.tensor([0.3, -1.2, 0.0, 2.5, 1e-3], dtype=DOUBLE)
STD = torch.tensor([0.05, 0.7, 0.4, 1e-2, 1.9], dtype=DOUBLE)


def kl_at(scale: float) -> float:
    """Σ KL to N(0, scale²), in 30 digits and without the package."""
    with mp.workdps(30):
        s = mp.mpf(scale)
        terms = (
            mp.log(s / d) + (mp.mpf(d) ** 2 + mp.mpf(m) ** 2) / (2 * s**2) - mp.mpf(1) / 2
            for m, d in zip(MEAN.tolist(), STD.tolist(), strict=True)
        )
        return float(mp.fsum(terms))


def test_its_scale_is_the_best_one():
    """No Gaussian prior has a smaller KL; the search finds the same scale."""
    found = minimize_scalar(
        lambda log_s: kl_at(math.exp(log_s)), bounds=(-4, 4), options={"xatol": 1e-9}
    )
    prior = EmpiricalGaussian()
    scale = prior.fitted_std(float((MEAN.square() + STD.square()).sum()), 5)
    assert scale == pytest.approx(math.exp(found.x), rel=1e-6)
    total = float(prior.kl(MEAN, STD).sum())
    assert total == pytest.approx(found.fun, rel=1e-13)
    assert total == pytest.approx(0.5 * float((scale**2 / STD.square()).log().sum()), rel=1e-13)
    for other in (0.9 * scale, 1.1 * scale):
        assert float(Gaussian(other).kl(MEAN, STD).sum()) > total


def test_first_derivatives_are_those_of_a_constant_scale():
    """The envelope theorem: autograd through s, a constant s and differences say the same."""
    prior = EmpiricalGaussian()
    mean, std = MEAN.clone().requires_grad_(), STD.clone().requires_grad_()
    prior.kl(mean, std).sum().backward()
    scale = prior.fitted_std(float((MEAN.square() + STD.square()).sum()), 5)
    fixed_mean, fixed_std = MEAN.clone().requires_grad_(), STD.clone().requires_grad_()
    Gaussian(scale).kl(fixed_mean, fixed_std).sum().backward()
    torch.testing.assert_close(mean.grad, fixed_mean.grad, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(std.grad, fixed_std.grad, rtol=1e-12, atol=1e-13)

    def total(m: np.ndarray, d: np.ndarray) -> float:
        return float(0.5 * np.log((m**2 + d**2).mean() / d**2).sum())

    step = 1e-6
    for i in range(5):
        shift = np.zeros(5)
        shift[i] = step
        m, d = MEAN.numpy(), STD.numpy()
        by_mean = (total(m + shift, d) - total(m - shift, d)) / (2 * step)
        by_std = (total(m, d + shift * d[i]) - total(m, d - shift * d[i])) / (2 * step * d[i])
        assert float(mean.grad[i]) == pytest.approx(by_mean, rel=1e-7, abs=1e-8)
        assert float(std.grad[i]) == pytest.approx(by_std, rel=1e-7, abs=1e-8)


def test_second_derivatives_know_that_the_scale_moves():
    prior = EmpiricalGaussian()
    assert torch.autograd.gradgradcheck(
        lambda m, d: prior.kl(m, d).sum(),
        (MEAN.clone().requires_grad_(), STD.clone().requires_grad_()),
    )


def test_the_kl_of_a_shrinking_layer_does_not_change_above_the_floor():
    prior = EmpiricalGaussian(floor=1e-6)
    totals = [float(prior.kl(f * MEAN, f * STD).sum()) for f in (1.0, 1e-2, 1e-4)]
    assert totals[1:] == pytest.approx([totals[0]] * 2, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_below_the_floor_it_is_a_fixed_gaussian(dtype):
    """Means of exactly 0 and a vanishing std: finite, and the gradient makes std larger."""
    prior = EmpiricalGaussian(floor=1e-3)
    mean = torch.zeros(4, dtype=dtype, requires_grad=True)
    std = torch.full((4,), 1e-30, dtype=dtype, requires_grad=True)
    found = prior.kl(mean, std)
    found.sum().backward()
    wanted = Gaussian(1e-3).kl(mean.detach(), std.detach())
    torch.testing.assert_close(found.detach(), wanted, rtol=1e-6, atol=0)
    assert bool(torch.isfinite(std.grad).all())
    assert bool((std.grad < 0).all())
    assert bool((mean.grad == 0).all())


def test_no_weights_have_no_kl():
    prior = EmpiricalGaussian(floor=0.02)
    empty = torch.empty(0)
    assert float(prior.kl(empty, empty).sum()) == 0.0
    assert prior.fitted_std(0.0, 0) == 0.02


def test_what_is_not_a_number_stays_one():
    prior = EmpiricalGaussian()
    assert math.isnan(prior.fitted_std(math.nan, 3))
    assert bool(prior.kl(torch.tensor([0.0, math.nan]), torch.ones(2)).isnan().all())


def test_a_file_can_name_it():
    values = prior_to_json(EmpiricalGaussian(0.02))
    assert values == {"kind": "empirical", "floor": 0.02}
    assert prior_from_json(values) == EmpiricalGaussian(0.02)


def test_refusals():
    with pytest.raises(InvalidValue, match="prior = EmpiricalGaussian: has no density"):
        EmpiricalGaussian().log_density(MEAN)
    for wrong in (0.0, -1.0, 1e-16, math.inf, math.nan):
        with pytest.raises(InvalidValue, match=r"floor = .*: must be finite and at least 1e-15"):
            EmpiricalGaussian(wrong)
