"""The native engine's shared library: found, loaded and called through ctypes.

The library is compiled when the package is installed. Where it is missing (no compiler, a foreign
platform) everything runs on the masked backend, and ``reason`` says why.
"""

from __future__ import annotations

import ctypes
import platform
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from gossamer.errors import GossamerError, InvalidValue
from gossamer.ops.torch_private import constant_when_compiled

DTYPES = {torch.float32: 0, torch.float64: 1}

_STATUS = {
    1: ("memory", "is not enough for the native engine's workspace", "use a smaller batch"),
    2: ("layer", "is too large for the native engine's 32-bit offsets", "use backend='masked'"),
    3: (
        "arguments",
        "do not describe a layer with all its arrays in memory",
        "give plain tensors on the CPU, and rebuild the layer's pattern",
    ),
}

_Spatial = c_int64 * 3


class Geometry(Structure):
    """``GsGeometry`` of csrc/gossamer.h."""

    _fields_ = (
        ("batch", c_int64),
        ("channels", c_int64),
        ("outputs", c_int64),
        ("groups", c_int64),
        ("in_", _Spatial),
        ("out", _Spatial),
        ("kernel", _Spatial),
        ("stride", _Spatial),
        ("dilation", _Spatial),
        ("up", _Spatial),
        ("pad", _Spatial),
    )


class PatternView(Structure):
    """``GsPattern``: addresses of the tensors of a ``Pattern``."""

    _fields_ = (
        ("nnz", c_int64),
        ("row_ptr", c_void_p),
        ("row_cols", c_void_p),
        ("row_cols_step", c_int64),
        ("row_perm", c_void_p),
        ("col_ptr", c_void_p),
        ("col_rows", c_void_p),
        ("col_perm", c_void_p),
    )


class PatternOut(Structure):
    """``GsPatternOut``."""

    _fields_ = (
        ("row_ptr", c_void_p),
        ("row_cols", c_void_p),
        ("row_perm", c_void_p),
        ("col_ptr", c_void_p),
        ("col_rows", c_void_p),
        ("col_perm", c_void_p),
    )


class Forward(Structure):
    """``GsForward``."""

    _fields_ = (
        ("x", c_void_p),
        ("x_batch_stride", c_int64),
        ("x_channel_stride", c_int64),
        ("mean", c_void_p),
        ("variance", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("second", c_void_p),
        ("has_seed", c_int64),
        ("seed", c_uint64),
        ("y_by_feature", c_int64),
    )


class Backward(Structure):
    """``GsBackward``."""

    _fields_ = (
        ("x", c_void_p),
        ("x_batch_stride", c_int64),
        ("x_channel_stride", c_int64),
        ("mean", c_void_p),
        ("variance", c_void_p),
        ("gradient", c_void_p),
        ("g_batch_stride", c_int64),
        ("g_channel_stride", c_int64),
        ("slope", c_void_p),
        ("gradient2", c_void_p),
        ("dx", c_void_p),
        ("dmean", c_void_p),
        ("dvariance", c_void_p),
        ("dx_by_feature", c_int64),
    )


class Posterior(Structure):
    """``GsPosterior``."""

    _fields_ = (
        ("task", c_int64),
        ("count", c_int64),
        ("mean", c_void_p),
        ("raw", c_void_p),
        ("dvariance", c_void_p),
        ("variance", c_void_p),
        ("raw_grad", c_void_p),
        ("prior", c_double),
    )


class Samples(Structure):
    """``GsSamples``."""

    _fields_ = (
        ("samples", c_int64),
        ("rows", c_int64),
        ("x", c_void_p),
        ("x_sample_stride", c_int64),
        ("x_row_stride", c_int64),
        ("x_channel_stride", c_int64),
        ("mean", c_void_p),
        ("deviation", c_void_p),
        ("seeds", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
    )


class BatchNorm(Structure):
    """``GsBatchNorm``."""

    _fields_ = (
        ("batch", c_int64),
        ("channels", c_int64),
        ("size", c_int64),
        ("relu", c_int64),
        ("evaluates", c_int64),
        ("eps", c_double),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("gradient", c_void_p),
        ("y", c_void_p),
        ("mean", c_void_p),
        ("variance", c_void_p),
        ("inverse", c_void_p),
        ("dx", c_void_p),
        ("dweight", c_void_p),
        ("dbias", c_void_p),
        ("dresidual", c_void_p),
    )


class Natural(Structure):
    """``GsNatural``."""

    _fields_ = (
        ("task", c_int64),
        ("count", c_int64),
        ("seed", c_uint64),
        ("first", c_uint64),
        ("size", c_double),
        ("decay", c_double),
        ("lr", c_double),
        ("new_gradient", c_double),
        ("new_square", c_double),
        ("new_curvature", c_double),
        ("scale", c_double),
        ("max_step", c_double),
        ("theta", c_void_p),
        ("mean", c_void_p),
        ("eps", c_void_p),
        ("curvature", c_void_p),
        ("momentum", c_void_p),
        ("square", c_void_p),
        ("gradient", c_void_p),
        ("product", c_void_p),
        ("decays", c_void_p),
    )


_SIGNATURES: dict[str, tuple[type | None, list[object]]] = {
    "gs_forward": (
        c_int,
        [POINTER(Geometry), POINTER(PatternView), c_int, POINTER(Forward), c_int],
    ),
    "gs_backward": (
        c_int,
        [POINTER(Geometry), POINTER(PatternView), c_int, POINTER(Backward), c_int],
    ),
    "gs_samples": (
        c_int,
        [POINTER(Geometry), POINTER(PatternView), c_int, POINTER(Samples), c_int],
    ),
    "gs_pattern": (c_int, [POINTER(Geometry), c_int, c_int64, c_void_p, POINTER(PatternOut)]),
    "gs_normal": (c_int, [c_int, c_uint64, c_uint64, c_int64, c_void_p, c_int]),
    "gs_normal_at": (c_int, [c_int, c_uint64, c_void_p, c_int64, c_void_p, c_int]),
    "gs_posterior": (c_int, [c_int, POINTER(Posterior), POINTER(c_double), c_int]),
    "gs_second_moment": (
        c_int,
        [c_int, c_int64, c_void_p, c_void_p, POINTER(c_double), c_int],
    ),
    "gs_batchnorm": (c_int, [c_int, POINTER(BatchNorm), c_int]),
    "gs_natural": (c_int, [c_int, POINTER(Natural), c_int]),
    "gs_isa": (c_char_p, []),
    "gs_use_isa": (c_int, [c_char_p]),
    "gs_release": (None, []),
}


def library_path() -> Path:
    """Where the compiled library lies, whether or not it is there."""
    return Path(__file__).with_name("libgossamer.so")


@lru_cache(maxsize=1)
def _load() -> tuple[ctypes.CDLL | None, str]:
    path = library_path()
    if not path.exists():
        return None, f"{path.name} was not built: install the package with a C++ compiler at hand"
    try:
        # torch is imported by now, so that its OpenMP runtime is the one that is found.
        found = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{path.name} does not load on {platform.machine()}: {error}"
    missing = [name for name in _SIGNATURES if not hasattr(found, name)]
    if missing:
        return None, f"{path.name} lacks {missing[0]}, it is older than the package: install again"
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype = result
        function.argtypes = arguments
    return found, ""


@constant_when_compiled
def is_available() -> bool:
    """Whether the native engine can be used in this process."""
    return _load()[0] is not None


def reason() -> str:
    """Why the native engine cannot be used; empty where it can."""
    return _load()[1]


def loaded() -> ctypes.CDLL:
    """The loaded library, or a plain error."""
    found, why = _load()
    if found is None:
        raise InvalidValue("backend", "native", f"is not available: {why}", "use 'masked'")
    return found


def check(status: int) -> None:
    """Raise what a status code of the library stands for."""
    if status == 0:
        return
    name, rule, step = _STATUS[status]
    raise GossamerError(name, None, rule, step)


def isa() -> str:
    """The instruction set that the engine uses: ``avx512``, ``avx2``, ``neon`` or ``generic``."""
    name: bytes = loaded().gs_isa()
    return name.decode()


def use_isa(name: str) -> None:
    """Use another instruction set of this processor, to test or to measure it."""
    if loaded().gs_use_isa(name.encode()) != 0:
        raise InvalidValue("isa", name, "is not one that this processor runs", f"it uses {isa()}")


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's data; ``None``, which C reads as null, for no or empty tensors."""
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()
