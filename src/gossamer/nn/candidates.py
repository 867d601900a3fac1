"""Which modules of a torch model can become sparse layers, and why the others cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from gossamer.errors import InvalidValue
from gossamer.nn import conv, linear
from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
from gossamer.nn.conv import conv_layout, dense_conv
from gossamer.nn.linear import dense_linear, linear_layout
from gossamer.ops import Layout

Pattern = str | type[nn.Module]

LEFT_OUT = "left out by include or exclude"


@dataclass(frozen=True)
class Twin:
    """The sparse classes that stand for a torch class, and the ways between them.

    Attributes:
        bayesian: With a Gaussian per kept weight.
        deterministic: With one value per kept weight.
        layout: From a torch module to its layout.
        dense: From a sparse layer to an uninitialised torch module of its geometry.
    """

    bayesian: type[BayesianLayer]
    deterministic: type[DeterministicLayer]
    layout: Callable[..., Layout]
    dense: Callable[..., nn.Module]


TWINS: dict[type[nn.Module], Twin] = {
    nn.Linear: Twin(linear.BayesianLinear, linear.SparseLinear, linear_layout, dense_linear),
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
}


def twin_of(module: nn.Module) -> Twin | None:
    """The twin of a module, also of a subclass that keeps torch's forward."""
    for kind in type(module).__mro__:  # the nearest class that has a row
        if kind in TWINS:
            return TWINS[kind] if _computes_like(module, kind) else None
    return None


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


def _computes_like(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a subclass or changed instance still computes what ``kind`` does, no more."""
    methods = ("forward", "_conv_forward")
    changed = any(getattr(type(module), m, None) is not getattr(kind, m, None) for m in methods)
    replaced = any(m in module.__dict__ for m in methods)
    extra = set(module._parameters) - {"weight", "bias"}
    return not (changed or replaced or extra or module._buffers or module._modules)


@dataclass(frozen=True, eq=False)
class Candidate:
    """One distinct weight that will be converted.

    Attributes:
        names: Every dotted name under which a module with this weight stands in the model.
        modules: The distinct modules.
    """

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]

    @property
    def is_shared(self) -> bool:
        """Used under two names, or by two modules."""
        return len(self.names) > 1


def find_candidates(
    model: nn.Module, include: Iterable[Pattern] | None = None, exclude: Iterable[Pattern] = ()
) -> list[Candidate]:
    """The convertible weights of ``model``, each once, in the order of registration."""
    wanted = None if include is None else as_patterns(include)
    unwanted = as_patterns(exclude)
    names: dict[int, list[str]] = {}
    modules: dict[int, dict[int, nn.Module]] = {}
    refused = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if why_left(model, module) is not None:
            continue
        key = id(module.weight)
        names.setdefault(key, []).append(name)
        modules.setdefault(key, {})[id(module)] = module
        if matches(name, module, unwanted) or not (wanted is None or matches(name, module, wanted)):
            refused.add(key)
    # A shared weight is converted in all its places or in none: half would end the sharing.
    return [
        Candidate(tuple(names[k]), tuple(modules[k].values())) for k in names if k not in refused
    ]


def why_left(model: nn.Module, module: nn.Module) -> str | None:
    """Why a module of ``model`` cannot be converted, or ``None`` if it can."""
    kind = type(module).__name__
    twin = twin_of(module)
    weight = module._parameters.get("weight")
    reason = None
    if isinstance(module, SparseLayer):
        reason = "is sparse already"
    elif is_parametrized(module):
        reason = "its weight or bias is computed from others (a parametrization)"
    elif not isinstance(module, tuple(TWINS)):
        reason = f"{kind} has no sparse layer; it stays deterministic"
    elif weight is None:
        reason = "its weight is computed from others, as pruning does"
    elif nn.parameter.is_lazy(weight):
        reason = "is not initialised yet; run one forward pass first"
    elif twin is None:
        reason = f"{kind} computes in a way of its own; it stays deterministic"
    elif weight.numel() == 0:
        reason = "has no weights"
    elif {twin_of(other) for other in _owners(model, weight)} != {twin}:
        owners = [name for name, m in model.named_modules() if _owns(m, weight)]
        reason = "its weight is tied to a module of another kind: " + ", ".join(owners)
    return reason


def left_modules(model: nn.Module) -> list[tuple[str, str, int, str]]:
    """Modules with matrices of their own that are not sparse: ``(name, type, weights, reason)``."""
    rows = []
    for name, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        if is_parametrized(module):
            own += list(module.parametrizations.parameters())
        if isinstance(module, SparseLayer | ParametrizationList) or not any(
            nn.parameter.is_lazy(p) or p.dim() > 1 for p in own
        ):
            continue
        reason = why_left(model, module) or LEFT_OUT
        size = sum(0 if nn.parameter.is_lazy(p) else p.numel() for p in own)
        rows.append((name, type(module).__name__, size, reason))
    return rows


def reader_of(model: nn.Module, name: str) -> str | None:
    """How a parent that reads ``layer.weight`` without calling the layer uses it, or ``None``."""
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name) if name else None
    if isinstance(parent, nn.MultiheadAttention) and child == "out_proj":
        return "MultiheadAttention reads its dense weight: right, but slower"
    if isinstance(parent, nn.TransformerEncoderLayer) and child in ("linear1", "linear2"):
        return "TransformerEncoderLayer's fast path in eval() reads its dense weight"
    return None


def reads_weight(model: nn.Module, name: str) -> bool:
    """Whether the parent of a layer never calls it, in whatever mode: hooks would not run."""
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name) if name else None
    return isinstance(parent, nn.MultiheadAttention) and child == "out_proj"


def _owns(module: nn.Module, weight: nn.Parameter) -> bool:
    return any(p is weight for p in module._parameters.values())


def _owners(model: nn.Module, weight: nn.Parameter) -> list[nn.Module]:
    return [m for m in model.modules() if _owns(m, weight)]


def as_patterns(patterns: Iterable[Pattern] | Pattern) -> list[Pattern]:
    """One pattern may be given without a list around it."""
    if isinstance(patterns, str | type):
        return [patterns]
    return list(patterns)


def matches(name: str, module: nn.Module, patterns: Iterable[Pattern]) -> bool:
    """Whether a dotted name (shell-style pattern) or a module class is listed."""
    return any(
        fnmatchcase(name, p) if isinstance(p, str) else isinstance(module, p) for p in patterns
    )
