"""Shapes, gradients, initialisation and bad input of the networks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gossamer.models import MODELS, build_model
from gossamer.models.resnet import PadShortcut

IMAGE_SHAPES = [(1, 28, 28), (3, 32, 32), (3, 64, 48), (2, 8, 8), (3, 33, 35)]
# The smallest sides that lenet (two 5x5 convolutions) and vgg (five poolings) can take.
SMALLEST = {"lenet": 16, "vgg11": 32, "vgg13": 32, "vgg16": 32, "vgg19": 32}


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("shape", IMAGE_SHAPES)
def test_output_shape_or_plain_refusal(name, shape):
    with torch.device("meta"):
        if min(shape[1:]) < SMALLEST.get(name, 1):
            with pytest.raises(ValueError, match=f"image_size = {shape[1]}x{shape[2]}: .*at least"):
                build_model(name, input_shape=shape, output_size=7)
            return
        model = build_model(name, input_shape=shape, output_size=7)
        assert model(torch.empty(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_imagenet_stem_sees_a_quarter_of_the_resolution(name):
    with torch.device("meta"):
        model = build_model(name, input_shape=(3, 224, 224), output_size=1000, stem="imagenet")
        x = torch.empty(2, 3, 224, 224)
        assert model.stem(x).shape == (2, 64, 56, 56)
        assert model.stages(model.stem(x)).shape[2:] == (7, 7)
        assert model(x).shape == (2, 1000)
        cifar = build_model(name, input_shape=(3, 32, 32), output_size=10)
        small = torch.empty(2, 3, 32, 32)
        assert cifar.stem(small).shape == (2, 64, 32, 32)
        assert cifar.stages(cifar.stem(small)).shape[2:] == (4, 4)


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet20", "wide_resnet"])
def test_smallest_images(name):
    side = SMALLEST.get(name, 1)
    options = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
    model = build_model(name, input_shape=(1, side, side), output_size=2, **options).eval()
    assert torch.isfinite(model(torch.randn(2, 1, side, side))).all()


def small(name: str) -> tuple[tuple[int, ...], dict[str, object]]:
    if name == "wide_resnet":
        return (3, 16, 16), {"depth": 16, "width": 2, "dropout": 0.3}
    side = SMALLEST.get(name, 16)
    return (3, side, side), {}


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"wrn_28_10"}))
def test_gradient_reaches_every_parameter(name):
    torch.manual_seed(0)
    shape, options = small(name)
    model = build_model(name, input_shape=shape, output_size=10, **options).train()
    loss = F.cross_entropy(model(torch.randn(4, *shape)), torch.arange(4))
    loss.backward()
    dead = [
        key
        for key, parameter in model.named_parameters()
        if parameter.grad is None
        or not torch.isfinite(parameter.grad).all()
        or not parameter.grad.any()
    ]
    assert dead == []


def test_wrn_28_10_is_the_default_wide_resnet():
    with torch.device("meta"):
        named = build_model("wrn_28_10", input_shape=(3, 32, 32), output_size=10).state_dict()
        default = build_model("wide_resnet", input_shape=(3, 32, 32), output_size=10).state_dict()
    assert {k: v.shape for k, v in named.items()} == {k: v.shape for k, v in default.items()}
    assert sum(key.endswith("conv1.weight") for key in named) == 12  # 3 groups of 4 blocks


@pytest.mark.parametrize("name", ["mlp", "lenet", "vgg11", "resnet20", "wide_resnet"])
def test_weights_come_from_the_torch_generator_alone(name):
    shape, options = small(name)

    def draw() -> dict[str, torch.Tensor]:
        return build_model(name, input_shape=shape, output_size=10, **options).state_dict()

    torch.manual_seed(5)
    first, second = draw(), draw()
    torch.manual_seed(5)
    again = draw()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet"])
def test_convolutions_are_kaiming_normal_of_fan_out(name):
    torch.manual_seed(1)
    model = build_model(name, input_shape=(3, 16, 16), output_size=10, **small(name)[1] or {})
    checked = 0
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            ratio = module.weight.std().item() / math.sqrt(2 / fan_out)
            # The relative standard error of a normal std over n draws is 1 / sqrt(2 n); 5 of them.
            assert abs(ratio - 1) < 5 / math.sqrt(2 * module.weight.numel())
            checked += 1
    assert checked >= 10


def test_pad_shortcut_by_brute_force():
    x = torch.randn(2, 3, 5, 6)
    y = PadShortcut(3, 8, stride=2)(x)
    assert y.shape == (2, 8, 3, 3)
    for channel in range(8):
        for row in range(3):
            for column in range(3):
                source = channel - 2  # five new channels: two before, three after
                inside = 0 <= source < 3
                expected = x[:, source, 2 * row, 2 * column] if inside else torch.zeros(2)
                assert torch.equal(y[:, channel, row, column], expected)


def test_lenet_has_no_relu_between_convolution_and_pooling():
    model = build_model("lenet", input_shape=(1, 28, 28), output_size=10)
    kinds = [type(module).__name__ for module in model]
    assert kinds == [
        "Conv2d",
        "MaxPool2d",
        "Conv2d",
        "MaxPool2d",
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
    ]


def test_mlp_is_the_written_out_formula():
    torch.manual_seed(0)
    model = build_model("mlp", input_shape=(2, 3), output_size=2, hidden=[5], activation="tanh")
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    w1, b1, w2, b2 = (p.double() for p in model.double().parameters())
    expected = torch.tanh(x.reshape(4, 6) @ w1.T + b1) @ w2.T + b2
    # float64 rounding of sums of at most six terms of order one
    assert (model(x) - expected).abs().max() < 1e-14


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_mlp_activations(activation):
    model = build_model("mlp", input_shape=(3,), output_size=1, activation=activation)
    kinds = [type(module).__name__.lower() for module in model]
    assert kinds.count(activation) == 2


BAD = [
    ("resnet19", (3, 32, 32), 10, {}, "model = resnet19: is not known; choose one of: lenet, mlp"),
    ("lenet", (1, 8, 8), 10, {}, "image_size = 8x8: lenet needs sides of at least 16"),
    ("lenet", (1, 28, 15), 10, {}, "image_size = 28x15"),
    ("vgg16", (1, 28, 28), 10, {}, "image_size = 28x28: vgg needs sides of at least 32; .*resnet"),
    ("lenet", (64,), 10, {}, r"input_shape = \(64,\): lenet needs images .*use mlp"),
    ("resnet18", (32, 32), 10, {}, r"input_shape = \(32, 32\): resnet18 needs images"),
    ("resnet18", (3, 32, 32), 0, {}, "output_size = 0: must be an integer of at least 1"),
    ("mlp", (), 1, {}, r"input_shape = \(\): must have at least one axis"),
    ("mlp", (0,), 1, {}, "input_shape = 0: must be an integer of at least 1"),
    ("mlp", (3,), True, {}, "output_size = True"),
    ("mlp", (3,), 1, {"hidden": (5, -1)}, "hidden = -1: must be an integer"),
    ("mlp", (3,), 1, {"hidden": 64}, "hidden = 64: must be a list of widths; write e.g."),
    ("mlp", (3,), 1, {"hidden": "64,64"}, "hidden = 64,64: must be a list"),
    (
        "mlp",
        (3,),
        1,
        {"activation": "sine"},
        "activation = sine: is not known; choose one of: gelu",
    ),
    ("resnet18", (3, 9, 9), 5, {"stem": "big"}, "stem = big: is not known; .*cifar, imagenet"),
    ("resnet20", (3, 9, 9), 5, {"shortcut": "B"}, "shortcut = B: .*pad, projection"),
    (
        "resnet18",
        (3, 9, 9),
        5,
        {"depth": 3},
        "option = depth: is not an option of resnet18; .*stem",
    ),
    ("lenet", (1, 28, 28), 5, {"in_channels": 1}, "option = in_channels: .* it has no options"),
    ("wide_resnet", (3, 9, 9), 5, {"depth": 27}, "depth = 27: must be 6 n"),
    ("wide_resnet", (3, 9, 9), 5, {"depth": 4}, "depth = 4: must be 6 n"),
    ("wide_resnet", (3, 9, 9), 5, {"width": 0}, "width = 0: must be an integer"),
    ("wide_resnet", (3, 9, 9), 5, {"dropout": 1.0}, r"dropout = 1.0: must lie in \[0, 1\)"),
]


@pytest.mark.parametrize(("name", "shape", "outputs", "options", "message"), BAD)
def test_bad_input_is_refused_in_one_line(name, shape, outputs, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build_model(name, input_shape=shape, output_size=outputs, **options)
    assert "\n" not in str(caught.value)


def test_unknown_name_lists_every_model():
    with pytest.raises(ValueError, match="model = LeNet: is not known") as caught:
        build_model("LeNet", input_shape=(1, 28, 28), output_size=10)
    assert all(name in str(caught.value) for name in MODELS)


def test_vgg_depth_and_image_size_of_direct_calls():
    from gossamer.models.lenets import lenet
    from gossamer.models.vgg import vgg

    with pytest.raises(ValueError, match="depth = 12: is not a VGG; choose one of: 11, 13, 16, 19"):
        vgg(12)
    with pytest.raises(ValueError, match=r"image_size = .*one side or"):
        lenet(image_size=(1, 28, 28))  # type: ignore[arg-type]
    assert lenet(image_size=28).fc1.in_features == 800
    assert lenet(image_size=(28, 36)).fc1.in_features == 50 * 4 * 6
