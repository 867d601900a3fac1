"""Which modules of a torch model can become sparse layers, and why the others cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from gossamer.nn import conv, linear
from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
from gossamer.nn.conv import conv_layout
from gossamer.nn.linear import linear_layout
from gossamer.ops import Layout

Pattern = str | type[nn.Module]


@dataclass(frozen=True)
class Twin:
    """The sparse classes that stand for a torch class."""

    bayesian: type[BayesianLayer]
    deterministic: type[DeterministicLayer]
    layout: Callable[..., Layout]


TWINS: dict[type[nn.Module], Twin] = {
    nn.Linear: Twin(linear.BayesianLinear, linear.SparseLinear, linear_layout),
    nn.Conv1d: Twin(conv.BayesianConv1d, conv.SparseConv1d, conv_layout),
    nn.Conv2d: Twin(conv.BayesianConv2d, conv.SparseConv2d, conv_layout),
    nn.Conv3d: Twin(conv.BayesianConv3d, conv.SparseConv3d, conv_layout),
    nn.ConvTranspose1d: Twin(conv.BayesianConvTranspose1d, conv.SparseConvTranspose1d, conv_layout),
    nn.ConvTranspose2d: Twin(conv.BayesianConvTranspose2d, conv.SparseConvTranspose2d, conv_layout),
    nn.ConvTranspose3d: Twin(conv.BayesianConvTranspose3d, conv.SparseConvTranspose3d, conv_layout),
}


def twin_of(module: nn.Module) -> Twin | None:
    """The twin of a module, also of a subclass that keeps torch's forward."""
    for kind, twin in TWINS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return twin
    return None


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
    include = None if include is None else list(include)
    exclude = list(exclude)
    names: dict[int, list[str]] = {}
    modules: dict[int, dict[int, nn.Module]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if why_left(model, module) is not None:
            continue
        if include is not None and not _matches(name, module, include):
            continue
        if _matches(name, module, exclude):
            continue
        key = id(module.weight)
        names.setdefault(key, []).append(name)
        modules.setdefault(key, {})[id(module)] = module
    return [Candidate(tuple(names[k]), tuple(modules[k].values())) for k in names]


def why_left(model: nn.Module, module: nn.Module) -> str | None:
    """Why a module of ``model`` cannot be converted, or ``None`` if it can."""
    if isinstance(module, SparseLayer):
        return "is sparse already"
    twin = twin_of(module)
    if twin is None:
        return f"{type(module).__name__} has no sparse layer; it stays deterministic"
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed from others (a parametrization)"
    if nn.parameter.is_lazy(weight):
        return "is not initialised yet; run one forward pass first"
    kinds = {twin_of(other) for other in _owners(model, weight)}
    if kinds != {twin}:
        owners = [n for n, m in model.named_modules() if _owns(m, weight)]
        return "its weight is tied to a module of another kind: " + ", ".join(owners)
    return None


def left_modules(model: nn.Module) -> list[tuple[str, str, int, str]]:
    """Modules with matrices of their own that are not sparse: ``(name, type, weights, reason)``."""
    rows = []
    for name, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        if isinstance(module, SparseLayer) or not any(
            nn.parameter.is_lazy(p) or p.dim() > 1 for p in own
        ):
            continue
        reason = why_left(model, module) or "left out by include or exclude"
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


def _owns(module: nn.Module, weight: nn.Parameter) -> bool:
    return any(p is weight for p in module._parameters.values())


def _owners(model: nn.Module, weight: nn.Parameter) -> list[nn.Module]:
    return [m for m in model.modules() if _owns(m, weight)]


def _matches(name: str, module: nn.Module, patterns: Iterable[Pattern]) -> bool:
    """Whether a dotted name (shell-style pattern) or a module class is listed."""
    return any(
        fnmatchcase(name, p) if isinstance(p, str) else isinstance(module, p) for p in patterns
    )
