"""Variances and KL in one pass: against 50 digits, core.gaussian and torch's own checks."""

import mpmath
import pytest
import torch
from torch.library import opcheck

from cases.engines import ISAS, needs_native, using
from gossamer.core.gaussian import kl_to_prior, std_from_raw
from gossamer.ops import gaussian

pytestmark = needs_native

# Both tails, the switch at zero, and lengths that fill no vector.
RAW = [-690.0, -80.0, -20.0, -3.5, -1e-3, -0.0, 0.0, 1e-9, 0.7, 5.0, 39.0, 41.0, 800.0]
DIGITS = {torch.float32: 2e-7, torch.float64: 3e-15}


def exact_std(raw):
    return mpmath.log1p(mpmath.exp(raw))


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("isa", ISAS)
def test_variance_and_its_gradient_against_fifty_digits(isa, dtype):
    raw = torch.tensor(RAW, dtype=dtype, requires_grad=True)
    with using(isa):
        variance = gaussian.variance(raw)
        variance.sum().backward()
    with mpmath.workdps(50):
        for found, slope, value in zip(variance.tolist(), raw.grad, raw.tolist(), strict=True):
            std = exact_std(mpmath.mpf(value))
            sigmoid = 1 / (1 + mpmath.exp(-mpmath.mpf(value)))
            if std**2 < torch.finfo(dtype).tiny:
                assert abs(found) <= torch.finfo(dtype).tiny
                continue
            assert abs(found / std**2 - 1) < DIGITS[dtype], value
            assert abs(float(slope) / (2 * std * sigmoid) - 1) < DIGITS[dtype], value


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("isa", ISAS)
def test_kl_sum_against_fifty_digits(isa, dtype):
    mean = torch.tensor([0.0, -1.5, 0.3, 1e-4, 7.0, -0.2, 0.1], dtype=dtype, requires_grad=True)
    raw = torch.tensor([-9.0, -0.7, 0.0, 1.0, 30.0, -1.05, -2.0], dtype=dtype, requires_grad=True)
    prior = 0.3
    with using(isa):
        total = gaussian.kl_sum(mean, raw, prior)
        (2.5 * total).backward()
    with mpmath.workdps(50):
        expected = mpmath.mpf(0)
        p = mpmath.mpf(prior)
        for m, r, dm, dr in zip(mean.tolist(), raw.tolist(), mean.grad, raw.grad, strict=True):
            std = exact_std(mpmath.mpf(r))
            t = std / p
            expected += (t * t - 1) / 2 - mpmath.log(t) + (m / p) ** 2 / 2
            sigmoid = 1 / (1 + mpmath.exp(-mpmath.mpf(r)))
            to_raw = 2.5 * (std / p**2 - 1 / std) * sigmoid
            assert abs(float(dm) - 2.5 * m / p**2) <= DIGITS[dtype] * abs(2.5 * m / p**2)
            # Near the prior the gradient is a small difference of two terms of size 1 / std.
            assert abs(float(dr) - to_raw) < DIGITS[dtype] * max(abs(to_raw), 2.5 * sigmoid / std)
        assert abs(float(total.detach()) / expected - 1) < DIGITS[dtype]


def test_a_posterior_at_its_prior_has_no_kl():
    raw = torch.full((1000,), 0.3, dtype=torch.float64)
    prior = float(std_from_raw(raw)[0])
    assert abs(float(gaussian.kl_sum(torch.zeros_like(raw), raw, prior))) < 1e-12


def test_any_number_of_threads_gives_the_same_bits():
    mean, raw = torch.randn(50_001), torch.randn(50_001) - 4
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        found.append((gaussian.kl_sum(mean, raw, 0.1), gaussian.variance(raw)))
    torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_equal_to_core_gaussian_on_expanded_and_strided_parameters():
    mean, raw = torch.randn(40, dtype=torch.float64)[::2], torch.randn(1).double().expand(20)
    expected = kl_to_prior(mean, std_from_raw(raw), 0.4).sum()
    torch.testing.assert_close(gaussian.kl_sum(mean, raw, 0.4), expected, rtol=1e-13, atol=0)


def test_a_nan_stays_one():
    raw = torch.tensor([0.1, float("nan")] * 9)
    assert gaussian.variance(raw).isnan().sum() == 9
    assert gaussian.kl_sum(torch.zeros(18), raw, 0.1).isnan()


def test_no_weights_have_no_kl():
    empty = torch.empty(0, requires_grad=True)
    total = gaussian.kl_sum(empty, empty, 0.1)
    total.backward()
    assert float(total.detach()) == 0.0
    assert gaussian.variance(empty).shape == (0,)


@pytest.mark.parametrize("dtype", DIGITS)
def test_operators_pass_torch_checks(dtype):
    mean = torch.randn(37, dtype=dtype, requires_grad=True)
    raw = torch.randn(37, dtype=dtype, requires_grad=True)
    opcheck(torch.ops.gossamer.variance.default, (raw,))
    opcheck(torch.ops.gossamer.kl.default, (mean, raw, 0.2, True))
    opcheck(torch.ops.gossamer.kl.default, (mean, raw.detach(), 0.2, False))
    if dtype is torch.float64:
        assert torch.autograd.gradcheck(gaussian.variance, (raw,))
        assert torch.autograd.gradcheck(lambda m, r: gaussian.kl_sum(m, r, 0.2), (mean, raw))


def test_means_alone_have_a_gradient_too():
    mean = torch.randn(9, requires_grad=True)
    raw = torch.randn(9)
    gaussian.kl_sum(mean, raw, 0.5).backward()
    torch.testing.assert_close(mean.grad, 4.0 * mean.detach())
    assert raw.grad is None
    std = raw.clone().requires_grad_()
    gaussian.kl_sum(mean.detach(), std, 0.5).backward()
    expected = kl_to_prior(mean.detach(), std_from_raw(again := raw.clone().requires_grad_()), 0.5)
    expected.sum().backward()
    torch.testing.assert_close(std.grad, again.grad)


def test_transforms_and_half_precision_take_the_plain_way():
    assert not gaussian.is_fused(torch.zeros(3, dtype=torch.bfloat16))
    assert (
        torch.func.vmap(lambda r: torch.tensor(gaussian.is_fused(r)))(torch.zeros(2, 3)).sum() == 0
    )
