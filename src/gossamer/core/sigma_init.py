"""Standard deviation of fresh weights (Sec. 3.2): a σ of 0 would have no gradient, Eq. (5)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gossamer.errors import UnknownName

FRESH_EPS = 1e-6
"""The small constant of the authors' code for ``eps``."""


def mean_of_survivors(surviving_std: Tensor) -> Tensor:
    """Arithmetic mean of σ over the weights of the layer that stay (the paper's default).

    Shape ``[]``.

    The authors' code averages the softplus pre-image instead; the mean of σ is what the paper says.
    """
    return surviving_std.mean()


def small_constant(surviving_std: Tensor) -> Tensor:
    """``FRESH_EPS`` for every layer. Shape ``[]``."""
    return surviving_std.new_tensor(FRESH_EPS)


SigmaRule = Callable[[Tensor], Tensor]
"""From the σ of the weights that stay to that of a fresh one."""

SIGMA_INIT: dict[str, SigmaRule] = {
    "mean": mean_of_survivors,
    "eps": small_constant,
}


def sigma_rule(name: str) -> SigmaRule:
    """The rule of that name, or a plain error."""
    if name not in SIGMA_INIT:
        raise UnknownName("sigma_init", name, list(SIGMA_INIT))
    return SIGMA_INIT[name]
