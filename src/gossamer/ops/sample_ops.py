"""Many draws of one weight in one call: every posterior sample has rows and weights of its own.

Rows come sample by sample: ``[S · B, ...]`` holds the B rows of sample 0, then those of sample 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gossamer.ops import library as native
from gossamer.ops.geometry import decode, geometry, output_shape
from gossamer.ops.normal import normal_like
from gossamer.ops.pattern import view


def draw(mean: Tensor, std: Tensor, seed: Tensor) -> Tensor:
    """θ = mean + std ⊙ ε, ``[nnz]`` in the dtype of ``mean``; ``std`` is float32 at least."""
    drawn = mean.to(std.dtype) + std * normal_like(seed, mean)
    return drawn.to(mean.dtype)


def one_by_one(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, mean: Tensor, std: Tensor, seeds: Tensor
) -> Tensor:
    """The samples in turn, by any engine's ``product(rows, values)``."""
    parts = zip(torch.chunk(x, seeds.numel()), seeds.unbind(), strict=True)
    return torch.cat([product(rows, draw(mean, std, seed)) for rows, seed in parts])


def runs_together(kind: str) -> bool:
    """Whether the native kernel takes a call: it has no gradient and no transposed convolution."""
    return (
        kind != "conv_transpose"
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def together(
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    bias: Tensor | None,
    seeds: Tensor,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> Tensor:
    """All samples by the native kernel, which draws each weight where it uses it.

    Args:
        x: ``[S · B, channels, *spatial]`` of the dtype of ``mean``. One row that all samples share
            may be expanded, with stride 0: it is read once.
        mean: ``[nnz]``.
        std: ``[nnz]``.
        bias: ``[outputs]`` or ``None``.
        seeds: int64 ``[S]`` on the CPU.
        indices: The pattern, as the other operators take it.
        derived: The same.
        growth: Not read: there is no backward pass.
        spec: The encoded layout.

    Returns:
        ``[S · B, outputs, *spatial]``.
    """
    layout = decode(tuple(spec))
    samples = seeds.numel()
    shape = (x.shape[0] // samples, *x.shape[1:])
    is_shared = shape[0] == 1 and x.stride(0) == 0
    x = x[:1] if is_shared else x
    x = x if layout.kind == "linear" else x.contiguous()
    y = torch.empty([samples * shape[0], *output_shape(layout, shape)[1:]], dtype=x.dtype)
    if y.numel() == 0:
        return y
    call = native.Samples(
        samples=samples,
        rows=shape[0],
        x=x.data_ptr(),
        x_sample_stride=0 if is_shared else shape[0] * x.stride(0),
        x_row_stride=x.stride(0),
        x_channel_stride=x.stride(1),
        mean=(mean := mean.contiguous()).data_ptr(),
        deviation=(std := std.contiguous()).data_ptr(),
        seeds=(seeds := seeds.contiguous()).data_ptr(),
        bias=None if bias is None else (bias := bias.contiguous()).data_ptr(),
        y=y.data_ptr(),
    )
    native.check(
        native.library().gs_samples(
            geometry(layout, shape),
            view(indices, tuple(derived), layout),
            native.DTYPES[x.dtype],
            call,
            torch.get_num_threads(),
        )
    )
    return y
