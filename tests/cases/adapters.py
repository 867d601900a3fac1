"""Low-rank adapters beside frozen layers, put together as ``peft`` does it: names and forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ADAPTERS = ("*.lora_A.*", "*.lora_B.*")


class Adapted(nn.Module):
    """W x + s B A x with W frozen, A random and B 0 at first."""

    def __init__(self, base: nn.Linear, rank: int, scaling: float) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        down = nn.Linear(base.in_features, rank, bias=False)
        up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(up.weight)
        self.lora_A, self.lora_B = nn.ModuleDict({"default": down}), nn.ModuleDict({"default": up})
        self.scaling = scaling

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        down, up = self.lora_A["default"], self.lora_B["default"]
        found: Tensor = self.base_layer(x)
        return found + self.scaling * up(down(x.to(down.weight.dtype)))


class Network(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 20), nn.Linear(20, 20)
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 10]`` to ``[B, 3]``."""
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def adapted() -> nn.Module:
    """The network with adapters at its first two layers, all else frozen."""
    net = Network().requires_grad_(False)
    net.first, net.second = Adapted(net.first, 4, 2.0), Adapted(net.second, 4, 2.0)
    return net


def with_values(net: nn.Module) -> nn.Module:
    """Means of every adapter, those of B included, away from 0."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("weight_mean"):
                parameter.normal_(std=0.3, generator=generator)
    return net


def batch() -> tuple[Tensor, Tensor]:
    """Inputs ``[32, 10]`` and classes that a linear map of them decides."""
    x = torch.randn(32, 10, generator=torch.Generator().manual_seed(1))
    return x, x[:, :3].argmax(1)
