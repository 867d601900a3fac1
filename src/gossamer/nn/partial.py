"""What a conversion leaves behind: names that fit nothing, and networks that hardly convert."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import is_parametrized

from gossamer.errors import InvalidValue
from gossamer.nn.candidates import LEFT_OUT, Pattern, as_patterns, left_modules, matches
from gossamer.nn.split import Split
from gossamer.nn.walk import weights_of

LEAST_SHARE = 0.5
"""Where less of the linear maps of a network converts, a warning says so."""

_NAMED = 4
"""So many kinds of modules are named in a message."""

# Their matrices are tables or factors: nothing is multiplied by them as a whole.
_NO_MAPS = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)


def require_matches(model: nn.Module, key: str, patterns: Iterable[Pattern] | Pattern) -> None:
    """Raise where a name pattern of ``include`` or ``exclude`` fits no module with weights.

    Classes may be listed for many networks, whether or not one has such a module.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    weighty = [n for n, m in model.named_modules(remove_duplicate=False) if _has_weights(m)]
    for pattern in as_patterns(patterns):
        if not isinstance(pattern, str) or any(fnmatchcase(name, pattern) for name in weighty):
            continue
        if any(fnmatchcase(name, pattern) for name in names):
            hint = f"for what is inside of it write '{pattern}.*'"
        else:
            near = get_close_matches(pattern, weighty, n=3, cutoff=0.4) or weighty[:3]
            hint = "names are those of model.named_modules(), such as " + ", ".join(map(repr, near))
        raise InvalidValue(
            key, repr(pattern), "matches no module that has weights of its own", hint
        )


def none_to_convert(model: nn.Module) -> InvalidValue:
    """The error of a network without a convertible layer: what there is, and why it was left."""
    found = _kinds(left_modules(model))
    return InvalidValue(
        "model",
        type(model).__name__,
        "has no layer to convert" + (f"; found {found}" if found else ""),
        "it needs a linear or convolution layer that include and exclude let through",
    )


def warn_of_partial(model: nn.Module, exclude: Iterable[Pattern]) -> None:
    """Warn where most of the linear maps of a converted model stayed as they were.

    What the caller left out, embeddings and what is tied to them, and normalisation do not count.

    Args:
        model: Converted.
        exclude: What the caller does not want to be converted, whether or not it could be.
    """
    tables = {id(p) for m in model.modules() if isinstance(m, _NO_MAPS) for p in m.parameters()}
    rows, left, seen = [], 0, set(tables)
    for name, kind, _, reason in left_modules(model):
        own = [p for p in _own_parameters(model.get_submodule(name)) if id(p) not in seen]
        seen |= {id(p) for p in own}
        size = sum(p.numel() for p in own if not nn.parameter.is_lazy(p) and _is_map(p))
        if size and reason != LEFT_OUT and not matches(name, model.get_submodule(name), exclude):
            rows.append((name, kind, size, reason))
            left += size
    converted = sum(weight.layer.layout.numel for weight in weights_of(model))
    share = converted / (converted + left)
    if share < LEAST_SHARE:
        warnings.warn(
            f"only {converted} of {converted + left} weights of linear maps ({share:.1%}) of "
            f"{type(model).__name__} were converted; left: {_kinds(rows)}. If that is as it "
            "should be, name them in exclude=; gossamer.summary lists them all",
            stacklevel=4,
        )


def _kinds(rows: Iterable[tuple[str, str, int, str]]) -> str:
    """The largest kinds of modules, with weights, a name and the reason of the first."""
    sizes: dict[str, int] = {}
    first: dict[str, tuple[str, str]] = {}
    for name, kind, size, reason in rows:
        sizes[kind] = sizes.get(kind, 0) + size
        first.setdefault(kind, (name or "root", reason))
    largest = sorted(sizes, key=lambda kind: -sizes[kind])
    told = [f"{k} ({sizes[k]} weights, {first[k][0]}: {first[k][1]})" for k in largest[:_NAMED]]
    return ", ".join(told) + (" and others" if len(largest) > _NAMED else "")


def _has_weights(module: nn.Module) -> bool:
    own = any(p is not None for p in module._parameters.values())
    return own or is_parametrized(module) or isinstance(module, Split)


def _own_parameters(module: nn.Module) -> list[nn.Parameter]:
    own = [p for p in module._parameters.values() if p is not None]
    if is_parametrized(module):
        parametrizations = module.parametrizations
        assert isinstance(parametrizations, nn.Module)
        own += list(parametrizations.parameters())
    return own


def _is_map(parameter: nn.Parameter) -> bool:
    """At least two axes with something on them: a factor per channel is none."""
    return sum(size > 1 for size in parameter.shape) > 1
