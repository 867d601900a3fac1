"""The removal criteria of SSVI (Sec. 3.3.1): a score for each weight; the LOWEST scores leave.

Each is ``f(mean, std)`` with tensors of one shape, μ = ``mean`` and σ = ``std`` of θ ~ N(μ, σ²),
and returns a float64 tensor of that shape (float32 on a device without float64). A score is the
paper's quantity or a strictly increasing function of it, stated below, so that it ranks alike; it
is finite for all finite float32 input.

A new criterion is one function here and one row of ``REMOVAL``.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import TypeAlias

from torch import Tensor

from gossamer.core import folded
from gossamer.errors import UnknownName

Criterion: TypeAlias = Callable[..., Tensor]
"""``f(mean, std)``, with further keyword settings that all have defaults."""


def mean_abs(mean: Tensor, std: Tensor | None = None) -> Tensor:
    """Criterion 1: |μ|. Ignores ``std``, so it also serves deterministic weights."""
    return folded.to_device_of(folded.to_float64(mean).abs(), mean)


def snr(mean: Tensor, std: Tensor) -> Tensor:
    """Criterion 2: SNR(θ) = |μ|/σ."""
    return folded.ratio(mean, std)


def e_abs(mean: Tensor, std: Tensor) -> Tensor:
    """Criterion 3: E|θ|, Eq. 6 (Eq. 15 misprints it)."""
    return folded.mean_abs(mean, std)


def snr_abs(mean: Tensor, std: Tensor) -> Tensor:
    """Criterion 4, the paper's default: SNR(|θ|), Eq. 7, ranked by r = |μ|/σ.

    Eq. 7 depends on r alone: it is h/√(1 + r² - h²) with h(r) = E|θ|/σ, and it is strictly
    increasing. It grows with h²/(1 + r²), whose derivative has the sign of
    h'(1 + r²) - h r = (2Φ(r) - 1) - 2rφ(r) = 2∫_0^r (φ(t) - φ(r)) dt > 0. So criteria 2 and 4
    remove the same set, and r is the better number to rank by: near r = 0, Eq. 7 is
    1.3236 (1 + 0.229 r⁴), so flat that all r < 0.025 share two float32 numbers.
    """
    return folded.ratio(mean, std)


def e_exp(mean: Tensor, std: Tensor, lam: float = 1.0) -> Tensor:
    """Criterion 5: E e^{λ|θ|}, Eq. 16, returned as its log, which does not overflow."""
    return folded.log_mean_exp_abs(mean, std, lam)


def snr_exp(mean: Tensor, std: Tensor, lam: float = 1.0) -> Tensor:
    """Criterion 6: SNR(e^{λ|θ|}), from Eq. 16 at λ and 2λ, returned as its log.

    Kept as printed, though it may not do what one expects: at equal σ it *decreases* in |μ|, from
    about 1.66/(λσ) at μ = 0 to 1/√(e^{λ²σ²} - 1) for r above 3. It removes large σ first and, at
    equal σ, large |μ| first.
    """
    return folded.log_snr_exp_abs(mean, std, lam)


REMOVAL: dict[str, Criterion] = {
    "mean_abs": mean_abs,
    "snr": snr,
    "e_abs": e_abs,
    "snr_abs": snr_abs,
    "e_exp": e_exp,
    "snr_exp": snr_exp,
}

NEEDS_STD: frozenset[str] = frozenset(
    name for name, f in REMOVAL.items() if signature(f).parameters["std"].default is Parameter.empty
)
"""Criteria that cannot rank the weights of a deterministic layer, which have no std.

A criterion that does without gives its ``std`` the default ``None``.
"""


def criterion(name: str) -> Criterion:
    """Returns the criterion of that name.

    Args:
        name: A key of ``REMOVAL``.

    Raises:
        UnknownName: If there is none.
    """
    if name not in REMOVAL:
        raise UnknownName("removal", name, list(REMOVAL))
    return REMOVAL[name]
