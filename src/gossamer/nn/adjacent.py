"""Linear layers whose output goes to another one: it stays in the order of the kernels.

The native kernels hold a batch feature by feature. A layer in a chain hands its output
``[B, out]`` on as it is, ``[out, B]`` in memory; element-wise modules keep that order, and the next
layer reads it without a transpose. Values, shapes and gradients are the same. Only chains inside
``nn.Sequential`` are known to have no other reader, who might ask for ``view``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from gossamer.nn.base import SparseLayer

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.Dropout,
    nn.ELU,
    nn.GELU,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)


def link_adjacent(model: nn.Module) -> None:
    """Mark every linear layer of ``model`` that only element-wise modules part from the next."""
    for module in model.modules():
        if type(module) is not nn.Sequential:
            continue
        waiting: SparseLayer | None = None
        for part in module:
            if isinstance(part, SparseLayer) and part.layout.kind == "linear":
                if waiting is not None:
                    waiting.layout = replace(waiting.layout, by_feature=True)
                waiting = part
            elif type(part) not in ELEMENTWISE:
                waiting = None
