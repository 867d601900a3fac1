"""Dense variational inference with local reparameterisation, in plain torch: the baseline.

It shares nothing with Gossamer's layers, on purpose: a full support there would carry the costs of
a sparse layer. Weights are 2-D or 4-D parameters; no masks, no scatter.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PRIOR_STD = 0.1
INITIAL_STD = 0.01


class DenseVI(nn.Module):
    """A linear map with an independent Gaussian on every weight.

    y = μx + b + sqrt(σ² x²) ⊙ ε (Kingma et al. 2015). The bias is deterministic.

    Args:
        weight: Initial means, in torch's shape of the layer's weight.
        bias: Or ``None``.

    Attributes:
        mean: Means, the shape of ``weight``.
        raw_std: Softplus pre-image of the standard deviations, same shape.
        draws_weights: Draw one weight for all rows instead of local noise.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.mean = nn.Parameter(weight.detach().clone())
        raw = math.log(math.expm1(INITIAL_STD))
        self.raw_std = nn.Parameter(torch.full_like(weight.detach(), raw))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.draws_weights = False

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The map for a given weight; each kind of layer has its own."""
        raise NotImplementedError(type(self).__name__)

    def forward(self, x: Tensor) -> Tensor:
        """A sample of the output for ``x``."""
        std = F.softplus(self.raw_std)
        if self.draws_weights:
            return self.product(x, self.mean + std * torch.randn_like(std), self.bias)
        mean = self.product(x, self.mean, self.bias)
        variance = self.product(x * x, std * std, None)
        return mean + variance.sqrt() * torch.randn_like(mean)

    def kl(self) -> Tensor:
        """KL to N(0, PRIOR_STD²), summed, in nats."""
        std = F.softplus(self.raw_std)
        ratio = (std * std + self.mean * self.mean) / (2.0 * PRIOR_STD**2)
        return (ratio - std.log()).sum() + self.mean.numel() * (math.log(PRIOR_STD) - 0.5)


class DenseVILinear(DenseVI):
    """``[..., in] → [..., out]``."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See ``DenseVI.product``."""
        return F.linear(x, weight, bias)


class DenseVIConv2d(DenseVI):
    """``[B, C, H, W] → [B, C', H', W']``, zero padding.

    Args:
        module: The torch convolution it stands for.
    """

    def __init__(self, module: nn.Conv2d) -> None:
        super().__init__(module.weight, module.bias)
        self.stride, self.padding = module.stride, module.padding
        self.dilation, self.groups = module.dilation, module.groups

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See ``DenseVI.product``."""
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


def to_dense_vi(model: nn.Module) -> nn.Module:
    """A copy of ``model`` in which every linear layer and 2-D convolution is a ``DenseVI``."""
    if isinstance(model, nn.Linear):
        return DenseVILinear(model.weight, model.bias)
    if isinstance(model, nn.Conv2d):
        return DenseVIConv2d(model)
    model = copy.deepcopy(model)
    for name, child in list(model.named_children()):
        setattr(model, name, to_dense_vi(child))
    return model


def dense_kl(model: nn.Module) -> Tensor:
    """KL of all ``DenseVI`` layers of ``model``."""
    terms = [layer.kl() for layer in model.modules() if isinstance(layer, DenseVI)]
    return torch.stack(terms).sum()


def draw_weights(model: nn.Module) -> nn.Module:
    """``model`` itself, whose layers draw weights from now on: one posterior sample per pass."""
    for layer in model.modules():
        if isinstance(layer, DenseVI):
            layer.draws_weights = True
    return model
