"""Multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from .checks import invalid, one_of, positive_int
from .columns import LinearSkip, SelectColumns

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def mlp(
    *,
    input_shape: Sequence[int],
    output_size: int,
    hidden: Sequence[int] = (256, 256),
    activation: str = "relu",
    columns: Sequence[int] | None = None,
    skip: bool = False,
) -> nn.Sequential:
    """Builds a perceptron that flattens its input, so it serves tables and images alike.

    Args:
        input_shape: Shape of one example, without the batch.
        output_size: Length of the output of one example.
        hidden: Widths of the hidden layers; empty gives a linear model.
        activation: One of ``ACTIVATIONS``, after every hidden layer.
        columns: The columns to read, counted from 0 after flattening; all by default.
        skip: Whether a linear map of the columns is added to the output, see ``LinearSkip``.

    Returns:
        A module from [B, *input_shape] to [B, output_size].
    """
    if not input_shape:
        raise invalid("input_shape", "()", "must have at least one axis", "give (columns,)")
    for size in input_shape:
        positive_int("input_shape", size)
    if isinstance(hidden, str | int):
        raise invalid("hidden", hidden, "must be a list of widths", "write e.g. [256, 256]")
    make_activation = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
    width = math.prod(input_shape)
    first: list[nn.Module] = [nn.Flatten()]
    if columns is not None:
        first.append(SelectColumns(columns, width))
        width = len(columns)
    read, layers = width, [] if skip else first
    for hidden_width in hidden:
        layers += [nn.Linear(width, positive_int("hidden", hidden_width)), make_activation()]
        width = hidden_width
    layers.append(nn.Linear(width, positive_int("output_size", output_size)))
    if skip:
        return nn.Sequential(*first, LinearSkip(nn.Sequential(*layers), read, output_size))
    return nn.Sequential(*layers)
