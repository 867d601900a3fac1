"""Which engine a layer gets when nobody chose one.

The rule is static: it looks at the layer, never at a clock, so that a run takes the same engines
wherever it goes on. Its constants are estimates: see docs/native.md.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch

from gossamer.ops.backend import BACKENDS, backend
from gossamer.ops.layout import Layout
from gossamer.ops.library import is_available, reason

AUTO = "auto"

MAX_DENSITY = {"linear": 0.3, "conv": 0.4, "conv_transpose": 0.2}
"""Above this share of kept weights dense products are faster."""

MIN_WEIGHTS = 2048
"""Below this number of dense weights a layer costs what its call costs, whatever the engine."""


def choose(name: str, layout: Layout, nnz: int, device: torch.device, dtype: torch.dtype) -> str:
    """The engine for a layer: ``name``, or where that is ``auto`` the one that suits it."""
    if name != AUTO:
        backend(name)
        return name
    if not is_available():
        _tell_once()
        return "masked"
    sparse_enough = nnz <= MAX_DENSITY[layout.kind] * layout.numel
    runs = BACKENDS["native"].supports(layout, device, dtype)
    return "native" if runs and sparse_enough and layout.numel >= MIN_WEIGHTS else "masked"


@lru_cache(maxsize=1)
def _tell_once() -> None:
    warnings.warn(
        f"the native engine is not available ({reason()}): layers run on the masked backend, at "
        "the cost of dense ones",
        stacklevel=2,
    )
