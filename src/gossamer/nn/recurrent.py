"""Recurrent networks whose matrices are layers: ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.nn.split import Split, linear_of, weights_and_biases


class _Recurrent(Split):
    """A recurrent network with a layer per matrix, such as ``ih_l0`` and ``hh_l0_reverse``.

    A matrix is used at every time step, so all steps must see one θ. It is therefore read once per
    pass, as a dense weight, and torch's own recurrence computes with it.
    """

    @classmethod
    def taken(cls, module: nn.Module) -> set[str]:
        """All its parameters."""
        return set(module._parameters)

    @classmethod
    def layers_of(cls, module: nn.Module) -> dict[str, nn.Linear]:
        """A layer per weight; it has the bias of the same name."""
        own = {name: p for name, p in module._parameters.items() if p is not None}
        return {
            name.removeprefix("weight_"): linear_of(p, own.get(_bias_of(name)))
            for name, p in own.items()
            if name.startswith("weight_")
        }

    @classmethod
    def of(cls, module: nn.Module) -> Split:
        """As everywhere; torch's list of the parameters is emptied too."""
        _leave_out_when_compiled()
        split = super().of(module)
        for name in module._parameters:  # as torch does it: the list follows the attributes
            setattr(split, name, None)
            delattr(split, name)
        # What the list was made from, told by weak references. Without them the dense weights of a
        # pass are taken as they are; with them cuDNN would move them in memory.
        split.__dict__["_flat_weight_refs"] = [None] * len(module._parameters)
        return split

    def __setstate__(self, state: dict[str, Any]) -> None:
        """One that was pickled, perhaps elsewhere."""
        _leave_out_when_compiled()
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def parameters_from(self, layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        """Weights and biases by torch's names, in torch's order."""
        return _in_order(weights_and_biases(layers))

    def whole(self) -> nn.Module:
        """As everywhere; torch's list of the parameters knows them again."""
        module = super().whole()
        # As every move to a device does.
        module._apply(lambda tensor: tensor)  # type: ignore[no-untyped-call]
        return module

    def reads(self, part: str) -> bool:
        """Every matrix."""
        return True

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002
        """Torch's own, with one draw of the weights or with their means."""
        layers: dict[str, Any] = {name: self._modules[name] for name in self.parts}
        drawn = {name: (layer.weight, layer.bias) for name, layer in layers.items()}
        body: Any = self._body()
        for name, tensor in _in_order(drawn).items():
            setattr(body, name, tensor)
        return body(input, hx)

    def _body(self) -> nn.Module:
        """A module of torch's class without parameters, hooks and submodules."""
        body = self.torch_class.__new__(self.torch_class)
        body.__dict__.update(nn.Module().__dict__)
        for name, value in self.__dict__.items():
            if name not in body.__dict__:
                body.__dict__[name] = value.copy() if type(value) is list else value
        body.__dict__["training"] = self.training
        return body


@cache
def _leave_out_when_compiled() -> None:
    """As torch leaves its own recurrent networks out of compiled graphs.

    Once there is one: torch imports its compiler for this, longer than the package itself takes.
    """
    left_out = torch.compiler.disable(_Recurrent.forward)  # type: ignore[no-untyped-call]
    _Recurrent.forward = left_out  # type: ignore[method-assign]


class SplitLSTM(_Recurrent, nn.LSTM):
    """``nn.LSTM`` with a layer per matrix."""

    torch_class = nn.LSTM


class SplitGRU(_Recurrent, nn.GRU):
    """``nn.GRU`` with a layer per matrix."""

    torch_class = nn.GRU


class SplitRNN(_Recurrent, nn.RNN):
    """``nn.RNN`` with a layer per matrix."""

    torch_class = nn.RNN


def _bias_of(weight: str) -> str:
    return weight.replace("weight_", "bias_", 1)


def _in_order(parts: Mapping[str, tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
    """Per layer and direction torch has the weights of inputs and state, biases, projection."""
    found: dict[str, Tensor] = {}
    for place in dict.fromkeys(name[2:] for name in parts):
        for part in ("ih", "hh"):
            found[f"weight_{part}{place}"] = parts[f"{part}{place}"][0]
        for part in ("ih", "hh"):
            bias = parts[f"{part}{place}"][1]
            if bias is not None:
                found[f"bias_{part}{place}"] = bias
        if f"hr{place}" in parts:
            found[f"weight_hr{place}"] = parts[f"hr{place}"][0]
    return found
