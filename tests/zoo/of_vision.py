"""Networks of timm, segmentation-models-pytorch and monai, without pretrained weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo.torchvision_schemas import declare

declare()  # before those that import torchvision

import segmentation_models_pytorch as smp  # noqa: E402
import timm  # noqa: E402
from monai.networks import nets as monai  # noqa: E402
from timm.models.mlp_mixer import MlpMixer  # noqa: E402
from torch import nn  # noqa: E402

from zoo.entries import Entry, Inputs  # noqa: E402


def _timm(name: str, size: int = 32, **options: Any) -> Callable[[], tuple[nn.Module, Inputs]]:
    def build() -> tuple[nn.Module, Inputs]:
        network = timm.create_model(name, pretrained=False, num_classes=5, **options)
        return network, torch.randn(4, 3, size, size)

    return build


def _of(network: Callable[[], nn.Module], *shape: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    return lambda: (network(), torch.randn(*shape))


_TRANSFORMER = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
_SWIN = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (1, 1),
    "num_heads": (2, 4),
}
_MIXER = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2, "num_classes": 5}
_UNET = {"channels": (4, 8, 16), "strides": (2, 2), "in_channels": 1, "out_channels": 3}

ENTRIES = (
    Entry("timm", "ResNet-10", _timm("resnet10t")),
    Entry("timm", "MobileNetV3", _timm("mobilenetv3_small_050")),
    Entry("timm", "EfficientNet-Lite0", _timm("efficientnet_lite0")),
    Entry("timm", "RegNetX-200", _timm("regnetx_002")),
    Entry("timm", "ConvNeXt atto", _timm("convnext_atto")),
    Entry("timm", "ViT", _timm("vit_tiny_patch16_224", **_TRANSFORMER)),
    Entry("timm", "Swin", _timm("swin_tiny_patch4_window7_224", **_SWIN)),
    Entry("timm", "MLP-Mixer", _of(lambda: MlpMixer(**_MIXER), 4, 3, 32, 32)),
    Entry(
        "smp",
        "U-Net",
        _of(lambda: smp.Unet("resnet18", encoder_weights=None, classes=3), 2, 3, 32, 32),
    ),
    Entry(
        "smp",
        "FPN, MobileNetV2",
        _of(lambda: smp.FPN("mobilenet_v2", encoder_weights=None, classes=3), 2, 3, 64, 64),
    ),
    Entry("monai", "U-Net, 2-D", _of(lambda: monai.UNet(2, **_UNET), 3, 1, 16, 16)),
    Entry("monai", "U-Net, 3-D", _of(lambda: monai.UNet(3, **_UNET), 2, 1, 16, 16, 16)),
    Entry(
        "monai",
        "SegResNet, 3-D",
        _of(lambda: monai.SegResNet(3, init_filters=8, out_channels=3), 2, 1, 16, 16, 16),
    ),
)
