"""Which modules of a torch model can become sparse layers, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from gossamer.errors import InvalidValue
from gossamer.nn.base import SparseLayer
from gossamer.nn.embedding import why_not
from gossamer.nn.split import Split
from gossamer.nn.splitting import join_unconverted, may_be_split, split_class_of, split_modules
from gossamer.nn.twins import class_with_twin, parameter_of, twin_of

Pattern = str | type[nn.Module]

LEFT_OUT = "left out by include or exclude"

ON_REQUEST = "rows are looked up: a table is converted only where include= names it"


@dataclass(frozen=True, eq=False)
class Candidate:
    """One distinct weight that will be converted.

    Attributes:
        names: Every dotted name under which a module with this weight stands in the model.
        modules: The distinct modules, tables last: a map decides about scales.
        wholes: The split modules that it is a matrix of, with their names.
    """

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    wholes: tuple[tuple[str, nn.Module], ...] = ()

    @property
    def is_shared(self) -> bool:
        """Used under two names, or by two modules."""
        return len(self.names) > 1

    def matches(self, patterns: Iterable[Pattern]) -> bool:
        """Whether a pattern fits it, or the module that it is a matrix of."""
        own = [(name, module) for name in self.names for module in self.modules]
        return any(matches(name, module, patterns) for name, module in (*own, *self.wholes))


def find_candidates(
    model: nn.Module, include: Iterable[Pattern] | None = None, exclude: Iterable[Pattern] = ()
) -> list[Candidate]:
    """The convertible weights of ``model``, each once, in the order of registration.

    Tables, and what is tied to one, are among them only where ``include`` names them.
    """
    wanted = None if include is None else as_patterns(include)
    unwanted = as_patterns(exclude)
    names: dict[int, list[str]] = {}
    modules: dict[int, dict[int, nn.Module]] = {}
    wholes: dict[int, list[tuple[str, nn.Module]]] = {}
    refused = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if class_with_twin(module) is None or why_left(model, module) is not None:
            continue
        key = id(module.weight)
        names.setdefault(key, []).append(name)
        modules.setdefault(key, {})[id(module)] = module
        around = _whole_of(model, name)
        wholes.setdefault(key, []).extend(around)
        here = Candidate((name,), (module,), around)
        asked = not _is_table(module) if wanted is None else here.matches(wanted)
        if here.matches(unwanted) or not asked:
            refused.add(key)
    # A shared weight is converted in all its places or in none: half would end the sharing.
    return [
        Candidate(
            tuple(names[k]), tuple(sorted(modules[k].values(), key=_is_table)), tuple(wholes[k])
        )
        for k in names
        if k not in refused
    ]


def convertible_weights(model: nn.Module) -> list[Tensor]:
    """Every weight that a conversion of ``model`` would make sparse, once.

    They share their memory with the model, whatever their shape.
    """
    split, wholes = split_modules(model)
    try:
        return [parameter_of(candidate.modules[0]) for candidate in find_candidates(split)]
    finally:
        join_unconverted(split, wholes)


def _whole_of(model: nn.Module, name: str) -> tuple[tuple[str, nn.Module], ...]:
    """The split module that has ``name`` for one of its matrices, if there is one."""
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    return ((parent_name, parent),) if isinstance(parent, Split) and child in parent.parts else ()


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
    elif split_class_of(module) is not None:
        reason = None  # its matrices can, one by one
    elif may_be_split(module):
        reason = f"{kind} computes in a way of its own; it stays deterministic"
    elif class_with_twin(module) is None:
        reason = f"{kind} has no sparse layer; it stays deterministic"
    elif weight is None:
        reason = "its weight is computed from others, as pruning does"
    elif nn.parameter.is_lazy(weight):
        reason = "is not initialised yet; run one forward pass first"
    elif twin is None:
        reason = f"{kind} computes in a way of its own; it stays deterministic"
    elif weight.numel() == 0:
        reason = "has no weights"
    elif not _may_share(_owners(model, weight)):
        owners = [name for name, m in model.named_modules() if _owns(m, weight)]
        reason = "its weight is tied to a module of another kind: " + ", ".join(owners)
        if any(getattr(m, "padding_idx", None) is not None for m in _owners(model, weight)):
            reason += "; a table with a padding row has fewer weights than what it is tied to"
    else:
        # What is tied to a table stays with it.
        reason = next((why for m in _owners(model, weight) if (why := why_not(m))), None)
    return reason


def require_tables(
    model: nn.Module, include: Iterable[Pattern], exclude: Iterable[Pattern]
) -> None:
    """Raise where a table is asked for that cannot be converted.

    Other modules may be named that stay as they are, since patterns are wide; a table is only ever
    converted because somebody asked for it.
    """
    for name, module in model.named_modules(remove_duplicate=False):
        if not _is_table(module) or matches(name, module, exclude):
            continue
        reason = why_left(model, module) if matches(name, module, include) else None
        if reason is not None:
            raise InvalidValue(
                f"include: layer {name or 'root'}",
                type(module).__name__,
                f"cannot be converted: {reason}",
                "leave it out with exclude=, or change the model",
            )


def left_modules(model: nn.Module) -> list[tuple[str, str, int, str]]:
    """Modules with matrices of their own that are not sparse: ``(name, type, weights, reason)``."""
    rows = []
    for name, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        if is_parametrized(module):
            own += list(module.parametrizations.parameters())
        if isinstance(module, SparseLayer | Split | ParametrizationList) or not any(
            nn.parameter.is_lazy(p) or p.dim() > 1 for p in own
        ):
            continue
        reason = why_left(model, module) or _why_unasked(model, module)
        size = sum(0 if nn.parameter.is_lazy(p) else p.numel() for p in own)
        rows.append((name, type(module).__name__, size, reason))
    return rows


def reader_of(model: nn.Module, name: str) -> str | None:
    """How a parent that reads ``layer.weight`` without calling the layer uses it, or ``None``."""
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name) if name else None
    if reads_weight(model, name):
        kind = parent.kind if isinstance(parent, Split) else type(parent)
        return f"{kind.__name__} reads its dense weight: right, but slower"
    above = model.get_submodule(parent_name.rpartition(".")[0]) if parent_name else None
    is_inside = isinstance(parent, nn.TransformerEncoderLayer) and child in ("linear1", "linear2")
    if is_inside or (isinstance(parent, Split) and isinstance(above, nn.TransformerEncoderLayer)):
        return "TransformerEncoderLayer's fast path in eval() reads its dense weight"
    return None


def reads_weight(model: nn.Module, name: str) -> bool:
    """Whether the parent of a layer never calls it, in whatever mode: hooks would not run."""
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name) if name else None
    if isinstance(parent, Split):
        return parent.reads(child)
    return isinstance(parent, nn.MultiheadAttention) and child == "out_proj"


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)


def _why_unasked(model: nn.Module, module: nn.Module) -> str:
    """Why a module that could have been converted was not."""
    weight = module._parameters.get("weight")
    owners = [] if weight is None else [n for n, m in model.named_modules() if _owns(m, weight)]
    if not any(_is_table(model.get_submodule(name)) for name in owners):
        return LEFT_OUT
    return ON_REQUEST if len(owners) == 1 else f"{ON_REQUEST}, and all of {', '.join(owners)}"


def _may_share(owners: list[nn.Module]) -> bool:
    """Whether the modules of one weight can become layers of one weight.

    Those of one kind can; so can a linear map and a table, the head and the words of a language
    model, where both mean the same weight: no axes the other way round, no padding row.
    """
    twins = {twin_of(module) for module in owners}
    if None in twins or len(twins) == 1:
        return None not in twins and len({_padding(module) for module in owners}) == 1
    kinds = {class_with_twin(module) for module in owners}
    plain = not any(twin.transposed for twin in twins if twin is not None)
    return plain and kinds == {nn.Linear, nn.Embedding} and {*map(_padding, owners)} == {None}


def _padding(module: nn.Module) -> int | None:
    return module.padding_idx if isinstance(module, nn.Embedding) else None


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
    kind = module.kind if isinstance(module, Split) else type(module)
    return any(
        fnmatchcase(name, p) if isinstance(p, str) else issubclass(kind, p) for p in patterns
    )
