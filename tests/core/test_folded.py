"""Moments of |θ| and e^{λ|θ|} against 50-digit arithmetic."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core import folded
from gossamer.errors import InvalidValue
from reference import folded_truth as truth

# Bounds on the relative error: about three times the largest found on 6e4 points. The log of the
# SNR passes 0, so its error is absolute where it is below 1 in size.
MEAN_ABS, VAR_ABS, LOG_MEAN_EXP, LOG_SNR = 1e-15, 4e-15, 3e-14, 5e-13

LAMBDAS = (1e-3, 0.1, 1.0, 7.0, 100.0)


def worst_errors(mean, std, lam):
    """Largest error of each of the four moments over the float32 vectors mean and std."""
    got = torch.stack(
        (
            folded.mean_abs(mean, std),
            folded.var_abs(mean, std),
            folded.log_mean_exp_abs(mean, std, lam),
            folded.log_snr_exp_abs(mean, std, lam),
        ),
        dim=1,
    )
    assert torch.isfinite(got).all()
    errors = []
    for (m, s), row in zip(
        zip(mean.tolist(), std.tolist(), strict=True), got.tolist(), strict=True
    ):
        errors.append(
            (
                truth.relative_error(row[0], truth.mean_abs(m, s)),
                truth.relative_error(row[1], truth.var_abs(m, s)),
                truth.relative_error(row[2], truth.log_mean_exp_abs(m, s, lam)),
                truth.relative_error(row[3], truth.log_snr_exp_abs(m, s, lam), floor=1.0),
            )
        )
    return [max(column) for column in zip(*errors, strict=True)]


@pytest.mark.parametrize("lam", LAMBDAS)
def test_moments_on_the_grid(lam):
    mean_abs, var_abs, log_mean_exp, log_snr = worst_errors(*truth.grid(), lam)
    assert mean_abs < MEAN_ABS
    assert var_abs < VAR_ABS
    assert log_mean_exp < LOG_MEAN_EXP
    assert log_snr < LOG_SNR


@settings(deadline=None, max_examples=300)
@given(
    ratio=st.one_of(st.just(0.0), st.floats(-6, 5).map(lambda k: 10.0**k), st.floats(0, 10)),
    std=st.floats(-8, 1).map(lambda k: 10.0**k),
    lam=st.floats(-3, 2).map(lambda k: 10.0**k),
    sign=st.sampled_from((-1.0, 1.0)),
)
def test_moments_anywhere(ratio, std, lam, sign):
    mean = torch.tensor([sign * ratio * std], dtype=torch.float32)
    errors = worst_errors(mean, torch.tensor([std], dtype=torch.float32), lam)
    assert errors[0] < MEAN_ABS
    assert errors[1] < VAR_ABS
    assert errors[2] < LOG_MEAN_EXP
    assert errors[3] < LOG_SNR


def test_moments_where_the_series_hands_over():
    """The two forms are weakest at λσ = 0.02, where each stops being the better one."""
    generator = torch.Generator().manual_seed(0)
    std = 0.02 * torch.exp(torch.empty(1500).uniform_(-0.7, 0.7, generator=generator))
    mean = std * torch.empty(1500).uniform_(0, 4, generator=generator)
    errors = worst_errors(mean, std, 1.0)
    assert errors[2] < LOG_MEAN_EXP
    assert errors[3] < LOG_SNR


def test_log_snr_keeps_its_digits_where_it_crosses_zero():
    """Near SNR = 1 the log is small; its absolute error must be small against that."""
    generator = torch.Generator().manual_seed(1)
    std = torch.empty(20_000).uniform_(0.6, 1.6, generator=generator)
    mean = std * torch.exp(torch.empty(20_000).uniform_(-6, 3, generator=generator))
    log_snr = folded.log_snr_exp_abs(mean, std)
    closest = log_snr.abs().argsort()[:100].tolist()
    assert log_snr[closest[0]].abs() < 1e-4
    for i in closest:
        exact = truth.log_snr_exp_abs(mean[i].item(), std[i].item(), 1.0)
        assert abs(mp.mpf(log_snr[i].item()) - exact) < 2e-15


@pytest.mark.parametrize(
    ("mean", "std", "lam"), [(0.0, 0.5, 1.0), (0.3, 0.2, 2.0), (2.0, 0.9, 0.7)]
)
def test_closed_forms_are_the_expectations(mean, std, lam):
    """Quadrature of the definitions: the formulas are right, not only well evaluated."""
    mu, sigma = torch.tensor([mean], dtype=torch.float64), torch.tensor([std], dtype=torch.float64)
    first = truth.by_quadrature(lambda x: x, mean, std)
    second = truth.by_quadrature(lambda x: x * x, mean, std)
    exp1 = truth.by_quadrature(lambda x: mp.exp(lam * x), mean, std)
    exp2 = truth.by_quadrature(lambda x: mp.exp(2 * lam * x), mean, std)
    log_snr = mp.log(exp1 / mp.sqrt(exp2 - exp1**2))
    # 1e-13: float64 rounding; the quadrature itself is good to 20 digits.
    assert truth.relative_error(folded.mean_abs(mu, sigma).item(), first) < 1e-13
    assert truth.relative_error(folded.var_abs(mu, sigma).item(), second - first**2) < 1e-13
    assert (
        truth.relative_error(folded.log_mean_exp_abs(mu, sigma, lam).item(), mp.log(exp1)) < 1e-13
    )
    assert truth.relative_error(folded.log_snr_exp_abs(mu, sigma, lam).item(), log_snr) < 1e-13


MOMENTS = (
    folded.ratio,
    folded.mean_abs,
    folded.var_abs,
    folded.log_mean_exp_abs,
    folded.log_snr_exp_abs,
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_symmetric_float64_detached_and_of_the_same_shape(moment):
    mean = torch.linspace(-0.5, 0.5, 12).reshape(3, 4).requires_grad_()
    std = torch.full((3, 4), 0.1, requires_grad=True)
    value = moment(mean, std)
    assert value.dtype == torch.float64
    assert value.shape == (3, 4)
    assert not value.requires_grad
    assert torch.equal(value, moment(-mean, std))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("mean", "std"),
    [(0.0, 0.0), (1.0, 0.0), (0.0, 1e-45), (3e38, 1e-45), (3e38, 10.0), (0.0, 1e19)],
)
def test_finite_far_outside_the_contract(moment, mean, std):
    """An underflown std, a runaway mean: still a number, never 0/0."""
    assert torch.isfinite(moment(torch.tensor([mean]), torch.tensor([std]))).all()


def test_std_zero_is_the_limit():
    mean, std = torch.tensor([0.5, 0.0]), torch.zeros(2)
    assert folded.mean_abs(mean, std).tolist() == pytest.approx([0.5, 0.0], abs=1e-99)
    assert folded.log_mean_exp_abs(mean, std, 2.0).tolist() == pytest.approx([1.0, 0.0], abs=1e-15)
    assert folded.var_abs(mean, std).tolist() == pytest.approx([0.0, 0.0], abs=1e-99)
    assert folded.ratio(mean, std)[1] == 0.0


@pytest.mark.parametrize("moment", MOMENTS)
def test_nan_is_not_hidden(moment):
    bad = torch.tensor([math.nan])
    assert moment(bad, torch.ones(1)).isnan().all()
    assert moment(torch.ones(1), bad).isnan().all()


@pytest.mark.parametrize("moment", MOMENTS)
def test_equal_weights_have_equal_moments_wherever_they_lie(moment):
    """Vectorised and remainder loops must round alike, or ties would break by position."""
    mean, std = torch.full((1003,), 0.013), torch.full((1003,), 0.021)
    assert moment(mean, std).unique().numel() == 1


@pytest.mark.parametrize("moment", [folded.log_mean_exp_abs, folded.log_snr_exp_abs])
@pytest.mark.parametrize("lam", [0.0, -1.0, math.inf, math.nan])
def test_lam_must_be_positive(moment, lam):
    with pytest.raises(InvalidValue, match="lam"):
        moment(torch.ones(1), torch.ones(1), lam)


@pytest.mark.parametrize("moment", MOMENTS)
def test_device_without_float64_gets_float32(moment, monkeypatch):
    """As on mps: computed in float64 elsewhere, returned as float32 at home."""
    mean, std = torch.tensor([0.01, 0.4]), torch.tensor([0.02, 0.3])
    expected = moment(mean, std)
    monkeypatch.setattr(folded, "_NO_FLOAT64", frozenset({"cpu"}))
    value = moment(mean, std)
    assert value.dtype == torch.float32
    assert value.device == mean.device
    assert torch.equal(value, expected.float())
