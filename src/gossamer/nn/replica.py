"""A second body for a network: modules of its own, the same tensors.

What a forward pass notes on its modules (a sampling state, a mode, a cache) then belongs to one
caller. Parameters and buffers are the very objects of the network, unless others are given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gossamer.core.support import check_indices
from gossamer.errors import InvalidData, InvalidValue
from gossamer.nn.base import SparseLayer
from gossamer.nn.references import ATOMS, References, all_same

_FRESH: dict[str, Any] = {
    "sampling_state": None,
    "growth": None,
    "shared_seed": None,
    "in_shared_forward": False,
    "stand_in": None,
    "_pattern": None,
    "_shown": None,
    "_compiled_call_impl": None,
}
"""What a pass or a training step notes on a module: a replica begins without it."""

_CONTAINERS = frozenset((dict, OrderedDict, list, set))


def replicate(network: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A structural replica of ``network`` that shares its parameters and buffers.

    References to modules of the tree are turned to their replicas wherever they stand: registered,
    in attributes, lists, dictionaries, bound methods, closures, weak references, hooks. Compiled
    modules become what they were compiled from.

    Args:
        network: Any module.
        tensors: Parameters and buffers to take instead, by their names in ``state_dict``. A sparse
            layer may get a support of another size; what its backend derives from it is made anew.

    Raises:
        InvalidValue: A part of the network cannot be replicated; the message names it.
        InvalidData: A tensor does not fit its place.
    """
    return _Copier(network, tensors or {}).root


class Replicas:
    """Replicas of one network in evaluation mode, each lent to one caller at a time.

    One that came back unchanged serves the next caller, in whatever thread. A change of the network
    (another tensor, hook, module or attribute) is seen: old replicas are given up.

    Args:
        network: Any module; it is never written to.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._free: list[_Lent] = []

    @contextmanager
    def borrow(self) -> Iterator[nn.Module]:
        """A replica that belongs to the caller until the context ends."""
        lent = self._take()
        yield lent.root  # after an exception it is not taken back: nobody knows its state
        if lent.is_untouched():
            self._free.append(lent)
        else:
            lent.refuse_growth()

    def _take(self) -> _Lent:
        while True:
            try:
                lent = self._free.pop()  # a list's pop is atomic
            except IndexError:
                return _Lent(self.network)
            if lent.is_current():
                return lent


class _Lent:
    """A replica, and how it and its original looked when it was made."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._was = _faces(network)
        self.root = _Copier(network, {}).root.eval()
        self._born = _faces(self.root)
        self._size = _size(self.root)

    def is_current(self) -> bool:
        """Whether the original is still what it was."""
        return _same_faces(self._was, _faces(self.network))

    def is_untouched(self) -> bool:
        """Whether the replica is as it was made, so that a later pass cannot tell of this one."""
        return _same_faces(self._born, _faces(self.root))

    def refuse_growth(self) -> None:
        """Raise where a pass gave the replica new parts, which the network itself does not have."""
        if _size(self.root) != self._size:
            raise InvalidValue(
                "model",
                type(self.network).__name__,
                "builds parts of itself in its first forward pass, so that they were never trained",
                "run one batch through it before predicting",
            )


class _Copier:
    def __init__(self, root: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._memo: dict[int, nn.Module] = {}
        self._parameters: dict[int, nn.Parameter] = {}
        self._buffers: dict[int, Tensor] = {}
        named = list(root.named_modules())
        self._memo = {id(m): _shell(name, m) for name, m in named if not _is_compiled(m)}
        for _, module in named:
            if _is_compiled(module):
                self._memo[id(module)] = self._memo[id(_plain(module))]
        for name, module in named:
            if not _is_compiled(module) and self._memo[id(module)] is not module:
                self._fill(f"{name}." if name else "", module)
        self.root = self._memo[id(root)]

    def _fill(self, prefix: str, module: nn.Module) -> None:
        own = self._memo[id(module)].__dict__
        turn = References(self._memo).turn
        for key, value in module.__dict__.items():
            if key in _FRESH:
                own[key] = _FRESH[key]
            elif key == "_parameters":
                own[key] = {n: self._parameter(prefix + n, p, module) for n, p in value.items()}
            elif key == "_buffers":
                own[key] = {n: self._buffer(prefix + n, b, module) for n, b in value.items()}
            elif key == "_modules":
                own[key] = {n: m if m is None else self._memo[id(m)] for n, m in value.items()}
            elif type(value) in ATOMS:
                own[key] = value
            else:
                found = turn(value, prefix + key)
                # A container of its own, whatever it holds: hooks and caches are noted there.
                is_same = found is value and type(value) in _CONTAINERS
                own[key] = found.copy() if is_same else found
        replica = self._memo[id(module)]
        if isinstance(module, SparseLayer) and isinstance(replica, SparseLayer):
            before, now = (sum(map(len, _vectors(layer))) for layer in (module, replica))
            if f"{prefix}indices" in self._tensors or before != now:
                self._derive(prefix, replica)

    def _parameter(
        self, name: str, present: nn.Parameter | None, module: nn.Module
    ) -> nn.Parameter | None:
        if present is None:
            return None
        if name in self._tensors and id(present) not in self._parameters:
            given = self._tensors[name].detach()
            if not _may_resize(module) or _is_factor(present, module):
                _require_shape(name, given, present)
            self._parameters[id(present)] = nn.Parameter(given, requires_grad=False)
        return self._parameters.get(id(present), present)

    def _buffer(self, name: str, present: Tensor | None, module: nn.Module) -> Tensor | None:
        if present is None or name not in self._tensors:
            return present
        given = self._tensors[name]
        if not _may_resize(module):
            _require_shape(name, given, present)
        return self._buffers.setdefault(id(present), given)

    def _derive(self, prefix: str, layer: SparseLayer) -> None:
        """Put the given support into a layer, and what its backend reads of it."""
        vectors = _vectors(layer)
        indices = self._tensors.get(f"{prefix}indices")
        if indices is None and any(len(v) != layer.layout.numel for v in vectors):
            indices = layer._buffers["indices"]
        nnz = layer.layout.numel if indices is None else indices.numel()
        for vector in vectors:
            if vector.shape != (nnz,):
                raise InvalidData(
                    f"{prefix[:-1] or 'root'}", tuple(vector.shape), f"must be {nnz} kept weights"
                )
        if indices is not None:
            check_indices(indices, layer.layout.numel, f"{prefix}indices")
        derived = [n for n in layer._buffers if n.startswith("pattern_")]
        for name in derived:  # the network's own, which must not be written to
            del layer._buffers[name]
        layer._buffers["indices"] = indices
        layer.refresh_pattern()


def _shell(name: str, module: nn.Module) -> nn.Module:
    """A module of the same class without anything in it."""
    if isinstance(module, torch.jit.ScriptModule):
        if module.training:
            raise InvalidValue(
                name or "model",
                type(module).__name__,
                "is compiled by torch.jit and in training mode",
                "call eval() on it before predicting",
            )
        return module
    tensors = [*module._parameters.values(), *module._buffers.values()]
    if any(t is not None and is_lazy(t) for t in tensors):
        raise InvalidValue(
            name or "model",
            type(module).__name__,
            "has parameters without a shape yet",
            "run one batch through the model first",
        )
    return object.__new__(type(module))


def _vectors(layer: SparseLayer) -> list[nn.Parameter]:
    """The parameters with one value per kept weight."""
    return [vector.parameter for vector in layer.vectors]


def _may_resize(module: nn.Module) -> bool:
    """A sparse layer, or a module whose units leave, such as a gate."""
    return isinstance(module, SparseLayer) or bool(getattr(module, "resizes", False))


def _is_factor(parameter: nn.Parameter, module: nn.Module) -> bool:
    """Whether it stays as long as it is, however many weights a layer keeps."""
    factors = module.factors if isinstance(module, SparseLayer) else ()
    return any(parameter is factor.parameter for factor in factors)


def _require_shape(name: str, given: Tensor, present: Tensor) -> None:
    if given.shape != present.shape:
        raise InvalidData(name, tuple(given.shape), f"must have the shape {tuple(present.shape)}")


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _plain(module: nn.Module) -> nn.Module:
    inner = module
    while _is_compiled(inner):
        found = inner._modules["_orig_mod"]
        assert found is not None
        inner = found
    return inner


def _faces(root: nn.Module) -> list[list[Any]]:
    """All that a replica takes over, module by module: objects to be compared by identity."""
    faces = []
    for module in root.modules():
        face: list[Any] = [module]
        for key, value in module.__dict__.items():
            if key in _FRESH or key == "training":
                continue
            if type(value) in (dict, OrderedDict):
                face.extend(value.values())
            elif type(value) is list:
                face.extend(value)
            elif type(value) is not set:
                face.append(value)
        faces.append(face)
    return faces


def _same_faces(before: list[list[Any]], now: list[list[Any]]) -> bool:
    return len(before) == len(now) and all(map(all_same, before, now))


def _size(root: nn.Module) -> tuple[int, int]:
    modules = list(root.modules())
    return len(modules), sum(len(m._parameters) for m in modules)
