"""VGG-11/13/16/19 with BatchNorm and the one-layer head used on CIFAR.

Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
ICLR 2015, configurations A, B, D and E. The convolutions have no bias: BatchNorm subtracts it.
"""

from __future__ import annotations

from torch import nn

from .checks import height_width, invalid, positive_int

_WIDTHS = (64, 128, 256, 512, 512)
_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_SMALLEST_SIDE = 2 ** len(_WIDTHS)


def vgg(
    depth: int,
    *,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    num_classes: int = 10,
) -> nn.Sequential:
    """Builds a VGG of a given depth.

    Args:
        depth: 11, 13, 16 or 19, the number of weight layers of the original (its head had three).
        in_channels: Channels of the images.
        image_size: One side, or (height, width); each at least 32, because there are five poolings.
        num_classes: Length of the output.

    Returns:
        A module from [B, in_channels, height, width] to [B, num_classes]; what is left of the
        image after the poolings (1x1 for CIFAR) is averaged.
    """
    if depth not in _CONVOLUTIONS:
        raise invalid("depth", depth, "is not a VGG", "choose one of: 11, 13, 16, 19")
    sides = height_width(image_size)
    if min(sides) < _SMALLEST_SIDE:
        raise invalid(
            "image_size",
            f"{sides[0]}x{sides[1]}",
            f"vgg needs sides of at least {_SMALLEST_SIDE}",
            "enlarge or pad the images, or use a resnet",
        )
    channels = positive_int("in_channels", in_channels)
    layers: list[nn.Module] = []
    for width, convolutions in zip(_WIDTHS, _CONVOLUTIONS[depth], strict=True):
        for _ in range(convolutions):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = nn.Linear(channels, positive_int("num_classes", num_classes))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def vgg11(
    *, in_channels: int = 3, image_size: int | tuple[int, int] = 32, num_classes: int = 10
) -> nn.Sequential:
    """Builds VGG-11 (configuration A), 9.2 M parameters; arguments of :func:`vgg`."""
    return vgg(11, in_channels=in_channels, image_size=image_size, num_classes=num_classes)


def vgg13(
    *, in_channels: int = 3, image_size: int | tuple[int, int] = 32, num_classes: int = 10
) -> nn.Sequential:
    """Builds VGG-13 (configuration B), 9.4 M parameters; arguments of :func:`vgg`."""
    return vgg(13, in_channels=in_channels, image_size=image_size, num_classes=num_classes)


def vgg16(
    *, in_channels: int = 3, image_size: int | tuple[int, int] = 32, num_classes: int = 10
) -> nn.Sequential:
    """Builds VGG-16 (configuration D), 14.7 M parameters; arguments of :func:`vgg`."""
    return vgg(16, in_channels=in_channels, image_size=image_size, num_classes=num_classes)


def vgg19(
    *, in_channels: int = 3, image_size: int | tuple[int, int] = 32, num_classes: int = 10
) -> nn.Sequential:
    """Builds VGG-19 (configuration E), 20.0 M parameters; arguments of :func:`vgg`."""
    return vgg(19, in_channels=in_channels, image_size=image_size, num_classes=num_classes)
