"""``GroupedLinear``: a torch module that maps groups of features apart, as grouped convolutions do.

Several networks become one with it, whose layers have one group for each
(``gossamer.inference.joining``): one call of a kernel then serves all of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.errors import InvalidValue
from gossamer.ops import Layout


class GroupedLinear(nn.Module):
    """``[..., in] → [..., out]``: group g of the outputs reads group g of the inputs alone.

    With one group it is ``nn.Linear``.

    Args:
        in_features: Of all groups, which follow each other.
        out_features: Of all groups.
        groups: How many; divides both.
        bias: Whether there is one.
        device: Of the parameters.
        dtype: Of the parameters.

    Attributes:
        weight: ``[out_features, in_features / groups]``.
        bias: ``[out_features]`` or ``None``.

    Example:
        >>> layer = GroupedLinear(6, 4, groups=2)
        >>> layer(torch.randn(3, 6)).shape, layer.weight.shape
        (torch.Size([3, 4]), torch.Size([4, 3]))
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if groups < 1 or in_features % groups or out_features % groups:
            raise InvalidValue(
                "groups", groups, f"must divide {in_features} inputs and {out_features} outputs"
            )
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        shape = (out_features, in_features // groups)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        own = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both as ``nn.Linear`` does, by the inputs of one group."""
        bound = 1.0 / math.sqrt(max(1, self.weight.shape[1]))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """The map of every group."""
        rows = x.reshape(-1, self.in_features, 1)
        found = F.conv1d(rows, self.weight.unsqueeze(-1), self.bias, groups=self.groups)
        return found.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Sizes and groups."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, groups={self.groups}, bias={self.bias is not None}"


def grouped_layout(module: GroupedLinear) -> Layout:
    """The layout of a grouped linear layer."""
    return Layout("linear", tuple(module.weight.shape), groups=module.groups)
