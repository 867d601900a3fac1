"""Moments of |θ| and of e^{λ|θ|} for a Gaussian weight θ ~ N(mean, std²): the folded normal.

Symbols: μ = ``mean``, σ = ``std``, r = |μ|/σ, a = λσ, φ and Φ the normal density and CDF, and
Y ~ N(r, 1), so that |θ| has the law of σ|Y|.

The printed formulas subtract nearly equal numbers (Var|θ| for large r, Var e^{λ|θ|} for small a)
and overflow (e^{λ|μ|}). Here everything is reduced to the *overlap*, the mass that folding moves,

    M_n = ∫_0^∞ yⁿ φ(y + r) dy,   M_0 = Φ(-r),   M_1 = φ(r) - r Φ(-r),
    M_{n+1} = n M_{n-1} - r M_n,

which fades like φ(r): what is left after the leading terms is then small by itself, not by
cancellation. All is computed in float64 and returned in float64, without gradients: these numbers
rank weights. Measured against 50-digit arithmetic for r in [0, 1e5], σ in [1e-8, 10] and λ in
[1e-3, 1e2], the relative errors stay below 2e-15 (``mean_abs``, ``var_abs``), 2e-14
(``log_mean_exp_abs``) and 1e-12 (``log_snr_exp_abs``; absolute where that log is below 1 in size).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.errors import InvalidValue

# Below this a = λσ the power series of the overlap is used. There its first omitted term and the
# cancellation of the closed form above it both cost less than 1e-12 in log SNR.
_SERIES_BELOW = 0.02

# A std of exactly 0 (softplus underflow) is taken as this: the limit σ → 0 without 0/0.
_SMALLEST_STD = 1e-100

_NO_FLOAT64 = frozenset({"mps"})


def to_float64(tensor: Tensor) -> Tensor:
    """Returns ``tensor`` detached, in float64, on the CPU where its device has no float64."""
    if tensor.device.type in _NO_FLOAT64:
        tensor = tensor.cpu()
    return tensor.detach().to(torch.float64)


def to_device_of(score: Tensor, tensor: Tensor) -> Tensor:
    """Returns ``score`` on the device of ``tensor``, in float32 where that has no float64."""
    if tensor.device.type in _NO_FLOAT64:
        return score.to(torch.float32).to(tensor.device)
    return score


def ratio(mean: Tensor, std: Tensor) -> Tensor:
    """Returns r = |μ|/σ, the signal-to-noise ratio of θ; see :func:`mean_abs` for the shapes."""
    return to_device_of(_standard(mean, std)[0], mean)


def mean_abs(mean: Tensor, std: Tensor) -> Tensor:
    """Returns E|θ|.

    Args:
        mean: Means, any shape.
        std: Standard deviations, > 0, the shape of ``mean``.

    Returns:
        float64 tensor of that shape.
    """
    r, sigma = _standard(mean, std)
    density = torch.exp(-0.5 * r * r)
    # Eq. 6, with 2Φ(r) - 1 = erf(r/√2): both terms are positive.
    value = to_float64(mean).abs() * torch.erf(r / math.sqrt(2.0))
    value = value + math.sqrt(2.0 / math.pi) * sigma * density
    return to_device_of(value, mean)


def var_abs(mean: Tensor, std: Tensor) -> Tensor:
    """Returns Var|θ|, the square of the denominator of Eq. 7.

    As printed, σ² + μ² - (E|θ|)² loses all digits for large r. With E|θ| = σ(r + 2M₁) it is
    σ²(1 - 4M₁(r + M₁)), which lies between (1 - 2/π)σ² and σ².

    Args:
        mean: Means, any shape.
        std: Standard deviations, > 0, the shape of ``mean``.

    Returns:
        float64 tensor of that shape.
    """
    r, sigma = _standard(mean, std)
    m1 = _overlap(r, 1)[0]
    return to_device_of(sigma * sigma * (1.0 - 4.0 * m1 * (r + m1)), mean)


def log_mean_exp_abs(mean: Tensor, std: Tensor, lam: float = 1.0) -> Tensor:
    """Returns log E e^{λ|θ|}, positive for all weights; it never overflows, unlike E e^{λ|θ|}.

    Args:
        mean: Means, any shape.
        std: Standard deviations, > 0, the shape of ``mean``.
        lam: λ > 0.

    Returns:
        float64 tensor of that shape.
    """
    _check_lam(lam)
    r, sigma = _standard(mean, std)
    a = lam * sigma
    drift = lam * to_float64(mean).abs()  # ar without the rounding of the quotient
    series = 2.0 * a * torch.exp(-drift - 0.5 * a * a) * _odd_sum(a, _overlap(r, 4))
    folding = torch.where(a < _SERIES_BELOW, series, _folding(a, r))
    # log of Eq. 16: E e^{λ|θ|} = e^{ar + a²/2} (1 + folding).
    return to_device_of(drift + 0.5 * a * a + torch.log1p(folding), mean)


def log_snr_exp_abs(mean: Tensor, std: Tensor, lam: float = 1.0) -> Tensor:
    """Returns the log of E e^{λ|θ|} / sqrt(Var e^{λ|θ|}).

    SNR^-2 = E e^{2λ|θ|} / (E e^{λ|θ|})² - 1 = expm1(D) with D = a² + log(1 + q₂) - 2 log(1 + q₁),
    where q₁ and q₂ are the foldings (see :func:`log_mean_exp_abs`) at a and 2a.

    Args:
        mean: Means, any shape.
        std: Standard deviations, > 0, the shape of ``mean``.
        lam: λ > 0.

    Returns:
        float64 tensor of that shape.
    """
    _check_lam(lam)
    r, sigma = _standard(mean, std)
    a = lam * sigma
    near = -torch.log(a) - 0.5 * torch.log(_variance_over_a2(a, r))
    d = a * a + torch.log1p(_folding(2.0 * a, r)) - 2.0 * torch.log1p(_folding(a, r))
    # log expm1(D) = D + log(1 - e^-D), which neither overflows nor (D is > 1e-4 here) cancels.
    far = -0.5 * (d + torch.log(-torch.expm1(-d)))
    return to_device_of(torch.where(a < _SERIES_BELOW, near, far), mean)


def _standard(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Returns r = |μ|/σ and σ in float64."""
    sigma = to_float64(std).clamp_min(_SMALLEST_STD)
    return to_float64(mean).abs() / sigma, sigma


def _overlap(r: Tensor, count: int) -> list[Tensor]:
    """Returns M_1, M_3, … (``count`` of them) at r."""
    below = 0.5 * torch.erfc(r / math.sqrt(2.0))
    here = torch.exp(-0.5 * r * r) / math.sqrt(2.0 * math.pi) - r * below
    odd = [here]
    for n in range(1, 2 * count - 1):
        below, here = here, n * below - r * here
        if n % 2 == 0:
            odd.append(here)
    return odd


def _odd_sum(a: Tensor, odd: list[Tensor]) -> Tensor:
    """Returns Σ_k a^{2k} M_{2k+1} / (2k+1)!, that is ∫_0^∞ sinh(ay) φ(y + r) dy / a."""
    total = odd[-1]
    for k in range(len(odd) - 1, 0, -1):
        total = odd[k - 1] + a * a / (2 * k * (2 * k + 1)) * total
    return total


def _folding(a: Tensor, r: Tensor) -> Tensor:
    """Returns E e^{a|Y|} / E e^{aY} - 1 = e^{-2ar} Φ(a - r) - Φ(-r - a), in [0, 1].

    Neither factor exceeds 1, so nothing overflows, and where one underflows the product is 0 to
    any digit that counts. The absolute error is one float64 ulp of 1: too much where the result is
    itself of order a ≪ 1; the series serves there.
    """
    mirrored = torch.exp(-2.0 * a * r) * 0.5 * torch.erfc((r - a) / math.sqrt(2.0))
    return mirrored - 0.5 * torch.erfc((r + a) / math.sqrt(2.0))


def _variance_over_a2(a: Tensor, r: Tensor) -> Tensor:
    """Returns Var e^{a|Y|} / (a E e^{a|Y|})² for small a; it tends to Var|Y| as a → 0.

    (1 + q₁)² times it is [expm1(a²)(1 + q₂) + (q₂ - 2q₁) - q₁²] / a². In q₂ - 2q₁ the terms of
    order a cancel; they are taken out on paper, so that every term below is of order 1.
    """
    odd = _overlap(r, 4)
    _, m3, m5, m7 = odd
    s1 = _odd_sum(a, odd)
    growth = 0.5 * m3 + a * a * (m5 / 8.0 + a * a * m7 / 80.0)  # (_odd_sum(2a) - s1) / a²
    fade1 = torch.exp(-a * r - 0.5 * a * a)
    fade2 = torch.exp(-2.0 * a * r - 2.0 * a * a)
    q1 = 2.0 * a * fade1 * s1
    q2 = 4.0 * a * fade2 * (s1 + a * a * growth)
    decay = torch.expm1(-a * r - 1.5 * a * a) / a  # fade2 = fade1 (1 + a decay)
    cross = 4.0 * (fade1 * decay * s1 + fade2 * a * growth)  # (q₂ - 2q₁) / a²
    own = torch.expm1(a * a) / (a * a) * (1.0 + q2)
    return (own + cross - (q1 / a) ** 2) / (1.0 + q1) ** 2


def _check_lam(lam: float) -> None:
    if not (lam > 0.0 and math.isfinite(lam)):
        raise InvalidValue("lam", lam, "must be finite and > 0", "the papers use 1")
