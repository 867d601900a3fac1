"""The criteria as printed: equal where float64 allows it, and wrong in float32 as the paper's."""

from __future__ import annotations

import pytest
import torch

from gossamer.core.removal import REMOVAL
from gossamer.experiments.li2024ssvi.printed import PRINTED
from reference import folded_truth as truth


def test_every_printed_criterion_has_an_accurate_one():
    assert set(PRINTED) <= set(REMOVAL)


@pytest.mark.parametrize("name", PRINTED)
def test_printed_agrees_where_it_is_well_conditioned(name):
    """In float64, at moderate r and λσ, the printed formulas give the same scores."""
    generator = torch.Generator().manual_seed(0)
    std = torch.empty(500, dtype=torch.float64).uniform_(0.1, 1.0, generator=generator)
    mean = std * torch.empty(500, dtype=torch.float64).uniform_(-4, 4, generator=generator)
    naive, ours = PRINTED[name](mean, std), REMOVAL[name](mean, std)
    if name in ("e_exp", "snr_exp"):
        naive = naive.log()
    if name == "snr_abs":
        pairs = zip(mean.abs().tolist(), std.tolist(), strict=True)
        exact = [float(truth.snr_abs(m, s)) for m, s in pairs]
        ours = torch.tensor(exact, dtype=torch.float64)
    # 1e-11: the variances lose up to four digits of sixteen.
    assert (naive - ours).abs().max() < 1e-11


def test_printed_snr_exp_fails_in_float32_at_the_authors_scale():
    """0 (a NaN), inf, or more than 10 % off for about 5, 12 and 50 % of the weights."""
    generator = torch.Generator().manual_seed(0)
    mean = 0.01 * torch.randn(200_000, generator=generator)
    std = (0.0006 + 0.0005 * torch.randn(200_000, generator=generator)).abs()
    naive, exact = PRINTED["snr_exp"](mean, std), REMOVAL["snr_exp"](mean, std).exp()
    assert not naive.isnan().any()
    assert 0.02 < (naive == 0).double().mean() < 0.08
    assert 0.08 < naive.isinf().double().mean() < 0.18
    assert 0.40 < ((naive.double() - exact).abs() > 0.1 * exact).double().mean() < 0.60
    assert exact.isfinite().all()
