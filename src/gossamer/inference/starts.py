"""Where members start: the initial network of each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from gossamer.errors import InvalidValue
from gossamer.nn.candidates import convertible_weights

Networks = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one."""

Start = Literal["own", "same"]


def networks(model: Networks, start: Start | None, *, differ: bool) -> Callable[[int], nn.Module]:
    """From the number of a member to its initial network.

    Args:
        model: A network, or a function that makes one.
        start: As of ``Membership``.
        differ: Whether supports tell members apart that start from the same weights.

    Raises:
        InvalidValue: It is not said where members start that nothing else tells apart; or a part
            of the network cannot be drawn anew.
    """
    if not isinstance(model, nn.Module):
        if start != "same":
            return lambda number: network_of(model)
        made: list[nn.Module] = []

        def first(number: int) -> nn.Module:
            made.extend([network_of(model)] if not made else [])
            return made[0]

        return first
    given: nn.Module = model
    if start is None and not differ:
        raise InvalidValue(
            "member_start",
            None,
            "must be told for dense members of one given network: nothing else tells them apart",
            "give a function, model=lambda: Net(); or member_start='own' to draw weights anew",
        )
    if start != "own":
        return lambda number: given
    _require_drawable(given)
    return lambda number: given if number == 0 else _drawn_anew(given)


def network_of(model: Networks) -> nn.Module:
    """The network itself, or what the function makes."""
    network = model if isinstance(model, nn.Module) else model()
    if not isinstance(network, nn.Module):
        raise InvalidValue("model", type(network).__name__, "must be or make a torch module")
    return network


def weights_in(network: nn.Module) -> int:
    """Weights of all layers that a method converts, each shared one once."""
    return sum(weight.numel() for weight in convertible_weights(network))


def _require_drawable(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not callable(
            getattr(module, "reset_parameters", None)
        ):
            raise InvalidValue(
                "model",
                name or type(network).__name__,
                f"is a {type(module).__name__}, which has no reset_parameters to draw it anew",
                "give a function that makes networks: model=lambda: Net()",
            )


def _drawn_anew(network: nn.Module) -> nn.Module:
    def draw(module: nn.Module) -> None:
        reset: Any = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()

    return copy.deepcopy(network).apply(draw)
