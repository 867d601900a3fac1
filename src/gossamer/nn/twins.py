"""Which sparse layers stand for which torch classes, those of other packages included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import conv, embedding, linear
from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
from gossamer.nn.conv import conv_layout, dense_conv
from gossamer.nn.embedding import dense_embedding, table_layout, table_of
from gossamer.nn.grouped import GroupedLinear, grouped_layout
from gossamer.nn.linear import dense_linear, linear_layout
from gossamer.ops import Layout

Map = Literal["linear"]


def parameter_of(module: nn.Module) -> nn.Parameter:
    """The weight of a torch module, as it is stored."""
    found = module._parameters["weight"]
    assert found is not None
    return found


@dataclass(frozen=True)
class Twin:
    """The sparse classes that stand for a torch class, and the ways between them.

    Attributes:
        bayesian: With a Gaussian per kept weight.
        deterministic: With one value per kept weight.
        layout: From a torch module to its layout.
        dense: From a sparse layer to an uninitialised torch module of its geometry.
        transposed: Whether the torch module has the axes of its weight the other way round.
        read: From a torch module to its weight, before any transposition.
    """

    bayesian: type[BayesianLayer]
    deterministic: type[DeterministicLayer]
    layout: Callable[..., Layout]
    dense: Callable[..., nn.Module]
    transposed: bool = False
    read: Callable[[nn.Module], Tensor] = parameter_of

    def weight(self, module: nn.Module) -> Tensor:
        """The weight of a torch module, in the shape of the layout."""
        found = self.read(module)
        return found.t() if self.transposed else found


TWINS: dict[type[nn.Module], Twin] = {
    nn.Linear: Twin(linear.BayesianLinear, linear.SparseLinear, linear_layout, dense_linear),
    GroupedLinear: Twin(linear.BayesianLinear, linear.SparseLinear, grouped_layout, dense_linear),
    nn.Conv1d: Twin(conv.BayesianConv1d, conv.SparseConv1d, conv_layout, dense_conv),
    nn.Conv2d: Twin(conv.BayesianConv2d, conv.SparseConv2d, conv_layout, dense_conv),
    nn.Conv3d: Twin(conv.BayesianConv3d, conv.SparseConv3d, conv_layout, dense_conv),
    nn.ConvTranspose1d: Twin(
        conv.BayesianConvTranspose1d, conv.SparseConvTranspose1d, conv_layout, dense_conv
    ),
    nn.ConvTranspose2d: Twin(
        conv.BayesianConvTranspose2d, conv.SparseConvTranspose2d, conv_layout, dense_conv
    ),
    nn.ConvTranspose3d: Twin(
        conv.BayesianConvTranspose3d, conv.SparseConvTranspose3d, conv_layout, dense_conv
    ),
    nn.Embedding: Twin(
        embedding.BayesianEmbedding,
        embedding.SparseEmbedding,
        table_layout,
        dense_embedding,
        read=table_of,
    ),
}


def _transposed_layout(module: nn.Module) -> Layout:
    return Layout("linear", tuple(reversed(parameter_of(module).shape)))


_LINEAR = TWINS[nn.Linear]
_TRANSPOSED = replace(_LINEAR, layout=_transposed_layout, transposed=True)

_REGISTERED: dict[type[nn.Module], Twin] = {}

# By name, so that a package is not imported for a class that a model may not have.
_OF_PACKAGES: dict[str, Twin] = {
    "transformers.pytorch_utils.Conv1D": _TRANSPOSED,
    "torch_geometric.nn.dense.linear.Linear": _LINEAR,
}


def register_layer(cls: type[nn.Module], *, kind: Map = "linear", transposed: bool = False) -> None:
    """Let modules of a class of one's own, or of another package, become sparse layers.

    They must be linear maps of the last axis of their input with a parameter ``weight`` and perhaps
    a ``bias``, and no other parameters, buffers or submodules. Subclasses that keep the forward of
    ``cls`` count too. A conversion asks every such module for its outputs with random weights, and
    raises where they are not those of the map: a wrong ``transposed`` shows itself. The way back,
    ``to_deterministic``, gives modules of the class again.

    ``Conv1D`` of ``transformers`` and ``Linear`` of ``torch_geometric`` are known already.

    Args:
        cls: The class. Registered a second time, it has the last settings.
        kind: ``linear``: x Wᵀ + b with W ``[out, in]``.
        transposed: The weight is stored ``[in, out]``.

    Example:
        >>> class Dense(nn.Module):
        ...     def __init__(self, inputs, outputs):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.randn(inputs, outputs))
        ...         self.bias = nn.Parameter(torch.zeros(outputs))
        ...
        ...     def forward(self, x):
        ...         return x @ self.weight + self.bias
        >>> register_layer(Dense, transposed=True)
        >>> bnn = gossamer.to_bayesian(nn.Sequential(Dense(8, 4), nn.ReLU(), Dense(4, 2)), 0.5)
        >>> bnn[0].nnz + bnn[2].nnz, type(gossamer.to_deterministic(bnn)[0]).__name__
        (20, 'Dense')
    """
    if kind not in get_args(Map):
        raise UnknownName("kind", str(kind), get_args(Map))
    is_module = isinstance(cls, type) and issubclass(cls, nn.Module)
    if not is_module or issubclass(cls, SparseLayer) or cls is nn.Module or cls in TWINS:
        raise InvalidValue(
            "cls",
            getattr(cls, "__name__", cls),
            "must be a subclass of nn.Module with a forward of its own",
            "torch's linear and convolution layers and tables are known already",
        )
    _REGISTERED[cls] = _TRANSPOSED if transposed else _LINEAR


def class_with_twin(module: nn.Module) -> type[nn.Module] | None:
    """The nearest class of a module that has a row, even if the module computes in another way."""
    return next((kind for kind in type(module).__mro__ if _row(kind) is not None), None)


def twin_of(module: nn.Module) -> Twin | None:
    """The twin of a module, also of a subclass that keeps the forward of its class."""
    kind = class_with_twin(module)
    return None if kind is None or not _computes_like(module, kind) else _row(kind)


def dense_twin_of(layer: SparseLayer) -> nn.Module:
    """An uninitialised torch module of the geometry of a sparse layer."""
    for twin in TWINS.values():
        if isinstance(layer, twin.bayesian | twin.deterministic):
            return twin.dense(layer)
    raise InvalidValue("layer", type(layer).__name__, "has no torch module", "add a row to TWINS")


def bayesian_twin_of(layer: SparseLayer) -> type[BayesianLayer]:
    """The Bayesian class of the geometry of a deterministic sparse layer."""
    for twin in TWINS.values():
        if isinstance(layer, twin.deterministic):
            return twin.bayesian
    raise InvalidValue("layer", type(layer).__name__, "has no Bayesian form", "add a row to TWINS")


def require_linear(name: str, module: nn.Module) -> None:
    """Raise unless a module of a registered class computes what its twin would.

    Asked with weights of its own, because those of the module may hide a mistake: zeros, or a
    square matrix that is its own transpose. Neither the module nor torch's generator is touched.

    Args:
        name: Of the module, for the error.
        module: One that has a twin.
    """
    kind, twin = class_with_twin(module), twin_of(module)
    if kind in TWINS or twin is None:
        return
    weight = parameter_of(module)
    found = _difference(module, weight, twin) if weight.dim() == 2 else "has not two axes"
    if found is not None:
        axes = "[in, out]" if twin.transposed else "[out, in]"
        raise InvalidValue(
            f"layer {name or 'root'}",
            type(module).__name__,
            f"is registered as a linear map of a weight {axes}, which {found}",
            "give gossamer.register_layer another transposed=, or leave it out with exclude=",
        )


def _row(kind: type) -> Twin | None:
    if kind in TWINS:
        return TWINS[kind]
    if kind in _REGISTERED:
        return _REGISTERED[kind]
    return _OF_PACKAGES.get(f"{kind.__module__}.{kind.__qualname__}")


def _computes_like(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a subclass or changed instance still computes what ``kind`` does, no more."""
    methods = ("forward", "_conv_forward")
    changed = any(getattr(type(module), m, None) is not getattr(kind, m, None) for m in methods)
    replaced = any(m in module.__dict__ for m in methods)
    extra = set(module._parameters) - {"weight", "bias"}
    return not (changed or replaced or extra or module._buffers or module._modules)


def _difference(module: nn.Module, weight: Tensor, twin: Twin) -> str | None:
    """What is wrong with a module that has random weights in place of its own, in either mode."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    own = {"weight": normal(*weight.shape)}
    matrix = own["weight"].t() if twin.transposed else own["weight"]
    has_bias = module._parameters.get("bias") is not None
    if has_bias:
        own["bias"] = normal(matrix.shape[0])
    x = normal(2, 3, matrix.shape[1])
    wanted = nn.functional.linear(x, matrix, own.get("bias"))
    for training in (False, True):
        probe = type(module).__new__(type(module))
        probe.__dict__.update(module.__dict__)
        parameters = {n: own.get(n) for n in module._parameters}
        held = {n: None if t is None else nn.Parameter(t, False) for n, t in parameters.items()}
        probe.__dict__.update(_parameters=held, training=training)
        try:
            with torch.no_grad():
                rows = probe.forward(x[0])
        except Exception as error:  # whatever a foreign forward raises
            return f"raises {type(error).__name__} ({error}) on an input {list(x[0].shape)}"
        if not _agrees(rows, wanted[0]):
            return "gives other outputs on random weights"
        try:
            with torch.no_grad():
                stacked = probe.forward(x)
        except Exception:  # rows only: the sparse layer takes more than the module did
            continue
        if not _agrees(stacked, wanted):
            return "is not that of the last axis of an input with three axes"
    return None


def _agrees(found: object, wanted: Tensor) -> bool:
    return (
        isinstance(found, Tensor)
        and found.shape == wanted.shape
        and torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)
    )
