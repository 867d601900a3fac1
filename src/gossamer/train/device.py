"""Where a fit computes: names of devices, and the generators that its noise comes from.

Networks are built on the CPU, so that a seed gives the same weights everywhere, and then go to
their device before a method is built on them: layers, optimiser and noise follow the network, and
off the CPU ``ops.choose`` gives every layer the masked backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue

AUTO = "auto"
CPU = torch.device("cpu")
_NAME = re.compile(r"cpu|mps|cuda(?::(\d+))?")
_BACKENDS = ("engines", "backends")
"""Keys of a method's state that hold the backend of each layer."""


def resolve_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name: ``auto`` (a GPU of CUDA if there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:N``
            or ``mps``.

    Raises:
        InvalidValue: It is no such name, or that device is not here.
    """
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidValue("device", name, "must be auto, cpu, cuda, cuda:N or mps")
    if name == "cpu":
        return CPU
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise _absent(name)
        return torch.device("mps")
    if not torch.cuda.is_available():
        raise _absent(name)
    number = torch.cuda.current_device() if found[1] is None else int(found[1])
    count = torch.cuda.device_count()
    if number >= count:
        raise InvalidValue("device", name, f"is not available here: there are {count}", "use cuda")
    return torch.device("cuda", number)


def device_of(network: nn.Module) -> torch.device:
    """Where a network's parameters are; the CPU where it has none."""
    return next((p.device for p in network.parameters()), CPU)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generator, and of the device's own where it has one."""
    state = {"torch": torch.get_rng_state()}
    if device.type in ("cuda", "mps"):
        state["torch_device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Go on with the noise of a state; a device that the state does not know keeps its own."""
    torch.set_rng_state(state["torch"])
    if device.type in ("cuda", "mps") and "torch_device" in state:
        torch.get_device_module(device).set_rng_state(state["torch_device"])


@contextmanager
def own_noise(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's generators for the block and give them back as they were."""
    before = random_state(device)
    try:
        torch.manual_seed(seed)
        yield
    finally:
        set_random_state(before, device)


def portable(state: dict[str, Any], saved_on: str, device: torch.device) -> dict[str, Any]:
    """A method's state, ready to be loaded on a device.

    Checkpoints are read on the CPU. What modules and optimisers hold follows them on its own; kept
    samples are brought here. On another kind of device than it was saved on each layer keeps the
    backend that it was built with: the saved one may not run.
    """
    if device.type != "cpu" and "samples" in state:
        state = {**state, "samples": _moved(state["samples"], device)}
    if "members" in state:
        members = [
            {**one, "state": portable(one["state"], saved_on, device)} for one in state["members"]
        ]
        return {**state, "members": members}
    if "training" in state:
        return {**state, "training": portable(state["training"], saved_on, device)}
    if torch.device(saved_on).type == device.type:
        return state
    return {**state, **{key: {} for key in _BACKENDS if key in state}}


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(inner, device) for key, inner in value.items()}
    return [_moved(inner, device) for inner in value] if isinstance(value, list) else value


def _absent(name: str) -> InvalidValue:
    return InvalidValue("device", name, "is not available here", "use cpu")
