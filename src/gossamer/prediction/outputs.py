"""What a network gives: the tensor in it, and which of its axes holds the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Categorical, Likelihood
from gossamer.nn import SparseLayer
from gossamer.prediction.inputs import InputRows, call_network, tensors_of

Output = str | Callable[[Any], Tensor]
"""Which tensor of a network's output predicts: a field (attribute or key), or a function."""

Call = Callable[[nn.Module, InputRows], Tensor]
"""Runs a network on rows."""

_MOST_SHOWN = 6


@dataclass(frozen=True)
class Forward:
    """Runs a network and takes the tensor that predicts.

    Attributes:
        output: See ``Output``; ``None`` where the network gives nothing but that tensor.
    """

    output: Output | None = None

    def __call__(self, network: nn.Module, rows: InputRows) -> Tensor:
        """Outputs ``[B, ...]`` of B rows.

        Raises:
            InvalidData: What the network gives is no tensor, or has other rows.
        """
        given = call_network(network, rows)
        if self.output is None:
            if not isinstance(given, Tensor):
                raise _several_outputs(given)
            if isinstance(rows, Tensor):
                return given
            found = given
        else:
            found = _taken(given, self.output)
        count = len(rows)
        if found.dim() == 0 or found.shape[0] != count:
            rule = f"must have the {count} rows of the inputs on its first axis"
            raise InvalidData("output shape", tuple(found.shape), rule, "choose with output=...")
        return found


PLAIN = Forward()
"""Of networks that give one tensor."""


def checked_output(output: Output | None) -> Output | None:
    """Raise unless it is a name or a function."""
    if output is None or isinstance(output, str) or callable(output):
        return output
    raise InvalidValue("output", output, "must be the name of a field, or a function")


def class_dim_of(likelihood: Likelihood) -> int | None:
    """The axis that it was given; ``None`` where none is known or there are no logits."""
    return likelihood.class_dim if isinstance(likelihood, Categorical) else None


def with_known_axis(
    likelihood: Likelihood, outputs: Tensor, rows: InputRows, network: nn.Module
) -> Likelihood:
    """The likelihood, told where the classes are if outputs, inputs and network leave no doubt.

    Beyond ``[B, C]`` that is so in one case: images in, images out, through convolutions, whose
    channels are axis 1.

    Args:
        likelihood: Of a posterior.
        outputs: ``[S, B, ...]``.
        rows: What they are for.
        network: That gave them.
    """
    if outputs.dim() <= 4 or not isinstance(likelihood, Categorical):
        return likelihood
    if likelihood.class_dim is not None:
        return likelihood
    images = any(tensor.dim() == outputs.dim() - 1 for tensor in tensors_of(rows))
    return likelihood.at(1) if images and _convolves(network) else likelihood


def _taken(given: Any, output: Output) -> Tensor:
    if not isinstance(output, str):
        found = output(given)
    elif isinstance(given, Tensor):
        raise InvalidData(
            "output", output, "is asked of a network that gives one tensor", "leave output out"
        )
    elif isinstance(given, Mapping) and output in given:
        found = given[output]
    elif hasattr(given, output):
        found = getattr(given, output)
    else:
        rule = f"is not in the network's {type(given).__name__}"
        raise InvalidData("output", output, rule, _choice(given))
    if not isinstance(found, Tensor):
        name = output if isinstance(output, str) else getattr(output, "__name__", "function")
        rule = f"must give a tensor, not {type(found).__name__}"
        raise InvalidData("output", name, rule)
    return found


def _several_outputs(given: Any) -> InvalidData:
    return InvalidData(
        "output of the network",
        type(given).__name__,
        "is no tensor, and what of it predicts is not guessed",
        _choice(given),
    )


def _choice(given: Any) -> str:
    """What to write, in words."""
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        return "give output=lambda out: out[0], or a function of your own"
    held = given if isinstance(given, Mapping) else getattr(given, "__dict__", {})
    if hasattr(given, "_fields"):
        held = dict(zip(given._fields, given, strict=True))
    names = [str(name) for name, value in held.items() if isinstance(value, Tensor)]
    if not names:
        return "give a function as output"
    names.sort(key=lambda name: name != "logits")
    return "give " + " or ".join(f'output="{name}"' for name in names[:_MOST_SHOWN])


def _convolves(network: nn.Module) -> bool:
    return any(
        isinstance(m, _ConvNd) or (isinstance(m, SparseLayer) and m.layout.dims > 0)
        for m in network.modules()
    )
