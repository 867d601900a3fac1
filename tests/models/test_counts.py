"""Exact parameter counts: published figures, and layer arithmetic written here on its own."""

from __future__ import annotations

import pytest
import torch

from gossamer.models import MODELS, build_model


def count(name: str, shape: tuple[int, ...], outputs: int, **options: object) -> int:
    # The meta device counts without drawing 36 million numbers.
    with torch.device("meta"):
        model = build_model(name, input_shape=shape, output_size=outputs, **options)
    return sum(parameter.numel() for parameter in model.parameters())


CIFAR = (3, 32, 32)

PUBLISHED = [
    # CIFAR stems: the figures printed by the common CIFAR zoos.
    ("resnet18", CIFAR, 10, {}, 11_173_962),
    ("resnet34", CIFAR, 10, {}, 21_282_122),
    ("resnet50", CIFAR, 10, {}, 23_520_842),
    # ImageNet stems, 1000 classes: the figures in torchvision's documentation.
    ("resnet18", (3, 224, 224), 1000, {"stem": "imagenet"}, 11_689_512),
    ("resnet34", (3, 224, 224), 1000, {"stem": "imagenet"}, 21_797_672),
    ("resnet50", (3, 224, 224), 1000, {"stem": "imagenet"}, 25_557_032),
    # He et al. 2016, Table 6: 0.27 M and 0.46 M; to the digit in reimplementations of option A.
    ("resnet20", CIFAR, 10, {}, 269_722),
    ("resnet32", CIFAR, 10, {}, 464_154),
    ("resnet20", CIFAR, 10, {"shortcut": "projection"}, 272_474),
    # Zagoruyko & Komodakis 2016: 36.5 M, and 2.2 M for WRN-40-2.
    ("wrn_28_10", CIFAR, 10, {}, 36_479_194),
    ("wide_resnet", CIFAR, 10, {}, 36_479_194),
    ("wide_resnet", CIFAR, 10, {"depth": 40, "width": 2, "dropout": 0.3}, 2_243_546),
    # CIFAR VGG with BatchNorm, without biases in the convolutions.
    ("vgg11", CIFAR, 10, {}, 9_228_362),
    ("vgg13", CIFAR, 10, {}, 9_413_066),
    ("vgg16", CIFAR, 10, {}, 14_724_042),
    ("vgg19", CIFAR, 10, {}, 20_035_018),
    # Caffe LeNet: 430,500 weights ("431 k") and 580 biases.
    ("lenet", (1, 28, 28), 10, {}, 431_080),
]


@pytest.mark.parametrize(("name", "shape", "outputs", "options", "expected"), PUBLISHED)
def test_published_count(name, shape, outputs, options, expected):
    assert count(name, shape, outputs, **options) == expected


def test_every_convolutional_model_has_a_published_count():
    assert {row[0] for row in PUBLISHED} == set(MODELS) - {"mlp"}


def conv(n_in: int, n_out: int, kernel: int) -> int:
    return n_in * n_out * kernel * kernel


def norm(n: int) -> int:
    return 2 * n


def linear(n_in: int, n_out: int) -> int:
    return n_in * n_out + n_out


def thin_resnet(blocks: int, classes: int, project: bool) -> int:
    total = conv(3, 16, 3) + norm(16)
    n_in = 16
    for width in (16, 32, 64):
        for position in range(blocks):
            total += conv(n_in, width, 3) + norm(width) + conv(width, width, 3) + norm(width)
            if project and position == 0 and width != 16:
                total += conv(n_in, width, 1) + norm(width)
            n_in = width
    return total + linear(64, classes)


@pytest.mark.parametrize("shortcut", ["pad", "projection"])
@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 3), ("resnet32", 5)])
@pytest.mark.parametrize("classes", [10, 100])
def test_thin_resnet_by_arithmetic(name, blocks, classes, shortcut):
    expected = thin_resnet(blocks, classes, project=shortcut == "projection")
    assert count(name, CIFAR, classes, shortcut=shortcut) == expected


@pytest.mark.parametrize(
    ("depth", "width", "classes"), [(10, 1, 3), (16, 4, 10), (28, 10, 100), (22, 2, 7)]
)
def test_wide_resnet_by_arithmetic(depth, width, classes):
    blocks = (depth - 4) // 6
    expected, n_in = conv(3, 16, 3), 16
    for base in (16, 32, 64):
        n_out = base * width
        for position in range(blocks):
            expected += norm(n_in) + conv(n_in, n_out, 3) + norm(n_out) + conv(n_out, n_out, 3)
            # The first block of a later group changes the stride, that of the first the width.
            if position == 0 and (base > 16 or n_in != n_out):
                expected += conv(n_in, n_out, 1)
            n_in = n_out
    expected += norm(n_in) + linear(n_in, classes)
    assert count("wide_resnet", CIFAR, classes, depth=depth, width=width) == expected


def test_resnet50_by_arithmetic():
    expected, n_in = conv(1, 64, 3) + norm(64), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for position in range(blocks):
            expected += conv(n_in, width, 1) + conv(width, width, 3) + conv(width, 4 * width, 1)
            expected += 2 * norm(width) + norm(4 * width)
            if position == 0:
                expected += conv(n_in, 4 * width, 1) + norm(4 * width)
            n_in = 4 * width
    expected += linear(2048, 5)
    assert count("resnet50", (1, 28, 28), 5) == expected


def test_vgg16_by_arithmetic():
    widths = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    expected, n_in = 0, 3
    for width in widths:
        expected += conv(n_in, width, 3) + norm(width)
        n_in = width
    assert count("vgg16", CIFAR, 100) == expected + linear(512, 100)


def test_lenet_weights_layer_by_layer():
    model = build_model("lenet", input_shape=(1, 28, 28), output_size=10)
    weights = [p.numel() for name, p in model.named_parameters() if name.endswith("weight")]
    assert weights == [500, 25_000, 400_000, 5_000]
    assert sum(weights) == 430_500


@pytest.mark.parametrize(
    ("shape", "outputs", "hidden", "expected"),
    [
        ((64,), 10, (256, 256), linear(64, 256) + linear(256, 256) + linear(256, 10)),
        ((1, 8, 8), 10, [30], linear(64, 30) + linear(30, 10)),
        ((13,), 1, (), linear(13, 1)),
    ],
)
def test_mlp_by_arithmetic(shape, outputs, hidden, expected):
    assert count("mlp", shape, outputs, hidden=hidden) == expected


def test_mlp_default_width():
    assert count("mlp", (64,), 10) == linear(64, 256) + linear(256, 256) + linear(256, 10)
