from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import root_mean_squared_error
from torchmetrics.functional.regression import continuous_ranked_probability_score

from gossamer.errors import InvalidData, InvalidValue
from gossamer.metrics import (
    gaussian_mixture_cdf,
    gaussian_mixture_coverage,
    gaussian_mixture_crps,
    gaussian_mixture_nll,
    interval_coverage,
    mean_interval_width,
    rmse,
    sample_crps,
)
from gossamer.metrics import regression as ours


def draw(seed, num_members, num_rows, num_outputs=None):
    rng = np.random.default_rng(seed)
    shape = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    means = rng.normal(0, 2, (num_members, *shape))
    stds = np.exp(rng.normal(-0.5, 0.7, (num_members, *shape)))
    return means, stds, rng.normal(0, 2, shape)


def tensors(*arrays):
    return tuple(torch.from_numpy(array) for array in arrays)


def crps_by_quadrature(means, stds, y):
    """∫ (F(x) − [x ≥ y])² dx of one row."""

    def cdf(x):
        return norm.cdf(x, means, stds).mean()

    low = min((means - 12 * stds).min(), y)
    high = max((means + 12 * stds).max(), y)
    kinks = sorted(m for m in means if low < m < high)
    below = quad(lambda x: cdf(x) ** 2, low, y, limit=500, points=[m for m in kinks if m < y])[0]
    above = quad(
        lambda x: (1 - cdf(x)) ** 2, y, high, limit=500, points=[m for m in kinks if m > y]
    )[0]
    return below + above


@pytest.mark.parametrize("seed", range(5))
def test_mixture_crps_equals_quadrature(seed):
    means, stds, target = draw(seed, 1 + 2 * seed, 4)
    expected = np.mean([crps_by_quadrature(means[:, i], stds[:, i], target[i]) for i in range(4)])
    got = gaussian_mixture_crps(*tensors(means, stds, target))
    assert got == pytest.approx(expected, rel=1e-6)  # the accuracy of quad on four rows


def test_crps_of_one_gaussian_is_the_known_formula():
    means, stds, target = draw(7, 1, 50)
    z = (target - means[0]) / stds[0]
    formula = stds[0] * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    got = gaussian_mixture_crps(*tensors(means, stds, target))
    assert got == pytest.approx(formula.mean(), rel=1e-12)


def test_equal_members_are_one_gaussian():
    means, stds, target = tensors(*draw(8, 1, 20))
    got = gaussian_mixture_crps(means.expand(6, -1), stds.expand(6, -1), target)
    assert got == pytest.approx(gaussian_mixture_crps(means, stds, target), rel=1e-12)


@pytest.mark.parametrize("block", [1, 35, 10**6])
def test_blocks_of_rows_do_not_change_the_crps(monkeypatch, block):
    data = tensors(*draw(9, 7, 23, 3))
    expected = gaussian_mixture_crps(*data)
    monkeypatch.setattr(ours, "_BLOCK_ELEMENTS", block)
    assert gaussian_mixture_crps(*data) == pytest.approx(expected, rel=1e-13)


def test_crps_of_outputs_is_the_mean_of_their_marginals():
    means, stds, target = tensors(*draw(10, 4, 9, 2))
    each = [gaussian_mixture_crps(means[..., d], stds[..., d], target[..., d]) for d in (0, 1)]
    assert gaussian_mixture_crps(means, stds, target) == pytest.approx(np.mean(each), rel=1e-12)


def test_narrow_gaussians_have_the_crps_of_samples():
    means, _, target = tensors(*draw(11, 5, 30))
    got = gaussian_mixture_crps(means, torch.full_like(means, 1e-9), target)
    assert got == pytest.approx(sample_crps(means, target), abs=1e-8)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_sample_crps_by_brute_force(seed, num_samples, num_rows):
    samples, _, target = draw(seed, num_samples, num_rows)
    samples = samples.round(1)  # ties among draws
    pairs = np.abs(samples[:, None] - samples[None]).mean((0, 1))
    expected = (np.abs(samples - target).mean(0) - pairs / 2).mean()
    got = sample_crps(*tensors(samples, target))
    assert got == pytest.approx(expected, abs=1e-12)
    if num_samples >= 2:  # torchmetrics refuses one draw
        other = continuous_ranked_probability_score(*tensors(samples.T.copy(), target))
        assert got == pytest.approx(float(other), abs=1e-12)


def test_sample_crps_of_one_draw_is_the_absolute_error():
    assert sample_crps(torch.tensor([[3.0, -1.0]]), torch.tensor([1.0, 1.0])) == 2.0


def test_sample_crps_is_exact_far_from_zero():
    samples, target = torch.tensor([[1e12], [1e12 + 2]], dtype=torch.float64), torch.tensor([1e12])
    target = target.double() + 1
    samples = samples - 1e12 + target  # y, y + 2: mean distance 1, half spread 0.5
    assert sample_crps(samples, target) == 0.5


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 20))
def test_mixture_nll_equals_scipy(seed, num_members, num_rows):
    means, stds, target = draw(seed, num_members, num_rows)
    log_density = norm.logpdf(target, means, stds)
    expected = -np.mean(np.logaddexp.reduce(log_density, axis=0) - np.log(num_members))
    got = gaussian_mixture_nll(*tensors(means, stds, target))
    assert got == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_mixture_nll_far_in_the_tail_does_not_underflow():
    means, stds, target = torch.zeros(3, 1), torch.ones(3, 1), torch.tensor([100.0])
    expected = -norm.logpdf(100.0)  # exp of it is 0 in float64
    assert gaussian_mixture_nll(means, stds, target) == pytest.approx(expected, rel=1e-12)


def test_mixture_nll_of_outputs_is_joint():
    means, stds, target = draw(12, 3, 5, 2)
    rows = [
        np.mean(
            [
                multivariate_normal.pdf(target[i], means[s, i], np.diag(stds[s, i] ** 2))
                for s in range(3)
            ]
        )
        for i in range(5)
    ]
    got = gaussian_mixture_nll(*tensors(means, stds, target))
    assert got == pytest.approx(-np.log(rows).mean(), rel=1e-11)


def test_mixture_cdf_equals_scipy():
    means, stds, target = draw(13, 6, 40)
    got = gaussian_mixture_cdf(*tensors(means, stds, target))
    np.testing.assert_allclose(got, norm.cdf(target, means, stds).mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_mixture_coverage_equals_that_of_solved_quantiles(level):
    means, stds, target = draw(14, 4, 60)

    def quantile(i, q):
        return brentq(lambda x: norm.cdf(x, means[:, i], stds[:, i]).mean() - q, -50, 50)

    lower, upper = (
        np.array([quantile(i, q) for i in range(60)]) for q in ((1 - level) / 2, (1 + level) / 2)
    )
    expected = interval_coverage(*tensors(lower, upper, target))
    assert 0.2 < expected < 1
    assert gaussian_mixture_coverage(*tensors(means, stds, target), level=level) == expected


def test_rmse_equals_sklearn():
    mean, _, target = draw(15, 1, 40, 3)
    expected = np.sqrt(np.mean((mean[0] - target) ** 2))
    assert rmse(*tensors(mean[0], target)) == pytest.approx(expected, rel=1e-12)
    flat = root_mean_squared_error(target[:, 0], mean[0, :, 0])
    assert rmse(*tensors(mean[0, :, 0], target[:, 0])) == pytest.approx(flat, rel=1e-12)


def test_intervals_are_closed():
    lower, upper = torch.tensor([0.0, 0.0, 0.0, 2.0]), torch.tensor([1.0, 1.0, 1.0, 2.0])
    target = torch.tensor([0.0, 1.0, 1.5, 2.0])
    assert interval_coverage(lower, upper, target) == 0.75
    assert mean_interval_width(lower, upper) == 0.75


def test_bad_input_is_refused():
    mean, std, y = torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(3)
    with pytest.raises(InvalidData, match=r"stds\[1, 2\] = 0.0: must be above 0"):
        gaussian_mixture_nll(mean, torch.tensor([[1.0, 1, 1], [1, 1, 0]]), y)
    with pytest.raises(InvalidData, match=r"stds\.shape = \(1, 3\): must equal means\.shape"):
        gaussian_mixture_crps(mean, std[:1], y)
    with pytest.raises(InvalidData, match=r"means\.shape = \(3, 2\): must be \[S\] \+ target"):
        gaussian_mixture_crps(mean.T, std.T, y)
    with pytest.raises(InvalidData, match=r"samples\.shape = \(3,\)"):
        sample_crps(y, y)
    with pytest.raises(InvalidData, match=r"target\.shape = \(1, 1, 1\): must be \[B\]"):
        sample_crps(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1))
    # Broadcasting [B] against [B, 1] would give a [B, B] error.
    with pytest.raises(InvalidData, match=r"mean\.shape = \(3, 1\): must equal target\.shape"):
        rmse(torch.zeros(3, 1), y)
    with pytest.raises(InvalidData, match=r"target\[1\] = inf: must be finite"):
        rmse(y, torch.tensor([0.0, torch.inf, 0.0]))
    with pytest.raises(InvalidData, match=r"lower\[0\] = 1.0: must not exceed upper"):
        mean_interval_width(torch.ones(1), torch.zeros(1))
    with pytest.raises(InvalidData, match=r"target\.shape = \(1,\): must equal lower\.shape"):
        interval_coverage(y, y, torch.zeros(1))
    with pytest.raises(InvalidValue, match=r"level = 1\.0: must lie in \(0, 1\)"):
        gaussian_mixture_coverage(mean, std, y, level=1.0)
