"""What a weight stands for: a product, a convolution, a transposed one, a table; its geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

Kind = Literal["linear", "conv", "conv_transpose", "lookup"]


@dataclass(frozen=True)
class Layout:
    """Shape and geometry of a weight; hashable, free of tensors.

    Args:
        kind: Which map.
        shape: Dense weight shape: ``[out, in]``, ``[out, in/groups, *kernel]`` or, transposed,
            ``[in, out/groups, *kernel]``; of a table ``[rows, columns]``.
        stride: Per spatial dimension; empty for linear, as are the next three.
        padding: ``(before, after)`` per spatial dimension. For a transposed convolution both are
            the usual padding argument.
        dilation: Per spatial dimension.
        output_padding: Per spatial dimension, transposed convolution only.
        groups: Channel groups.
        padding_mode: ``zeros``, ``reflect``, ``replicate`` or ``circular``.
        by_feature: Whether a linear layer's output ``[B, out]`` may lie in memory as ``[out, B]``,
            the order of the native kernels.
        padding_idx: Of a table: the index that stands for no row. ``shape`` does not count it.
    """

    kind: Kind
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    padding_mode: str = "zeros"
    by_feature: bool = False
    padding_idx: int | None = None
    dims: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", len(self.shape) - 2)

    @property
    def is_linear(self) -> bool:
        """Whether the map is a matrix product."""
        return self.kind == "linear"

    @property
    def is_lookup(self) -> bool:
        """Whether rows are looked up, by whole numbers: nothing is multiplied."""
        return self.kind == "lookup"

    @property
    def is_transposed(self) -> bool:
        """Whether the map is a transposed convolution, whose weight has its inputs first."""
        return self.kind == "conv_transpose"

    @property
    def numel(self) -> int:
        """Number of dense weights."""
        return prod(self.shape)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Kernel size per spatial dimension; empty for linear."""
        return self.shape[2:]

    @property
    def fan_in(self) -> int:
        """Input units or channels per group; the rows of a table."""
        inputs_first = self.is_transposed or self.is_lookup
        return self.shape[0] // self.groups if inputs_first else self.shape[1]

    @property
    def fan_out(self) -> int:
        """Output units or channels; the columns of a table."""
        inputs_first = self.is_transposed or self.is_lookup
        return self.shape[1] * self.groups if inputs_first else self.shape[0]

    @property
    def channels(self) -> int:
        """Input units or channels of all groups."""
        return self.fan_in * self.groups

    @property
    def inputs_per_output(self) -> int:
        """Dense weights that meet in one output element (fan-in times kernel size).

        One in a table: an output is a weight.
        """
        return 1 if self.is_lookup else self.fan_in * prod(self.kernel)

    @property
    def symmetric_padding(self) -> tuple[int, ...] | None:
        """The padding as torch's argument, or ``None`` where the input must be padded first."""
        if self.padding_mode != "zeros" or any(a != b for a, b in self.padding):
            return None
        return tuple(a for a, _ in self.padding)

    @property
    def is_padded_by_product(self) -> bool:
        """Whether torch's product pads as the layout asks; if not the input is padded first."""
        return self.kind != "conv" or self.symmetric_padding is not None

    @property
    def pad_argument(self) -> list[int]:
        """The padding in the order of ``torch.nn.functional.pad``: last dimension first."""
        return [side for pair in reversed(self.padding) for side in pair]


def resolve_padding(
    padding: str | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Torch's padding argument, words included, as ``(before, after)`` per dimension."""
    if padding == "valid":
        return tuple((0, 0) for _ in kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((int(p), int(p)) for p in padding)
