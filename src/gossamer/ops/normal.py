"""The one source of noise: standard normals as a pure function of a seed.

A seed is a 0-d int64 CPU tensor. In training it is drawn from torch's default generator, so
``torch.manual_seed``, activation checkpointing and ``torch.compile`` behave as with Dropout; in
prediction it is folded from integers, so a sample does not depend on what was drawn before it.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

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
def _normal_op(seed: Tensor, like: Tensor) -> Tensor:
    value = int(seed)
    generator = torch.Generator(like.device)
    # torch's CPU engine reads the low 32 bits only: fold the high ones in.
    generator.manual_seed((value ^ (value >> 32)) & 0xFFFFFFFF)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=noise_dtype(like))


@_normal_op.register_fake
def _(seed: Tensor, like: Tensor) -> Tensor:
    return like.new_empty(like.shape, dtype=noise_dtype(like))


def noise_dtype(like: Tensor) -> torch.dtype:
    """Noise is float32, or float64 for float64 networks: half precision has too few tail values."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def normal(seed: Tensor, like: Tensor) -> Tensor:
    """Standard normals of the shape and device of ``like``, fixed by ``seed``.

    Opaque to ``torch.compile``.

    Args:
        seed: 0-d int64 CPU tensor.
        like: Any tensor; only shape, device and dtype count.

    Returns:
        float32 (float64 if ``like`` is float64) of ``like.shape``.
    """
    noise: Tensor = _normal_op(seed, like.detach())
    return noise
