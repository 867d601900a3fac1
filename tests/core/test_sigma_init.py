"""Standard deviations of fresh weights."""

from __future__ import annotations

import pytest
import torch

from gossamer.core.sigma_init import SIGMA_INIT, sigma_rule
from gossamer.errors import UnknownName


def test_mean_is_the_arithmetic_mean_of_the_std_itself():
    std = torch.tensor([1e-3, 3e-3, 8e-3], dtype=torch.float64)
    assert float(sigma_rule("mean")(std)) == pytest.approx(4e-3, rel=1e-15)


def test_eps_is_small_positive_and_keeps_the_dtype():
    for dtype in (torch.float32, torch.float64):
        fresh = sigma_rule("eps")(torch.ones(3, dtype=dtype))
        assert fresh.dtype == dtype
        assert fresh.shape == ()
        assert float(fresh) == pytest.approx(1e-6, rel=1e-6)


def test_unknown_rule():
    with pytest.raises(
        UnknownName, match="sigma_init = median: is not known; choose one of: eps, mean"
    ):
        sigma_rule("median")
    assert set(SIGMA_INIT) == {"mean", "eps"}
