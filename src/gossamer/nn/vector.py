"""What a layer says of each of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn


@dataclass(frozen=True, eq=False)
class Vector:
    """One vector ``[nnz]`` over the support of a layer, or a factor beside it.

    Attributes:
        name: The name of the parameter in the layer.
        parameter: The vector.
        role: ``value``: what the weight is; weight decay applies to it. ``scale``: how uncertain it
            is; it is never decayed and has a learning rate of its own.
    """

    name: str
    parameter: nn.Parameter
    role: Literal["value", "scale"]
