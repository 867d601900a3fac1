"""What computes the layers: the one face of this package.

The contract is at the top: ``backend``, ``layout``, ``pattern``, ``growth``, ``choice``, ``noise``.
``torch/`` fulfils it in plain torch, ``native/`` on the C++ engine. Other packages import from
here, never from deeper.
"""

from gossamer.ops import natural
from gossamer.ops.backend import BACKENDS, Backend, get_backend
from gossamer.ops.choice import AUTO, MEASURE, choose
from gossamer.ops.growth import Growth, Reducer
from gossamer.ops.layout import Layout, resolve_padding
from gossamer.ops.native import gaussian, library
from gossamer.ops.native.batchnorm import batchnorm, batchnorm_relu_by, runs_batchnorm
from gossamer.ops.noise import draw_seed, fold_seed, normal, normal_like
from gossamer.ops.pattern import Pattern
from gossamer.ops.torch.draws import draw
from gossamer.ops.torch.reading import ReadingBackend
from gossamer.ops.torch_private import (
    NOT_OVERRIDDEN,
    in_backward,
    is_recorded,
    is_transformed,
    version_of,
)

__all__ = [
    "AUTO",
    "BACKENDS",
    "MEASURE",
    "NOT_OVERRIDDEN",
    "Backend",
    "Growth",
    "Layout",
    "Pattern",
    "ReadingBackend",
    "Reducer",
    "batchnorm",
    "batchnorm_relu_by",
    "choose",
    "draw",
    "draw_seed",
    "fold_seed",
    "gaussian",
    "get_backend",
    "in_backward",
    "is_recorded",
    "is_transformed",
    "library",
    "natural",
    "normal",
    "normal_like",
    "resolve_padding",
    "runs_batchnorm",
    "version_of",
]
