"""Engines of the layers.

The backend protocol, the masked reference, noise and the catching of addition scores.
"""

from gossamer.ops.backend import BACKENDS, Backend, backend
from gossamer.ops.growth import Growth
from gossamer.ops.layout import Layout, resolve_padding
from gossamer.ops.normal import draw_seed, fold_seed, normal

__all__ = [
    "BACKENDS",
    "Backend",
    "Growth",
    "Layout",
    "backend",
    "draw_seed",
    "fold_seed",
    "normal",
    "resolve_padding",
]
