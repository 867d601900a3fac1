"""Engines of the layers.

The backend protocol, the masked reference, noise and the catching of addition scores.
"""

from gossamer.ops import posterior
from gossamer.ops.backend import BACKENDS, Backend, backend
from gossamer.ops.choice import AUTO, MEASURE, choose
from gossamer.ops.growth import Growth
from gossamer.ops.layout import Layout, resolve_padding
from gossamer.ops.normal import draw_seed, fold_seed, normal, normal_like
from gossamer.ops.pattern import Pattern
from gossamer.ops.sample_ops import draw

__all__ = [
    "AUTO",
    "BACKENDS",
    "MEASURE",
    "Backend",
    "Growth",
    "Layout",
    "Pattern",
    "backend",
    "choose",
    "draw",
    "draw_seed",
    "fold_seed",
    "normal",
    "normal_like",
    "posterior",
    "resolve_padding",
]
