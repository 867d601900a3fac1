"""Sparse convolutions: one N-d implementation, and thin classes for 1, 2 and 3 dimensions.

Plain and transposed. Shapes as in torch: ``[B, C, *spatial]`` or unbatched ``[C, *spatial]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gossamer.errors import InvalidValue
from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
from gossamer.ops import Layout, resolve_padding


class _ConvShape:
    """The attributes of torch's convolutions that other code reads."""

    layout: Layout

    @property
    def in_channels(self) -> int:
        """Input channels of all groups."""
        return self.layout.channels

    @property
    def out_channels(self) -> int:
        """Output channels of all groups."""
        return self.layout.fan_out

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Per spatial dimension."""
        return self.layout.kernel

    @property
    def stride(self) -> tuple[int, ...]:
        """Per spatial dimension."""
        return self.layout.stride

    @property
    def padding(self) -> tuple[int, ...] | str:
        """Per spatial dimension; an uneven one can only come from ``padding="same"``."""
        even = all(before == after for before, after in self.layout.padding)
        return tuple(before for before, _ in self.layout.padding) if even else "same"

    @property
    def dilation(self) -> tuple[int, ...]:
        """Per spatial dimension."""
        return self.layout.dilation

    @property
    def output_padding(self) -> tuple[int, ...]:
        """Per spatial dimension; 0 unless transposed."""
        return self.layout.output_padding

    @property
    def groups(self) -> int:
        """Channel groups."""
        return self.layout.groups

    @property
    def padding_mode(self) -> str:
        """``zeros``, ``reflect``, ``replicate`` or ``circular``."""
        return self.layout.padding_mode

    @property
    def transposed(self) -> bool:
        """Whether this is a transposed convolution."""
        return self.layout.is_transposed


class _Transposed(_ConvShape, SparseLayer):
    """Adds torch's ``output_size`` argument, which fixes the output padding per call."""

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The transposed convolution of ``x``."""
        self.require_call(x)
        if output_size is None:
            return self.compute(x, self.layout)
        extra = _output_padding(x, list(output_size), self.layout)
        return self.compute(x, replace(self.layout, output_padding=extra))


class BayesianConv1d(_ConvShape, BayesianLayer):
    """Gaussian weights, one dimension."""


class BayesianConv2d(_ConvShape, BayesianLayer):
    """Gaussian weights, two dimensions."""


class BayesianConv3d(_ConvShape, BayesianLayer):
    """Gaussian weights, three dimensions."""


class BayesianConvTranspose1d(_Transposed, BayesianLayer):
    """Gaussian weights, transposed, one dimension."""


class BayesianConvTranspose2d(_Transposed, BayesianLayer):
    """Gaussian weights, transposed, two dimensions."""


class BayesianConvTranspose3d(_Transposed, BayesianLayer):
    """Gaussian weights, transposed, three dimensions."""


class SparseConv1d(_ConvShape, DeterministicLayer):
    """One value per kept weight, one dimension."""


class SparseConv2d(_ConvShape, DeterministicLayer):
    """One value per kept weight, two dimensions."""


class SparseConv3d(_ConvShape, DeterministicLayer):
    """One value per kept weight, three dimensions."""


class SparseConvTranspose1d(_Transposed, DeterministicLayer):
    """One value per kept weight, transposed, one dimension."""


class SparseConvTranspose2d(_Transposed, DeterministicLayer):
    """One value per kept weight, transposed, two dimensions."""


class SparseConvTranspose3d(_Transposed, DeterministicLayer):
    """One value per kept weight, transposed, three dimensions."""


def conv_layout(module: _ConvNd) -> Layout:
    """The layout of a torch convolution, plain or transposed."""
    padding: str | tuple[int, ...] = module.padding
    return Layout(
        kind="conv_transpose" if isinstance(module, _ConvTransposeNd) else "conv",
        shape=tuple(module.weight.shape),
        stride=tuple(module.stride),
        padding=resolve_padding(padding, module.kernel_size, module.dilation),
        dilation=tuple(module.dilation),
        output_padding=tuple(module.output_padding),
        groups=module.groups,
        padding_mode=module.padding_mode,
    )


_DENSE: dict[tuple[str, int], type[_ConvNd]] = {
    ("conv", 1): nn.Conv1d,
    ("conv", 2): nn.Conv2d,
    ("conv", 3): nn.Conv3d,
    ("conv_transpose", 1): nn.ConvTranspose1d,
    ("conv_transpose", 2): nn.ConvTranspose2d,
    ("conv_transpose", 3): nn.ConvTranspose3d,
}


def dense_conv(layer: SparseLayer) -> _ConvNd:
    """An uninitialised torch convolution of the same geometry."""
    assert isinstance(layer, _ConvShape)
    layout = layer.layout
    arguments: dict[str, object] = {
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "kernel_size": layout.kernel,
        "stride": layout.stride,
        "padding": layer.padding,
        "dilation": layout.dilation,
        "groups": layout.groups,
        "bias": layer.bias is not None,
        "padding_mode": layout.padding_mode,
        "device": "meta",
    }
    if layout.kind == "conv_transpose":
        arguments["output_padding"] = layout.output_padding
    return _DENSE[layout.kind, layout.dims](**arguments)  # type: ignore[arg-type]


def _output_padding(x: Tensor, output_size: list[int], layout: Layout) -> tuple[int, ...]:
    """The output padding that yields ``output_size``: spatial sizes or the full output shape."""
    spatial = output_size[-layout.dims :]
    if len(output_size) not in (layout.dims, x.dim()):
        raise InvalidValue(
            "output_size", output_size, f"must have {layout.dims} or {x.dim()} entries"
        )
    extra = []
    for d, wanted in enumerate(spatial):
        stride, dilation = layout.stride[d], layout.dilation[d]
        reach = dilation * (layout.kernel[d] - 1) + 1
        smallest = (
            (x.shape[x.dim() - layout.dims + d] - 1) * stride - 2 * layout.padding[d][0] + reach
        )
        if not 0 <= wanted - smallest < max(stride, dilation):
            rule = f"dimension {d} must lie in [{smallest}, {smallest + max(stride, dilation) - 1}]"
            raise InvalidValue("output_size", output_size, rule)
        extra.append(wanted - smallest)
    return tuple(extra)
