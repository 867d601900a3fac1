"""Torch modules with several matrices: each matrix becomes a linear layer of its own.

Attention and recurrent networks hold their matrices as bare parameters. For a conversion such a
module is split: a module of a derived class takes its place whose matrices are ``nn.Linear``
layers, which then convert as any other. The way back joins them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from gossamer.nn.base import SparseLayer
from gossamer.nn.twins import parameter_of


class Split(nn.Module):
    """A torch module whose matrices are linear layers, its ``parts``.

    Attributes:
        torch_class: That of the module, or the one whose forward it keeps.
        reshapes: Whether a layer has its weight in another shape, and so in a Parameter of its own.
        kind: The class of the module that was split.
        parts: Names of the layers that stand for parameters of the module.
    """

    torch_class: ClassVar[type[nn.Module]] = nn.Module
    reshapes: ClassVar[bool] = False
    kind: type[nn.Module]
    parts: tuple[str, ...]

    @classmethod
    def layers_of(cls, module: nn.Module) -> dict[str, nn.Linear]:
        """The matrices of a module, as layers that share its parameters."""
        raise NotImplementedError

    @classmethod
    def taken(cls, module: nn.Module) -> set[str]:
        """Names of the parameters that the layers take over."""
        raise NotImplementedError

    def parameters_from(self, layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        """What ``taken`` names, in the shapes of the module: the way back of ``layers_of``."""
        raise NotImplementedError

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether a module may be split: it has the forward and the parameters of torch's class."""
        own = type(module).forward is cls.torch_class.forward and "forward" not in module.__dict__
        if not own or is_parametrized(module) or module._buffers:
            return False
        return all(module._parameters.get(name) is not None for name in cls.taken(module))

    @classmethod
    def of(cls, module: nn.Module) -> Split:
        """A module split; it shares parameters, hooks and submodules with the whole one."""
        split: Split = _shell(cls, module)
        taken, layers = cls.taken(module), cls.layers_of(module)
        split.__dict__["_parameters"] = {
            name: p for name, p in module._parameters.items() if name not in taken
        }
        split.__dict__.update(kind=type(module), parts=tuple(layers))
        own = {name: layer.train(module.training) for name, layer in layers.items()}
        split.__dict__["_modules"] = {**own, **module._modules}  # in the order of their use
        return split

    def whole(self) -> nn.Module:
        """The module again, with the weights that its layers have now.

        They must be dense ones.
        """
        layers = {name: self._modules[name] for name in self.parts}
        assert not any(isinstance(layer, SparseLayer) for layer in layers.values())
        module: nn.Module = _shell(self.kind, self)
        for name in ("kind", "parts"):
            del module.__dict__[name]
        module.__dict__["_modules"] = {
            name: child for name, child in self._modules.items() if name not in self.parts
        }
        for name, tensor in self.parameters_from(layers).items():  # type: ignore[arg-type]
            setattr(module, name, tensor)
        return module

    def reads(self, part: str) -> bool:
        """Whether the weight of a layer is read instead of the layer being called."""
        return False

    def has_sparse_parts(self) -> bool:
        """Whether one of its matrices was converted."""
        return any(isinstance(self._modules[name], SparseLayer) for name in self.parts)


def _shell(kind: type[nn.Module], like: nn.Module) -> Any:
    """A module of another class with the attributes of one; dictionaries and lists are its own."""
    module = kind.__new__(kind)
    for name, value in like.__dict__.items():
        own = type(value) is list or name in ("_parameters", "_modules")
        module.__dict__[name] = value.copy() if own else value
    return module


def linear_of(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """A linear layer with given parameters."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.register_parameter("weight", weight)
    layer.register_parameter("bias", bias)
    return layer


def weights_and_biases(layers: Mapping[str, nn.Module]) -> dict[str, tuple[Tensor, Tensor | None]]:
    """What the layers have now."""
    return {n: (parameter_of(m), m._parameters.get("bias")) for n, m in layers.items()}


def put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """``model`` with ``module`` under ``name``; the root itself has the empty name."""
    if not name:
        return module
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
    return model
