"""Copies of a model that move with it: averages of its weights over steps (EMA, SWA)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gossamer.errors import InvalidValue
from gossamer.nn.walk import Weight, weights_of
from gossamer.nn.watch import copies_of

_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module"}


class Follower:
    """One copy of a model, with the weight that stands for each of the model's.

    Args:
        model: The network in training.
        copy: A ``torch.optim.swa_utils.AveragedModel`` of it, or any module with the same layers
            under the same names, such as a deep copy.

    Raises:
        InvalidValue: The copy is of another model, or its support is not the model's.
    """

    def __init__(self, model: nn.Module, copy: nn.Module) -> None:
        if isinstance(copy, AveragedModel) and copy.use_buffers:
            raise InvalidValue(
                "follow",
                "AveragedModel(use_buffers=True)",
                "averages the positions of weights as if they were numbers",
                "leave use_buffers out; torch.optim.swa_utils.update_bn sets the statistics of "
                "BatchNorm",
            )
        self.copy = copy
        self._title = type(copy).__name__
        mine = weights_of(_body(model))
        # By first names: layers that share a weight are found together, as in the model.
        theirs = {weight.name: weight for weight in weights_of(_body(copy))}
        for weight in mine:
            own = theirs.get(weight.name)
            if own is None or not _is_alike(weight, own):
                raise InvalidValue(
                    "follow",
                    self._title,
                    f"has no layer like {weight.title} of the model under its name",
                    "give AveragedModel(model), or a deep copy of the model",
                )
            if own.values is weight.values:
                raise InvalidValue(
                    "follow", self._title, "is the model itself", "give a copy of it"
                )
        self._twins = {id(weight.values): theirs[weight.name] for weight in mine}
        self.require_same_support(mine)

    def twin_of(self, weight: Weight) -> Weight:
        """The weight of the copy that stands for one of the model's."""
        return self._twins[id(weight.values)]

    def layers(self) -> set[int]:
        """Identities of its sparse layers."""
        return {id(layer) for twin in self._twins.values() for layer in twin.layers}

    def require_same_support(self, weights: Iterable[Weight]) -> None:
        """Raise where a layer of the copy has not the model's support."""
        for weight in weights:
            here, there = weight.layer.indices, self.twin_of(weight).layer.indices
            same = here is there is None or (
                here is not None
                and there is not None
                and here.shape == there.shape
                and bool(torch.equal(here, there.to(here.device)))
            )
            if not same:
                raise InvalidValue(
                    f"follow: layer {weight.title} of {self._title}",
                    None,
                    "keeps other weights than the model",
                    "make the copy after the model has its support, and load both states or none",
                )


def require_followed(weights: Iterable[Weight], followers: Iterable[Follower]) -> None:
    """Raise where somebody averages a model whose support is about to move, and is not told of it.

    Such a copy shows itself by its index buffers: whoever keeps an average writes the model's into
    them (``AveragedModel.update_parameters``). Copies that were left alone, loaded or trained by
    themselves are none.
    """
    weights = list(weights)
    known = {id(layer) for weight in weights for layer in weight.layers}
    known |= {identity for follower in followers for identity in follower.layers()}
    for weight in weights:
        strangers = [other for other in copies_of(weight.layer) if id(other) not in known]
        if any(other.support_was_written for other in strangers):
            raise InvalidValue(
                f"layer {weight.title}",
                None,
                "has a copy that somebody keeps equal to the model or averages with it "
                "(AveragedModel, EMA): a swap would give its old values new positions",
                "tell Subspace of it: follow=[averaged]",
            )


def _is_alike(one: Weight, two: Weight) -> bool:
    return (
        type(one.layer) is type(two.layer)
        and one.layer.layout.shape == two.layer.layout.shape
        and len(one.layers) == len(two.layers)
    )


def _body(module: nn.Module) -> nn.Module:
    """The network inside of wrappers, whose names have no prefix."""
    while True:
        if isinstance(module, AveragedModel):
            inner = module.module
        elif type(module).__name__ in _WRAPPERS:
            inner = module.get_submodule(_WRAPPERS[type(module).__name__])
        elif "_orig_mod" in module._modules:  # torch.compile
            inner = module.get_submodule("_orig_mod")
        else:
            return module
        module = inner
