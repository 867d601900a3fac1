"""BatchNorm with running statistics, computed by the convolution before it.

In evaluation such a layer is y · scale + shift per channel. Scaled weights and another bias give
the same without a pass over the activations. Which layers follow each other a forward pass tells
(``watching``); the passes after it may then be ``folded``, and each is checked to hand outputs on
in the same way. All of it is seen by the thread alone that opens the contexts.
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


class Watch(TorchFunctionMode):
    """Who reads the outputs of sparse convolutions, in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: dict[int, tuple[weakref.ref[Tensor], SparseLayer]] = {}
        self._layers: Counter[nn.Module] = Counter()
        self._norms: Counter[nn.Module] = Counter()
        self._readers: dict[nn.Module, list[NativeBatchNorm | None]] = {}
        self._is_inside = False

    def made(self, layer: SparseLayer, y: Tensor) -> None:
        """A layer has been called."""
        self._layers[layer] += 1
        if layer.layout.kind == "conv" and y.dim() == layer.layout.dims + 2:
            self._outputs[id(y)] = (weakref.ref(y), layer)

    @contextmanager
    def inside(self, norm: NativeBatchNorm, y: Tensor) -> Iterator[None]:
        """While a BatchNorm computes; what it does to its input is its own business."""
        self._norms[norm] += 1
        self._read(y, norm)
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Everything else that is done with a tensor, the question for its shape included."""
        if not self._is_inside:
            for value in (*args, *(kwargs or {}).values()):
                for part in value if isinstance(value, list | tuple) else (value,):
                    self._read(part, None)
        return func(*args, **(kwargs or {}))

    def _read(self, value: Any, norm: NativeBatchNorm | None) -> None:
        output, layer = self._outputs.get(id(value), (None, None))
        if output is not None and layer is not None and output() is value:
            self._readers.setdefault(layer, []).append(norm)

    def pairs(self, model: nn.Module) -> dict[str, str]:
        """Convolutions whose output nobody but one BatchNorm has seen, with its name.

        Args:
            model: Whose pass it was.
        """
        names = {module: name for name, module in model.named_modules()}
        found = {}
        for output, layer in self._outputs.values():
            readers = self._readers.get(layer, [])
            norm = readers[0] if len(readers) == 1 else None
            if norm is None or output() is not None:  # somebody still holds it
                continue
            if self._layers[layer] == self._norms[norm] == 1 and _fit(layer, norm):
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


class Folded:
    """Convolutions that compute what the BatchNorms after them would.

    Attributes:
        scalings: By layer.
        is_sound: Whether every output went to its BatchNorm next, as it is. Where it did not,
            outputs of the network are wrong and must be computed without.
    """

    def __init__(self, scalings: dict[nn.Module, Scaling]) -> None:
        self.scalings = scalings
        self.is_sound = True
        self._waiting: dict[nn.Module, Tensor] = {}

    def made(self, layer: SparseLayer, y: Tensor) -> None:
        """A layer has been called."""
        if layer in self.scalings:
            norm = self.scalings[layer].norm
            self.is_sound = self.is_sound and norm not in self._waiting
            self._waiting[norm] = y

    def takes(self, norm: NativeBatchNorm, y: Tensor) -> bool:
        """Whether the input of a BatchNorm is its output already."""
        expected = self._waiting.pop(norm, None)
        self.is_sound = self.is_sound and (expected is None or expected is y)
        return expected is y

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
        yield state
    finally:
        _NOW.reset(token)
        state.end()
