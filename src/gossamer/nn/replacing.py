"""Putting sparse layers in the place of torch modules: on which support, with which values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.core.allocation import LayerSize, Sparsity, allocate
from gossamer.core.naming import by_name
from gossamer.core.support import Support
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.nn.adjacent import link_adjacent
from gossamer.nn.base import SparseLayer
from gossamer.nn.batchnorm import use_native_batchnorm
from gossamer.nn.candidates import (
    Candidate,
    Pattern,
    find_candidates,
    matches,
    require_tables,
)
from gossamer.nn.hooks import move_hooks, share_draws
from gossamer.nn.measure import measure_at_first_use
from gossamer.nn.origin import Origin
from gossamer.nn.partial import none_to_convert, require_matches, warn_of_partial
from gossamer.nn.split import put
from gossamer.nn.splitting import join_unconverted, split_modules
from gossamer.nn.twins import Twin, parameter_of, require_linear, twin_of
from gossamer.nn.walk import sparse_layers
from gossamer.ops import MEASURE, Layout, choose

SupportRule = Literal["random", "magnitude"]
Builder = Callable[[nn.Module, Support, Tensor, Mapping[str, Any], dict[str, Any]], SparseLayer]
"""Makes a layer: of a module, its support, the values on it, its settings and its options.

Among the settings is ``scale``, the layout that decides how wide the prior of the weight is.
"""


def layer_size(name: str, layout: Layout) -> LayerSize:
    """What allocation needs to know of a layer."""
    return LayerSize(name, layout.fan_in, layout.fan_out, layout.kernel)


@dataclass(frozen=True)
class Choice:
    """What to keep and where; the arguments that both conversions share.

    ``settings`` are those of the builder, by their names as arguments; ``check`` raises where
    those of one weight, given its layouts, are wrong, before anything is replaced.
    """

    sparsity: Sparsity
    distribution: str
    support: SupportRule
    rescale: bool
    include: Iterable[Pattern] | None
    exclude: Iterable[Pattern]
    backend: str
    noisy: bool
    generator: torch.Generator | None
    shared: Iterable[Pattern] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[..., None] | None = None

    def settings_of(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The settings of every layer, each for all or by patterns of names."""
        found = {key: by_name(key, given, names) for key, given in self.settings.items()}
        return [{key: found[key][place] for key in found} for place in range(len(names))]

    def shares(self, candidate: Candidate) -> bool:
        """Whether several uses of a weight in one forward pass must see one θ."""
        return candidate.is_shared or candidate.matches(self.shared)

    def select(self, weight: Tensor, nnz: int) -> tuple[Support, Tensor]:
        """The support of one weight and the values on it, on the weight's device."""
        if nnz == weight.numel():
            return Support.full(weight.shape), weight.flatten().clone()
        if self.support == "magnitude":
            kept = Support.largest(weight.abs(), nnz)
        else:
            kept = Support.random(weight.shape, nnz, self.generator)
        assert kept.indices is not None
        kept = Support(kept.shape, kept.indices.to(weight.device))
        values = weight.flatten()[kept.positions()]
        if self.support == "random" and self.rescale:
            values = values / sqrt(kept.density)
        return kept, values


def convert(model: nn.Module, build: Builder, choice: Choice, *, inplace: bool) -> nn.Module:
    """``model`` with sparse layers in it; those that it has already stay as they are."""
    if choice.support not in ("random", "magnitude"):
        raise UnknownName("support", str(choice.support), ("random", "magnitude"))
    if choice.include is None and sparse_layers(model):
        first = next(iter(sparse_layers(model)))
        raise InvalidValue(
            "model",
            first or "root",
            "is sparse already",
            "convert the torch model, or name in include= what shall be converted beside it",
        )
    model, wholes = split_modules(model if inplace else copy.deepcopy(model))
    try:
        model = _convert_layers(model, build, choice)
    finally:
        model = join_unconverted(model, wholes)
    if choice.backend != "masked":
        use_native_batchnorm(model)
    link_adjacent(model)  # whatever the backends: a run may go on with others
    share_draws(model)
    warn_of_partial(model, choice.exclude)
    return model


def _convert_layers(model: nn.Module, build: Builder, choice: Choice) -> nn.Module:
    """``model``, whose modules are split, with its convertible layers replaced."""
    named = {"include": choice.include or (), "exclude": choice.exclude, "shared": choice.shared}
    for key, patterns in named.items():
        require_matches(model, key, patterns)
    _require_dense(model, choice)
    require_tables(model, choice.include or (), choice.exclude)
    candidates = find_candidates(model, choice.include, choice.exclude)
    if not candidates:
        raise none_to_convert(model)
    for candidate in candidates:
        for module in candidate.modules:
            require_linear(candidate.names[0], module)
    sizes = [layer_size(c.names[0] or "root", _layout(c.modules[0])) for c in candidates]
    counts = allocate(sizes, choice.sparsity, choice.distribution)
    settings = choice.settings_of([size.name for size in sizes])
    if choice.check is not None:
        for candidate, own in zip(candidates, settings, strict=True):
            choice.check([_layout(module) for module in candidate.modules], **own)
    for candidate, nnz, own in zip(candidates, counts, settings, strict=True):
        model = _replace(model, candidate, nnz, build, choice, own)
    return model


def _require_dense(model: nn.Module, choice: Choice) -> None:
    """Raise where a layer is asked for by name that an earlier conversion made."""
    for name, layer in sparse_layers(model).items():
        wanted = choice.include is not None and matches(name, layer, choice.include)
        if wanted and not matches(name, layer, choice.exclude):
            raise InvalidValue(
                "include",
                name or "root",
                "is sparse already",
                "name the others only; gossamer.to_deterministic is the way back",
            )


def _require_values(name: str, weight: Tensor) -> None:
    try:
        is_finite = bool(torch.isfinite(weight).all())
    except RuntimeError as error:  # asked of a tensor without memory
        raise InvalidValue(
            "model",
            name,
            f"has a weight on the device {weight.device} without values to keep",
            "give it memory first: model.to_empty(device='cpu'), then weights",
        ) from error
    if not is_finite:
        raise InvalidData(name, None, "has weights that are NaN or infinite")


def _replace(
    model: nn.Module,
    candidate: Candidate,
    nnz: int,
    build: Builder,
    choice: Choice,
    settings: Mapping[str, Any],
) -> nn.Module:
    """Put the sparse layers of one weight in the place of its modules.

    Modules that shared it share the new parameters.
    """
    first = candidate.modules[0]
    weight, trained = own_twin(first).weight(first), parameter_of(first).requires_grad
    _require_values(candidate.names[0] or "root", weight)
    kept, values = choice.select(weight.detach(), nnz)
    shared: dict[str, nn.Parameter] = {}
    # One weight, one belief: beside a linear map a table would have a wider one.
    settings = {**settings, "scale": _layout(first)}
    for module in candidate.modules:
        layout = _layout(module)
        backend = choose(
            choice.backend, layout, nnz, weight.device, weight.dtype, noisy=choice.noisy
        )
        options = {"backend": backend, "draws_weights": choice.shares(candidate)}
        layer = build(module, kept, values, settings, options)
        layer.take_rest(module)
        for vector in (*layer.vectors, *layer.factors):
            parameter = shared.setdefault(vector.name, vector.parameter)
            if parameter.shape != vector.parameter.shape:
                raise InvalidValue(
                    "absent_variance",
                    candidate.names,
                    "cannot be shared by layers with different numbers of channels",
                    "leave them out with exclude",
                )
            layer.register_parameter(vector.name, parameter)
            parameter.requires_grad_(trained)
        layer.train(module.training)
        layer.origin = Origin.of(module, transposed=own_twin(module).transposed)
        if layer.origin is not None:
            layer.origin.lend(layer)
        move_hooks(module, layer)
        if choice.backend == MEASURE and not layout.is_lookup:
            measure_at_first_use(layer)
        for name, other in list(model.named_modules(remove_duplicate=False)):
            if other is module:
                model = put(model, name, layer)
    return model


def own_twin(module: nn.Module) -> Twin:
    """The twin of a module that has one."""
    twin = twin_of(module)
    assert twin is not None
    return twin


def _layout(module: nn.Module) -> Layout:
    return own_twin(module).layout(module)


def bias_of(module: nn.Module) -> nn.Parameter | None:
    """The bias of a torch module, if it has one."""
    return module._parameters.get("bias")
