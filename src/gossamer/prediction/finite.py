"""A posterior never answers from, nor with, a number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gossamer.errors import NonFinite
from gossamer.ops import version_of
from gossamer.prediction.inputs import InputRows, call_network, tensors_of
from gossamer.prediction.prediction import ClassPrediction, Prediction


@runtime_checkable
class Finite(Protocol):
    """Draws that can say, before anybody asks for an answer, whether they have a finite one."""

    def require_finite(self) -> None:
        """Raise ``NonFinite`` where a weight of any sample is NaN or infinite."""
        ...


def weights_named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What a network computes with: its parameters and its running statistics.

    Other buffers may hold infinities, as masks do. Of statistics an infinite variance would not
    show: what it divides is 0.
    """
    yield from network.named_parameters()
    for name, module in network.named_modules():
        if isinstance(module, _NormBase):
            prefix = f"{name}." if name else ""
            yield from ((prefix + n, b) for n, b in module.named_buffers(recurse=False))


def weights_in(state: Mapping[str, Tensor], network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The same of a state of the network, whose vectors may have other lengths."""
    return ((name, state[name]) for name, _ in weights_named(network) if name in state)


def require_finite_weights(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise for the first tensor that holds NaN or an infinity, by its name.

    Raises:
        NonFinite: A weight is not finite.
    """
    for name, given in named:
        tensor = given.detach()
        if tensor.is_floating_point() and not _is_finite(tensor):
            wrong = float(tensor[~torch.isfinite(tensor)].flatten()[0])
            raise NonFinite(
                name,
                wrong,
                "a weight that predicts must be finite",
                "go back to an earlier checkpoint, or train with a lower learning rate",
            )


class FiniteWeights:
    """Asks for finite weights again wherever one of them was changed in place since."""

    def __init__(self) -> None:
        self._seen: tuple[tuple[int, int], ...] | None = None

    def require(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """See ``require_finite_weights``."""
        tensors = list(named)
        stamp = tuple((id(tensor), version_of(tensor)) for _, tensor in tensors)
        if stamp != self._seen:
            require_finite_weights(tensors)
            self._seen = stamp


def require_finite_answer(prediction: Prediction, first: int, where: Callable[[], str]) -> None:
    """Raise unless an answer is finite.

    Args:
        prediction: Of some rows.
        first: Number of the first of them.
        where: Finds out where it went wrong; asked only then.

    Raises:
        NonFinite: It is not; the message says where.
    """
    if isinstance(prediction, ClassPrediction):
        # A logit that is +inf leaves probabilities of one logit finite; its energy shows it.
        parts = {"probabilities": prediction.probs, "energy": prediction.energy}
    else:
        parts = {"mean": prediction.mean, "std": prediction.std}
    for name, values in parts.items():
        wrong = ~torch.isfinite(values)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise NonFinite(
                f"{name} of row {first + row}",
                float(values[row][wrong[row]].flatten()[0]),
                f"an answer must be finite: {where()}",
                "check the inputs and the weights",
            )


def require_finite_columns(columns: Mapping[str, list[str] | list[float]]) -> None:
    """Raise unless all numbers of a table of answers are finite, whatever made them large.

    Raises:
        NonFinite: It names the column and the row.
    """
    for name, values in columns.items():
        for row, value in enumerate(values):
            if isinstance(value, float) and not math.isfinite(value):
                raise NonFinite(
                    f"{name} of row {row}",
                    value,
                    "an answer must be finite: it left the range of numbers in original units",
                    "check the scales of the preparation",
                )


def blame(network: nn.Module, rows: InputRows) -> str:
    """What first gave a number that is not finite, in words.

    Args:
        network: A replica of one's own, as it was when the answer was found.
        rows: That it was given.
    """
    given = [tensor for tensor in tensors_of(rows) if tensor.is_floating_point()]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in given):
        return "the inputs are not"
    found: list[str] = []

    def note(name: str) -> Callable[[nn.Module, object, object], None]:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if not found and isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                found.append(name)

        return look

    handles = [
        module.register_forward_hook(note(name)) for name, module in network.named_modules() if name
    ]
    try:
        with torch.no_grad():
            call_network(network, rows)
    finally:
        for handle in handles:
            handle.remove()
    return f"layer {found[0]} overflowed" if found else "the likelihood overflowed"


def _is_finite(tensor: Tensor) -> bool:
    # One pass and no mask as long as the tensor: of NaN and infinities one bound shows them all.
    if tensor.numel() == 0:
        return True
    low, high = tensor.aminmax()
    return bool(torch.isfinite(low) & torch.isfinite(high))
