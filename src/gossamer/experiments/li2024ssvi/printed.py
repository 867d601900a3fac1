"""The removal criteria evaluated as the SSVI paper prints them. NOT for training.

They exist for one purpose: to reproduce the paper's figures on how far the removed sets of the
criteria overlap (Fig. 5, Tables 5-7). Those figures show SNR(θ) and SNR(|θ|) drifting apart, while
in exact arithmetic the two rank alike: the difference is rounding in float32. To show that, each
formula runs here term by term in the dtype of its inputs, and NaN (the root of a variance rounded
below 0) becomes 0, "remove first", as in the authors' code. Infinite values stay.

Everything else uses ``gossamer.core.removal.REMOVAL``, whose first six keys are these.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.core.removal import Criterion


def _mean_abs(mean: Tensor, std: Tensor) -> Tensor:
    return mean.abs()


def _snr(mean: Tensor, std: Tensor) -> Tensor:
    return _nan_to_zero(mean.abs() / std)


def _e_abs(mean: Tensor, std: Tensor) -> Tensor:
    return _nan_to_zero(_expected_abs(mean, std))


def _snr_abs(mean: Tensor, std: Tensor) -> Tensor:
    expected = _expected_abs(mean, std)
    # Eq. 7.
    return _nan_to_zero(expected / torch.sqrt(std**2 + mean**2 - expected**2))


def _e_exp(mean: Tensor, std: Tensor, lam: float = 1.0) -> Tensor:
    return _nan_to_zero(_expected_exp(mean, std, lam))


def _snr_exp(mean: Tensor, std: Tensor, lam: float = 1.0) -> Tensor:
    expected = _expected_exp(mean, std, lam)
    # Sec. 3.3.1, criterion 6.
    return _nan_to_zero(expected / torch.sqrt(_expected_exp(mean, std, 2 * lam) - expected**2))


def _expected_abs(mean: Tensor, std: Tensor) -> Tensor:
    # Eq. 6; Eq. 15, its misprint, is left out.
    density = torch.exp(-(mean**2) / (2 * std**2))
    return mean * (2 * _cdf(mean / std) - 1) + 2 * std / math.sqrt(2 * math.pi) * density


def _expected_exp(mean: Tensor, std: Tensor, lam: float) -> Tensor:
    # Eq. 16.
    half = lam**2 * std**2 / 2
    up = _cdf(mean / std + lam * std) * torch.exp(half + lam * mean)
    return up + _cdf(-mean / std + lam * std) * torch.exp(half - lam * mean)


def _cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _nan_to_zero(score: Tensor) -> Tensor:
    return torch.where(torch.isnan(score), torch.zeros_like(score), score)


PRINTED: dict[str, Criterion] = {
    "mean_abs": _mean_abs,
    "snr": _snr,
    "e_abs": _e_abs,
    "snr_abs": _snr_abs,
    "e_exp": _e_exp,
    "snr_exp": _snr_exp,
}
