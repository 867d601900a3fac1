"""Wide residual networks (Zagoruyko & Komodakis, BMVC 2016), WRN-28-10 by default."""

from __future__ import annotations

from torch import Tensor, nn

from .checks import invalid, positive_int
from .fusing import norm_relu
from .resnet import init_convolutions


class WideBlock(nn.Module):
    """BatchNorm-ReLU-conv twice, with dropout between, and a shortcut.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input (as in the
    authors' code); elsewhere it is the input itself.
    """

    def __init__(self, n_in: int, n_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.relu = nn.ReLU()
        changes = n_in != n_out or stride != 1
        self.projection = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, n_in, H, W] to [B, n_out, H / stride, W / stride]."""
        active = norm_relu(self.bn1, self.relu, x)
        y = self.conv1(active)
        y = self.conv2(self.dropout(norm_relu(self.bn2, self.relu, y)))
        out: Tensor = y + (x if self.projection is None else self.projection(active))
        return out


class WideResNet(nn.Module):
    """A 3x3 stem, three groups of wide blocks, BatchNorm, the global average and a linear head.

    Args:
        depth: 6 n + 4 for n blocks a group.
        width: Factor on the channels 16, 32, 64 of the groups.
        dropout: Share of activations dropped inside each block.
        in_channels: Channels of the images; the images may have any size.
        num_classes: Length of the output.
    """

    def __init__(
        self, *, depth: int, width: int, dropout: float, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        positive_int("width", width)
        if positive_int("depth", depth) < 10 or (depth - 4) % 6:
            raise invalid("depth", depth, "must be 6 n + 4 with n >= 1", "use 10, 16, 22, 28 or 40")
        if not 0 <= dropout < 1:
            raise invalid(
                "dropout", dropout, "must lie in [0, 1)", "use 0 for none, 0.3 as in the paper"
            )
        channels = 16
        layers: list[nn.Module] = []
        for group in range(3):
            for position in range((depth - 4) // 6):
                stride = 2 if group > 0 and position == 0 else 1
                layers.append(WideBlock(channels, 16 * width * 2**group, stride, dropout))
                channels = 16 * width * 2**group
        self.stem = nn.Conv2d(
            positive_int("in_channels", in_channels), 16, 3, padding=1, bias=False
        )
        self.blocks = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, positive_int("num_classes", num_classes))
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, in_channels, H, W] to [B, num_classes]."""
        y = norm_relu(self.bn, self.relu, self.blocks(self.stem(x)))
        out: Tensor = self.head(self.flatten(self.pool(y)))
        return out


def wide_resnet(
    *,
    in_channels: int = 3,
    num_classes: int = 10,
    depth: int = 28,
    width: int = 10,
    dropout: float = 0.0,
) -> WideResNet:
    """Builds a wide ResNet of any depth and width; arguments of :class:`WideResNet`."""
    return WideResNet(
        depth=depth, width=width, dropout=dropout, in_channels=in_channels, num_classes=num_classes
    )


def wrn_28_10(*, in_channels: int = 3, num_classes: int = 10, dropout: float = 0.0) -> WideResNet:
    """Builds WRN-28-10: 36,479,194 parameters for CIFAR-10."""
    return wide_resnet(in_channels=in_channels, num_classes=num_classes, dropout=dropout)
