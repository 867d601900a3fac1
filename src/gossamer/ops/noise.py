"""The one source of noise: standard normals as a pure function of a seed and a counter.

A seed is a 0-d int64 CPU tensor. In training it is drawn from torch's default generator, so
``torch.manual_seed``, activation checkpointing and ``torch.compile`` behave as with Dropout; in
prediction it is folded from integers, so a sample does not depend on what was drawn before it.

The element at flat position i of a tensor takes counter i: noise does not depend on chunks, threads
or layout, and a backend may draw it again instead of storing it.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.ops.native.library import DTYPES, check, is_available, loaded
from gossamer.ops.torch.philox import philox_normal

_SEED_LIMIT = 2**63 - 1


def draw_seed() -> Tensor:
    """A fresh seed from torch's default generator: 0-d int64."""
    return torch.randint(_SEED_LIMIT, (), dtype=torch.int64)


def fold_seed(seed: int, *counters: int) -> int:
    """A seed in [0, 2^63) that depends on all arguments.

    Used for (seed, sample, row block, layer, call).
    """
    words = struct.pack(f"<{1 + len(counters)}q", _as_int64(seed), *map(_as_int64, counters))
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1


def _as_int64(value: int) -> int:
    return ((int(value) + 2**63) % 2**64) - 2**63


@torch.library.custom_op("gossamer::normal", mutates_args=())
def _normal_op(seed: Tensor, counters: Tensor, double: bool) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    _require_seed(seed)
    if counters.dtype != torch.int64:
        raise InvalidData("counters", str(counters.dtype), "must be torch.int64", "convert them")
    if counters.device.type != "cpu" or not is_available():
        return philox_normal(int(seed), counters.flatten(), dtype).view(counters.shape)
    flat = counters.contiguous()
    out = torch.empty(counters.shape, dtype=dtype)
    check(
        loaded().gs_normal_at(
            DTYPES[dtype], int(seed), flat.data_ptr(), flat.numel(), out.data_ptr(), _threads()
        )
    )
    return out


@_normal_op.register_fake
def _(seed: Tensor, counters: Tensor, double: bool) -> Tensor:
    return counters.new_empty(counters.shape, dtype=torch.float64 if double else torch.float32)


@torch.library.custom_op("gossamer::normal_like", mutates_args=())
def _normal_like_op(seed: Tensor, like: Tensor) -> Tensor:
    dtype = noise_dtype(like)
    _require_seed(seed)
    if like.device.type != "cpu" or not is_available():
        counters = torch.arange(like.numel(), device=like.device)
        return philox_normal(int(seed), counters, dtype).view(like.shape)
    out = torch.empty(like.shape, dtype=dtype)
    check(loaded().gs_normal(DTYPES[dtype], int(seed), 0, out.numel(), out.data_ptr(), _threads()))
    return out


@_normal_like_op.register_fake
def _(seed: Tensor, like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=noise_dtype(like), device=like.device)


def _require_seed(seed: Tensor) -> None:
    if seed.dim() != 0 or seed.dtype != torch.int64 or not seed.is_cpu:
        found = f"{seed.dtype} {tuple(seed.shape)} on {seed.device}"
        raise InvalidData("seed", found, "must be a 0-d int64 tensor on the CPU", "use draw_seed()")


def _threads() -> int:
    return torch.get_num_threads()


def noise_dtype(like: Tensor) -> torch.dtype:
    """Noise is float32, or float64 for float64 networks: half precision has too few tail values."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def normal(seed: Tensor, counters: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The standard normals of given counters: what a layer used at those places.

    Args:
        seed: 0-d int64 CPU tensor.
        counters: int64, any shape: flat positions in the tensor that the noise is for.
        dtype: float32 or float64; both stand for the same draw, to float32's accuracy.

    Returns:
        ``dtype``, of the shape of ``counters``.
    """
    noise: Tensor = _normal_op(seed, counters, dtype == torch.float64)
    return noise


def normal_like(seed: Tensor, like: Tensor) -> Tensor:
    """Standard normals of the shape and device of ``like``, fixed by ``seed``.

    Opaque to ``torch.compile``.

    Args:
        seed: 0-d int64 CPU tensor.
        like: Any tensor; only shape, device and dtype count.

    Returns:
        float32 (float64 if ``like`` is float64) of ``like.shape``, contiguous.
    """
    noise: Tensor = _normal_like_op(seed, like.detach())
    return noise
