"""BatchNorm with running statistics, computed by the convolution before it.

In evaluation such a layer is y · scale + shift per channel. Scaled weights and another bias give
the same without a pass over the activations. Which layers follow each other a forward pass tells
(``watching``); the passes after it may then be ``folded``, and each is checked to hand outputs on
in the same way, to nobody else. All of it is seen by the thread alone that opens the contexts.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from gossamer.nn.base import SparseLayer
    from gossamer.nn.batchnorm import NativeBatchNorm


class _Reading(TorchFunctionMode):
    """Sees every operation on a tensor, the question for its shape included, in this thread.

    Functions of ``torch.jit`` alone escape it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_inside = False

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """While a BatchNorm computes: what it does to its input is its own business."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever is done."""
        if not self._is_inside:
            for value in (*args, *(kwargs or {}).values()):
                for part in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(part, Tensor):
                        self._read(part)
        return func(*args, **(kwargs or {}))

    def _read(self, value: Tensor) -> None:
        raise NotImplementedError


class Watch(_Reading):
    """Who reads the outputs of sparse convolutions, in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: dict[SparseLayer, weakref.ref[Tensor]] = {}
        self._makers: dict[int, SparseLayer] = {}  # by the id of an output, until it is used again
        self._calls: Counter[nn.Module] = Counter()
        self._readers: dict[nn.Module, list[NativeBatchNorm | None]] = {}

    def made(self, layer: SparseLayer, y: Tensor) -> None:
        """A layer has been called."""
        self._calls[layer] += 1
        if layer.layout.kind == "conv" and y.dim() == layer.layout.dims + 2:
            self._outputs[layer] = weakref.ref(y)
            self._makers[id(y)] = layer

    def normalise(self, norm: NativeBatchNorm, y: Tensor) -> Tensor:
        """What a BatchNorm makes of its input."""
        self._calls[norm] += 1
        self._read(y, norm)
        with self._inside():
            return norm.normalise(y)

    def _read(self, value: Tensor, norm: NativeBatchNorm | None = None) -> None:
        layer = self._makers.get(id(value))
        if layer is not None and self._outputs[layer]() is value:
            self._readers.setdefault(layer, []).append(norm)

    def pairs(self, model: nn.Module) -> dict[str, str]:
        """Convolutions whose output nobody but one BatchNorm has seen, with its name.

        Args:
            model: Whose pass it was.
        """
        names = {module: name for name, module in model.named_modules()}
        found = {}
        for layer, output in self._outputs.items():
            readers = self._readers.get(layer, [])
            norm = readers[0] if len(readers) == 1 else None
            if norm is None or output() is not None:  # somebody still holds it
                continue
            are_known = layer in names and norm in names
            if are_known and self._calls[layer] == self._calls[norm] == 1 and _fit(layer, norm):
                found[names[layer]] = names[norm]
        return found


def _fit(layer: SparseLayer, norm: NativeBatchNorm) -> bool:
    return (
        not norm.training
        and norm.running_mean is not None
        and norm.num_features == layer.layout.fan_out
        and norm.running_mean.dtype == layer.leading().dtype
        and norm.running_mean.dtype in (torch.float32, torch.float64)
    )


@dataclass(frozen=True, eq=False)
class Scaling:
    """y · scale + shift per channel of a layer's output.

    Attributes:
        norm: Whose place it takes.
        factors: The scale of every kept weight ``[nnz]``.
        bias: The layer's bias, scaled and shifted ``[out]``.
    """

    norm: NativeBatchNorm
    factors: Tensor
    bias: Tensor

    @classmethod
    def of(cls, layer: SparseLayer, norm: NativeBatchNorm) -> Scaling | None:
        """``None`` under local noise that a negative scale would turn round."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        dtype = torch.float64
        scale = (norm.running_var.to(dtype) + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight.to(dtype)
        if layer.noise() == "local" and bool((scale < 0.0).any()):
            return None
        bias = -norm.running_mean.to(dtype) * scale
        if norm.bias is not None:
            bias = bias + norm.bias.to(dtype)
        if layer.bias is not None:
            bias = bias + layer.bias.to(dtype) * scale
        values = layer.leading()
        rows = layer.support.positions() // (layer.layout.numel // layer.layout.fan_out)
        factors = scale.to(values.dtype)[rows.to(values.device)]
        return cls(norm, factors, bias.to(values.dtype))


class Folded(_Reading):
    """Convolutions that compute what the BatchNorms after them would.

    Attributes:
        scalings: By layer.
        is_sound: Whether every output went to its BatchNorm, as it was, and to nobody else. Where
            it did not, outputs of the network are wrong and must be computed without.
    """

    def __init__(self, scalings: dict[nn.Module, Scaling]) -> None:
        super().__init__()
        self.scalings = scalings
        self.is_sound = True
        self._waiting: dict[nn.Module, Tensor] = {}
        self._scaled: dict[int, weakref.ref[Tensor]] = {}

    def made(self, layer: SparseLayer, y: Tensor) -> None:
        """A layer has been called."""
        if layer in self.scalings:
            norm = self.scalings[layer].norm
            self.is_sound = self.is_sound and norm not in self._waiting
            self._waiting[norm] = y
            self._scaled[id(y)] = weakref.ref(y)

    def normalise(self, norm: NativeBatchNorm, y: Tensor) -> Tensor:
        """What a BatchNorm makes of its input: nothing where it is its output already."""
        expected = self._waiting.pop(norm, None)
        with self._inside():
            if expected is y:
                return y.detach()  # another tensor, so that who reads y itself is noticed
            self.is_sound = self.is_sound and expected is None
            return norm.normalise(y)

    def _read(self, value: Tensor) -> None:
        output = self._scaled.get(id(value))
        self.is_sound = self.is_sound and (output is None or output() is not value)

    def end(self) -> None:
        """After the last pass nobody may be waiting."""
        self.is_sound = self.is_sound and not self._waiting


_NOW: ContextVar[Watch | Folded | None] = ContextVar("gossamer_folding", default=None)


def present() -> Watch | Folded | None:
    """What layers have to tell their calls to in this thread."""
    return None if torch.compiler.is_compiling() else _NOW.get()


def scaling_of(layer: SparseLayer) -> Scaling | None:
    """What a layer has to do to its output."""
    now = present()
    return now.scalings.get(layer) if isinstance(now, Folded) else None


@contextmanager
def watching() -> Iterator[Watch]:
    """One forward pass, in evaluation, is looked at."""
    watch = Watch()
    token = _NOW.set(watch)
    try:
        with watch:
            yield watch
    finally:
        _NOW.reset(token)


@contextmanager
def folded(model: nn.Module, pairs: Mapping[str, str]) -> Iterator[Folded]:
    """Within the context the convolutions compute what the BatchNorms after them would.

    Neither weights nor statistics may change inside, nor may gradients be wanted. Layers under
    local noise are left alone where a scale is negative: the noise would change its sign.

    Args:
        model: As ``watching`` saw it, or a copy.
        pairs: What that found.
    """
    found: dict[nn.Module, Scaling] = {}
    for one, other in pairs.items():
        layer: Any = model.get_submodule(one)
        norm: Any = model.get_submodule(other)
        scaling = Scaling.of(layer, norm)
        if scaling is not None:
            found[layer] = scaling
    state = Folded(found)
    token = _NOW.set(state)
    try:
        with state:
            yield state
    finally:
        _NOW.reset(token)
        state.end()
