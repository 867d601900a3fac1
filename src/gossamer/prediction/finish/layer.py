"""The last linear layer of a network, and the features that it reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn import SparseLayer
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.outputs import PLAIN, Call


def last_linear(network: nn.Module, rows: InputRows, forward: Call = PLAIN) -> tuple[str, int]:
    """Name and number of outputs of the linear layer whose output is the network's.

    Args:
        network: A replica of one's own.
        rows: Some inputs of B rows.
        forward: Gives the network's own outputs.

    Raises:
        InvalidValue: There is none: the output comes from something else, or is no matrix.
    """
    found: list[tuple[str, Tensor]] = []

    def note(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, inputs, output: found.append((name, output))

    handles = [
        module.register_forward_hook(note(name))
        for name, module in network.named_modules()
        if _is_linear(module)
    ]
    try:
        outputs = forward(network, rows)
    finally:
        for handle in handles:
            handle.remove()
    name, seen = found[-1] if found else ("", torch.empty(0))
    if not found or seen.dim() != 2 or not _same(seen, outputs):
        raise _no_linear_end(network)
    return name, seen.shape[1]


def outputs_and_features(
    network: nn.Module, layer: str, rows: InputRows, forward: Call
) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, C]`` of a network, and φ = [h; 1], ``[B, F + 1]``: what ``layer`` read.

    Raises:
        InvalidValue: What the layer gave is not the network's output, for some row.
    """
    seen: list[Tensor] = []
    given: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(inputs[0])
        given.append(output)

    handle = network.get_submodule(layer).register_forward_hook(note)
    try:
        outputs = forward(network, rows)
    finally:
        handle.remove()
    read = seen[-1]
    if not _same(given[-1], outputs):
        raise _no_linear_end(network)
    return outputs.reshape(len(rows), -1), torch.cat([read, read.new_ones(len(read), 1)], 1)


def weight_norm(network: nn.Module, layer: str) -> float:
    """|W|², the bias included, of the weights that the layer has now."""
    module = network.get_submodule(layer)
    parts = [getattr(module, name) for name in ("weight", "bias")]
    return float(sum(p.detach().double().square().sum() for p in parts if p is not None))


def _same(seen: Tensor, outputs: Tensor) -> bool:
    """By value: a network may drop the axis of its only column, which makes another tensor."""
    if seen.numel() != outputs.numel():
        return False
    same = seen.flatten() == outputs.flatten()
    return bool((same | (seen.flatten() != seen.flatten())).all())  # NaN is named by who predicts


def _no_linear_end(network: nn.Module) -> InvalidValue:
    return InvalidValue(
        "network",
        type(network).__name__,
        "does not end in a linear layer that gives its output, row by row",
        "return the logits (or means) of a linear layer, or use gossamer.tempered",
    )


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (
        isinstance(module, SparseLayer) and module.layout.kind == "linear"
    )
