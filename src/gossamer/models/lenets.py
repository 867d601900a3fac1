"""LeNet as Caffe ships it (20-50-500-10), the LeNet of the sparsification literature."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from .checks import height_width, invalid, positive_int

_SMALLEST_SIDE = 16


def lenet(
    *,
    in_channels: int = 1,
    image_size: int | tuple[int, int] = 28,
    num_classes: int = 10,
) -> nn.Sequential:
    """Builds the Caffe LeNet: two max-pooled 5x5 convolutions without padding, two linear layers.

    For 28x28 grey images it has 500 + 25,000 + 400,000 + 5,000 = 430,500 weights ("431 k") and
    580 biases. As in Caffe, the only ReLU is the one between the linear layers: max-pooling is
    the non-linearity of the convolutions.

    Args:
        in_channels: Channels of the images.
        image_size: One side, or (height, width); each at least 16.
        num_classes: Length of the output.

    Returns:
        A module from [B, in_channels, height, width] to [B, num_classes].
    """
    sides = height_width(image_size)
    if min(sides) < _SMALLEST_SIDE:
        raise invalid(
            "image_size",
            f"{sides[0]}x{sides[1]}",
            f"lenet needs sides of at least {_SMALLEST_SIDE}",
            "enlarge or pad the images, or use mlp",
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(positive_int("in_channels", in_channels), 20, 5)),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(20, 50, 5)),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(50 * height * width, 500)),
        ("relu", nn.ReLU()),
        ("fc2", nn.Linear(500, positive_int("num_classes", num_classes))),
    ]
    return nn.Sequential(OrderedDict(layers))
