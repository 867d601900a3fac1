"""Which backend a layer gets when nobody chose one.

The rule is static: it looks at the layer, never at a clock, so that a run takes the same backends
wherever it goes on. Its constants were fitted with ``gossamer bench choice``: docs/performance.md.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch

from gossamer.ops.backend import BACKENDS, get_backend
from gossamer.ops.layout import Layout
from gossamer.ops.native.backend import FULL_LIMIT
from gossamer.ops.native.library import is_available, reason

AUTO = "auto"
MEASURE = "measure"
"""As ``auto`` until the layer has timed both backends on its first training input."""

MAX_DENSITY = {
    True: {"linear": 0.5, "conv": 0.5, "conv_transpose": 0.5},
    False: {"linear": 0.4, "conv": 0.5, "conv_transpose": 0.5},
}
"""Above this share of kept weights dense products are faster; True for layers with noise."""

FEW_INPUTS = 64
"""Weights per output up to which dense convolutions are slow, whatever is kept."""

SMALL_NOISY = 2**15
"""Weights up to which a layer with noise costs more for its noise than for its products."""

TINY = {True: 2**10, False: 2**14}
"""Weights below which a linear layer costs what its call costs, whatever the backend."""


def choose(
    name: str, layout: Layout, nnz: int, device: torch.device, dtype: torch.dtype, *, noisy: bool
) -> str:
    """The backend for a layer: ``name``, or where that is none the one that suits the layer.

    Args:
        name: A backend, ``auto`` or ``measure``.
        layout: Of the weight.
        nnz: Kept weights.
        device: Of the weight.
        dtype: Of the weight.
        noisy: Whether the layer trains with local noise.
    """
    if name not in (AUTO, MEASURE):
        get_backend(name)
        return "masked" if layout.is_lookup else name  # which has no kernel
    if not is_available():
        _tell_once()
        return "masked"
    if not BACKENDS["native"].supports(layout, device, dtype):
        return "masked"
    return "native" if _is_faster(layout, nnz, noisy=noisy) else "masked"


def _is_faster(layout: Layout, nnz: int, *, noisy: bool) -> bool:
    """Whether the kernels are expected to beat dense products."""
    if layout.is_linear and layout.groups > 1:  # dense products are one by one
        return nnz < layout.numel or layout.numel <= FULL_LIMIT
    if layout.is_linear and layout.numel < TINY[noisy]:
        return False
    if noisy and layout.numel <= SMALL_NOISY:
        return True
    if layout.kind == "conv" and layout.inputs_per_output <= FEW_INPUTS:
        return nnz < layout.numel or layout.numel <= FULL_LIMIT
    return nnz <= MAX_DENSITY[noisy][layout.kind] * layout.numel


@lru_cache(maxsize=1)
def _tell_once() -> None:
    warnings.warn(
        f"the native engine is not available ({reason()}): layers run on the masked backend, at "
        "the cost of dense ones",
        stacklevel=2,
    )
