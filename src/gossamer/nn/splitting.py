"""Splitting the modules of a model into layers, and joining them again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from gossamer.nn.attention import SplitAttention
from gossamer.nn.bilinear import SplitBilinear
from gossamer.nn.recurrent import SplitGRU, SplitLSTM, SplitRNN
from gossamer.nn.split import Split, put

SPLITS: tuple[type[Split], ...] = (SplitAttention, SplitLSTM, SplitGRU, SplitRNN, SplitBilinear)
"""What stands for torch's modules with several matrices, or with more than two axes."""


def may_be_split(module: nn.Module) -> bool:
    """Whether a module is of a class that is split, even if it computes in another way."""
    return any(isinstance(module, cls.torch_class) for cls in SPLITS)


def split_class_of(module: nn.Module) -> type[Split] | None:
    """The class that stands for a module, if it can be split."""
    for cls in SPLITS:
        if isinstance(module, cls.torch_class) and not isinstance(module, Split):
            return cls if cls.fits(module) else None
    return None


def split_modules(
    model: nn.Module, only: Collection[str] | None = None
) -> tuple[nn.Module, dict[Split, nn.Module]]:
    """``model`` with its modules split, in place, and what each was.

    Args:
        model: Any module; if it is split itself, the new one is returned.
        only: Names of those to be split; all if ``None``.
    """
    made: dict[int, Split] = {}
    wholes: dict[Split, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        cls = split_class_of(module)
        if cls is None or (cls.reshapes and _is_tied(model, module)):
            continue
        if only is not None and name not in only and id(module) not in made:
            continue
        if id(module) not in made:
            made[id(module)] = cls.of(module)
            wholes[made[id(module)]] = module
        model = put(model, name, made[id(module)])
    return model, wholes


def join_unconverted(model: nn.Module, wholes: Mapping[Split, nn.Module]) -> nn.Module:
    """``model`` with those modules whole again, as they were, none of whose matrices is sparse."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, Split) and module in wholes and not module.has_sparse_parts():
            whole = wholes[module]
            for child in whole._modules:  # one may be sparse now
                whole._modules[child] = module._modules[child]
            model = put(model, name, whole)
    return model


def join_modules(model: nn.Module) -> nn.Module:
    """``model`` with every split module whole again; all their layers must be dense."""
    made: dict[int, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, Split):
            if id(module) not in made:
                made[id(module)] = module.whole()
            model = put(model, name, made[id(module)])
    return model


def _is_tied(model: nn.Module, module: nn.Module) -> bool:
    """Whether another module has one of the parameters too: a new shape would end the sharing."""
    own = {id(p) for p in module._parameters.values() if p is not None}
    others = (m for m in model.modules() if m is not module)
    return any(id(p) in own for m in others for p in m._parameters.values())
