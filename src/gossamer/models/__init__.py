"""Plain torch networks, and one way to build any of them by name.

This package imports nothing of the rest: a model knows nothing of Bayes or sparsity. To add one,
write a builder with keyword arguments and one row of ``MODELS``. The builder's parameters say
what it needs of the data: ``input_shape`` and ``output_size``, or, for a network of images,
``in_channels``, ``num_classes`` and, where the size matters, ``image_size``. Its other parameters
are its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from torch import nn

from .checks import invalid, one_of, positive_int
from .columns import LinearSkip, SelectColumns
from .fusing import FusingNorm, norm_relu
from .lenets import lenet
from .mlps import mlp
from .resnet import resnet18, resnet20, resnet32, resnet34, resnet50
from .vgg import vgg11, vgg13, vgg16, vgg19
from .wide_resnets import wide_resnet, wrn_28_10

__all__ = [
    "MODELS",
    "FusingNorm",
    "LinearSkip",
    "SelectColumns",
    "build_model",
    "lenet",
    "mlp",
    "norm_relu",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet50",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "wide_resnet",
    "wrn_28_10",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "vgg11": vgg11,
    "vgg13": vgg13,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "wide_resnet": wide_resnet,
    "wrn_28_10": wrn_28_10,
}


def build_model(
    name: str, *, input_shape: Sequence[int], output_size: int, **options: object
) -> nn.Module:
    """Builds a network for data of a given shape.

    Args:
        name: A key of ``MODELS``.
        input_shape: Shape of one example: (columns,) or (channels, height, width).
        output_size: Length of the output of one example: classes, or numbers to predict.
        **options: The builder's own options, e.g. ``hidden`` of mlp, ``stem`` of resnet18.

    Returns:
        A module from [B, *input_shape] to [B, output_size], weights drawn from torch's generator.

    Raises:
        ValueError: An unknown name or option, a shape the network cannot take, a bad value.
    """
    builder = MODELS[one_of("model", name, MODELS)]
    shape = tuple(positive_int("input_shape", size) for size in input_shape)
    positive_int("output_size", output_size)
    needs = inspect.signature(builder).parameters
    if "input_shape" in needs:
        from_data: dict[str, object] = {"input_shape": shape, "output_size": output_size}
    elif len(shape) == 3:
        given = {"in_channels": shape[0], "image_size": shape[1:], "num_classes": output_size}
        from_data = {key: value for key, value in given.items() if key in needs}
    else:
        rule = f"{name} needs images (channels, height, width)"
        raise invalid("input_shape", shape, rule, "give one channel to grey images, or use mlp")
    allowed = [key for key in needs if key not in from_data]
    for option in options:
        if option not in allowed:
            hint = "its options are: " + ", ".join(allowed) if allowed else "it has no options"
            raise invalid("option", option, f"is not an option of {name}", hint)
    return builder(**from_data, **options)
