"""Many draws of one weight in one call of the native engine.

Every posterior sample has rows and weights of its own. Rows come sample by sample: ``[S · B, ...]``
holds the B rows of sample 0, then those of sample 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.ops.layout import Layout
from gossamer.ops.native import library
from gossamer.ops.native.geometry import geometry, output_shape
from gossamer.ops.native.kernels import Call, plain


def runs_together(layout: Layout) -> bool:
    """Whether the native kernel takes a call: it has no gradient and no transposed convolution."""
    return (
        not layout.is_transposed
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def together(
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    bias: Tensor | None,
    seeds: Tensor,
    call: Call,
) -> Tensor:
    """All samples by the native kernel, which draws each weight where it uses it.

    Args:
        x: ``[S · B, channels, *spatial]`` of the dtype of ``mean``. One row that all samples share
            may be expanded, with stride 0: it is read once.
        mean: ``[nnz]``.
        std: ``[nnz]``.
        bias: ``[outputs]`` or ``None``.
        seeds: int64 ``[S]`` on the CPU.
        call: Pattern and layout.

    Returns:
        ``[S · B, outputs, *spatial]``.
    """
    layout, samples = call.layout, seeds.numel()
    shape = (x.shape[0] // samples, *x.shape[1:])
    is_shared = shape[0] == 1 and x.stride(0) == 0
    x = x[:1] if is_shared else x
    x = plain(x, layout)
    y = torch.empty([samples * shape[0], *output_shape(layout, shape)[1:]], dtype=x.dtype)
    if y.numel() == 0:
        return y
    fields = library.Samples(
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
    library.check(
        library.loaded().gs_samples(
            geometry(layout, shape),
            call.view,
            library.DTYPES[x.dtype],
            fields,
            torch.get_num_threads(),
        )
    )
    return y
