"""Counter-based normals in plain torch: any device, no compiler.

The same numbers as the native engine's (csrc/noise.h), to float32's accuracy: Philox-4x32-10
(Salmon et al., SC 2011) and Box-Muller. Elements come in blocks of 64; element 16 j + i of block b
is word j of the Philox block with counter 16 b + i.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox_normal(seed: int, counters: Tensor, dtype: torch.dtype) -> Tensor:
    """Normals ``[n]`` of int64 ``counters`` ``[n]`` under a seed in [0, 2^63)."""
    block, inside = counters // 64, counters % 64
    words = _philox(seed, block * 16 + inside % 16)
    word = inside // 16  # 0, 1: the first pair; 2, 3: the second
    first = word < 2
    radius = torch.where(first, words[0], words[2]).double()
    angle = torch.where(first, words[1], words[3])
    # A quarter of a turn from the two high bits, the rest from the others, as a signed fraction.
    rest = ((angle << 2) & _MASK).double()
    rest = torch.where(rest >= 2.0**31, rest - 2.0**32, rest)
    turned = rest * (pi / 4.0 * 2.0**-31) + (angle >> 30).double() * (pi / 2.0)
    size = (-2.0 * ((radius + 0.5) * 2.0**-32).log()).sqrt()
    return (size * torch.where(word % 2 == 0, turned.cos(), turned.sin())).to(dtype)


def _philox(seed: int, counters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words per counter, in int64."""
    c0, c1 = counters & _MASK, (counters >> 32) & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(words: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low half of the 64-bit product of 32-bit words with a 32-bit factor.

    Signed 64-bit products wrap as unsigned ones do; only the sign of the shift needs care.
    """
    product = words * factor
    return (product >> 32) & _MASK, product & _MASK
