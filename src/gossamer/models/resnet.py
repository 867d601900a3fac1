"""Residual networks: ResNet-18/34/50 and the thin ResNet-20/32 for CIFAR.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. Where the shape changes,
ResNet-18/34/50 project the shortcut (1x1 convolution and BatchNorm, option B of the paper);
ResNet-20/32 take ``shortcut="pad"`` (option A, the paper's own choice on CIFAR: subsample, then
fill the new channels with zeros, no parameters) or ``shortcut="projection"`` (option B).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .checks import one_of, positive_int
from .fusing import NormReLUStem, norm_relu

_STEMS = ("cifar", "imagenet")
_SHORTCUTS = ("pad", "projection")


def _convolution(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    # The size is kept (stride 1) or halved upwards; BatchNorm follows, so a bias would be lost.
    return nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=False)


def init_convolutions(model: nn.Module) -> None:
    """Draws every convolution from N(0, 2 / fan_out) (He et al. 2015), in module order."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class PadShortcut(nn.Module):
    """Option A: every stride-th pixel, the new channels zero on both sides; no parameters."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        before = (n_out - n_in) // 2
        self.channels = (before, n_out - n_in - before)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, n_in, H, W] to [B, n_out, ceil(H / stride), ceil(W / stride)]."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.channels))


def _shortcut(kind: str, n_in: int, n_out: int, stride: int) -> nn.Module:
    if n_in == n_out and stride == 1:
        return nn.Identity()
    if kind == "pad":
        return PadShortcut(n_in, n_out, stride)
    return nn.Sequential(_convolution(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (Fig. 5 left)."""

    expansion = 1

    def __init__(self, n_in: int, width: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = _convolution(n_in, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.shortcut = _shortcut(shortcut, n_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, n_in, H, W] to [B, width, H / stride, W / stride]."""
        y = norm_relu(self.bn1, self.relu, self.conv1(x))
        return norm_relu(self.bn2, self.relu, self.conv2(y), self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1 convolutions and a shortcut (Fig. 5 right).

    The stride sits on the 3x3 convolution, as in every common reimplementation; the paper put it
    on the first 1x1. The number of weights is the same.
    """

    expansion = 4

    def __init__(self, n_in: int, width: int, stride: int, shortcut: str) -> None:
        super().__init__()
        n_out = width * self.expansion
        self.conv1 = _convolution(n_in, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, n_out, 1)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU()
        self.shortcut = _shortcut(shortcut, n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, n_in, H, W] to [B, 4 * width, H / stride, W / stride]."""
        y = norm_relu(self.bn1, self.relu, self.conv1(x))
        y = norm_relu(self.bn2, self.relu, self.conv2(y))
        return norm_relu(self.bn3, self.relu, self.conv3(y), self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of residual blocks, the global average and a linear head.

    Args:
        block: The kind of residual block.
        blocks: Number of blocks of each stage; every stage but the first halves the image.
        width: Channels of the first stage; each later stage doubles them.
        in_channels: Channels of the images; the images may have any size.
        num_classes: Length of the output.
        stem: ``"cifar"`` (3x3, full resolution) or ``"imagenet"`` (7x7 and max-pool, stride 2).
        shortcut: ``"projection"`` (option B) or ``"pad"`` (option A).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        *,
        width: int,
        in_channels: int,
        num_classes: int,
        stem: str,
        shortcut: str,
    ) -> None:
        super().__init__()
        one_of("stem", stem, _STEMS)
        one_of("shortcut", shortcut, _SHORTCUTS)
        positive_int("in_channels", in_channels)
        positive_int("num_classes", num_classes)
        if stem == "cifar":
            entry: list[nn.Module] = [_convolution(in_channels, width, 3)]
            pool: list[nn.Module] = []
        else:
            entry = [_convolution(in_channels, width, 7, stride=2)]
            pool = [nn.MaxPool2d(3, stride=2, padding=1)]
        self.stem = NormReLUStem(*entry, nn.BatchNorm2d(width), nn.ReLU(), *pool)
        stages: list[nn.Module] = []
        channels = width
        for index, count in enumerate(blocks):
            stage: list[nn.Module] = []
            for position in range(count):
                stride = 2 if index > 0 and position == 0 else 1
                stage.append(block(channels, width * 2**index, stride, shortcut))
                channels = width * 2**index * block.expansion
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, num_classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, in_channels, H, W] to [B, num_classes]."""
        out: Tensor = self.head(self.flatten(self.pool(self.stages(self.stem(x)))))
        return out


def resnet18(*, in_channels: int = 3, num_classes: int = 10, stem: str = "cifar") -> ResNet:
    """Builds ResNet-18: 11,173,962 parameters for CIFAR-10; arguments of :class:`ResNet`."""
    return _wide_stages(BasicBlock, (2, 2, 2, 2), in_channels, num_classes, stem)


def resnet34(*, in_channels: int = 3, num_classes: int = 10, stem: str = "cifar") -> ResNet:
    """Builds ResNet-34: 21,282,122 parameters for CIFAR-10; arguments of :class:`ResNet`."""
    return _wide_stages(BasicBlock, (3, 4, 6, 3), in_channels, num_classes, stem)


def resnet50(*, in_channels: int = 3, num_classes: int = 10, stem: str = "cifar") -> ResNet:
    """Builds ResNet-50: 23,520,842 parameters for CIFAR-10; arguments of :class:`ResNet`."""
    return _wide_stages(Bottleneck, (3, 4, 6, 3), in_channels, num_classes, stem)


def resnet20(*, in_channels: int = 3, num_classes: int = 10, shortcut: str = "pad") -> ResNet:
    """Builds ResNet-20: 269,722 parameters with option A; arguments of :class:`ResNet`."""
    return _thin_stages(3, in_channels, num_classes, shortcut)


def resnet32(*, in_channels: int = 3, num_classes: int = 10, shortcut: str = "pad") -> ResNet:
    """Builds ResNet-32: 464,154 parameters with option A; arguments of :class:`ResNet`."""
    return _thin_stages(5, in_channels, num_classes, shortcut)


def _wide_stages(
    block: type[BasicBlock] | type[Bottleneck],
    blocks: Sequence[int],
    in_channels: int,
    num_classes: int,
    stem: str,
) -> ResNet:
    return ResNet(
        block,
        blocks,
        width=64,
        in_channels=in_channels,
        num_classes=num_classes,
        stem=stem,
        shortcut="projection",
    )


def _thin_stages(blocks: int, in_channels: int, num_classes: int, shortcut: str) -> ResNet:
    return ResNet(
        BasicBlock,
        (blocks,) * 3,
        width=16,
        in_channels=in_channels,
        num_classes=num_classes,
        stem="cifar",
        shortcut=shortcut,
    )
