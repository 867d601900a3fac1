"""Lets torchvision be imported beside a torch that it was not built for.

Its Python code registers fake kernels for operators that only its C++ part defines. Declared here
without kernels, they satisfy the import; none of the networks of the zoo calls one.
"""

from __future__ import annotations

import torch

_ROI = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width"
_ROI_BACK = (
    "Tensor grad, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
    "int batch_size, int channels, int height, int width"
)
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h, "
    "int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, "
    "int offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ROI}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_ROI_BACK}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_ROI}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_ROI_BACK}, Tensor argmax) -> Tensor",
    f"ps_roi_align({_ROI}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_ROI_BACK}, Tensor mapping, int sampling_ratio) -> Tensor",
    f"ps_roi_pool({_ROI}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_ROI_BACK}, Tensor mapping) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "_cuda_version() -> int",
)
_LIBRARY: list[torch.library.Library] = []


def declare() -> None:
    """Declare the operators, once in a process; kept, since a library ends with its object."""
    if not _LIBRARY:
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _LIBRARY.append(library)
