"""From any torch model to a sparse Bayesian or sparse deterministic one, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.core.allocation import LayerSize, Sparsity, allocate
from gossamer.core.priors import Prior
from gossamer.core.support import Support
from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.nn.adjacent import link_adjacent
from gossamer.nn.base import SparseLayer
from gossamer.nn.batchnorm import use_native_batchnorm, use_torch_batchnorm
from gossamer.nn.candidates import (
    Candidate,
    Pattern,
    as_patterns,
    find_candidates,
)
from gossamer.nn.dropout import forget_dropout
from gossamer.nn.measure import forget_measurement, measure_at_first_use
from gossamer.nn.origin import Origin
from gossamer.nn.partial import none_to_convert, require_matches, warn_of_partial
from gossamer.nn.prior import (
    POSTERIOR_SHARE,
    PosteriorStd,
    PriorStd,
    initial_std,
    make_prior,
    resolve_prior_std,
)
from gossamer.nn.split import put
from gossamer.nn.splitting import join_modules, join_unconverted, split_modules
from gossamer.nn.twins import Twin, dense_twin_of, parameter_of, require_linear, twin_of
from gossamer.nn.walk import begin_shared_draws, end_shared_draws, sparse_layers, weights_of
from gossamer.ops import AUTO, MEASURE, Layout, choose

SupportRule = Literal["random", "magnitude"]
AbsentVariance = Literal["none", "linear", "all"]
PriorMean = Literal["zero", "pretrained"]
Builder = Callable[[nn.Module, Support, Tensor, dict[str, Any]], SparseLayer]

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_is_full_backward_hook",
    "_backward_pre_hooks",
)


def to_bayesian(
    model: nn.Module,
    sparsity: Sparsity = 0.0,
    *,
    sparsity_distribution: str = "erk",
    support: SupportRule = "random",
    rescale: bool = True,
    prior_std: PriorStd = "scaled",
    prior: Prior | None = None,
    prior_mean: PriorMean = "zero",
    posterior_std: PosteriorStd = "scaled",
    posterior_share: float = POSTERIOR_SHARE,
    absent_variance: AbsentVariance = "none",
    include: Iterable[Pattern] | None = None,
    exclude: Iterable[Pattern] = (),
    shared: Iterable[Pattern] = (),
    backend: str = AUTO,
    generator: torch.Generator | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Every convertible layer replaced by a Gaussian one on a support of fixed size.

    Means are the model's own weights on the support. With ``support="random"`` they are divided by
    √density of the layer, which keeps the scale of its outputs; ``"magnitude"`` keeps the largest
    weights of a pretrained model as they are.

    Args:
        model: Any module, also a bare ``nn.Linear``. It is copied unless ``inplace``.
        sparsity: Share of all convertible weights removed, in [0, 1); the number kept is exact. Or
            shares by patterns of names, ``{"encoder.*": 0.95, "*": 0.5}``: a layer belongs to the
            first that it matches.
        sparsity_distribution: ``erk``, ``uniform`` or ``uniform_dense_first``.
        support: ``random`` or ``magnitude``.
        rescale: Divide the means of a random support by √density.
        prior_std: Of a Gaussian prior: ``"scaled"`` (see docs/defaults.md), one number for all
            layers, or ``"empirical"``: per layer, that of its weights at any moment.
        prior: Another prior for all weights (``gossamer.core.priors``); ``prior_std`` then only
            sets the scale of the initial posterior.
        prior_mean: Where the prior lies: at ``zero``, or at the ``pretrained`` weights of the
            model, which are kept whole for that (MOPED; take ``support="magnitude"`` with it).
        posterior_std: Initial standard deviation: ``"scaled"``, a number, or ``(mean, spread)`` for
            |N(mean, spread²)| per weight.
        posterior_share: What ``"scaled"`` is of the prior std.
        absent_variance: Which layers give the weights off their support a variance too, of rank one
            (docs/layers.md): ``none``, ``linear`` ones or ``all``; layers that keep all weights
            have none to give it to.
        include: Only modules whose dotted name matches a pattern, or of a listed class; default
            all.
        exclude: Never these.
        shared: Modules that are called several times in one forward pass, such as the cell of a
            recurrent network: all calls of a pass see one draw of their weights. Modules under two
            names, or with one Parameter, need not be listed.
        backend: ``auto`` chooses per layer by a fixed rule (docs/native.md), ``measure`` by timing
            both backends on the first training input; or ``native``, ``masked``.
        generator: Source of the random support; torch's default generator if ``None``.
        inplace: Convert ``model`` itself (a bare layer is returned anew all the same).

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> bnn = to_bayesian(net, sparsity=0.5)
        >>> sum(layer.nnz for layer in sparse_layers(bnn).values())
        80
    """
    if prior is not None and prior_std == "empirical":
        raise InvalidValue(
            "prior_std", prior_std, "is a prior itself, and prior= names another", "give one"
        )
    if prior_mean not in get_args(PriorMean):
        raise UnknownName("prior_mean", str(prior_mean), get_args(PriorMean))
    if prior_mean == "pretrained" and absent_variance != "none":
        raise InvalidValue(
            "absent_variance",
            absent_variance,
            "has a prior about 0, and prior_mean='pretrained' is about the model's weights",
            "give one of them",
        )
    if absent_variance not in get_args(AbsentVariance):
        raise UnknownName("absent_variance", str(absent_variance), get_args(AbsentVariance))

    def build(
        module: nn.Module, kept: Support, values: Tensor, options: dict[str, Any]
    ) -> SparseLayer:
        twin = _twin(module)
        layout = twin.layout(module)
        width = resolve_prior_std(prior_std, layout, kept.density)
        std = initial_std(posterior_std, width, values, generator, posterior_share)
        belief = make_prior(prior_std, width) if prior is None else prior
        layer = twin.bayesian(layout, kept, values, std, _bias(module), prior=belief, **options)
        if kept.nnz < kept.numel and (
            absent_variance == "all" or (absent_variance == "linear" and layout.is_linear)
        ):
            # The scaled std of all inputs: those that a layer does not keep are as many.
            absent_std = resolve_prior_std(prior_std, layout, 1.0)
            layer.spread_absent(posterior_share * absent_std, absent_std)
        if prior_mean == "pretrained":
            layer.centre_prior(twin.weight(module))
        return layer

    converted = _convert(
        model,
        build,
        _Choice(
            sparsity=sparsity,
            distribution=sparsity_distribution,
            support=support,
            rescale=rescale,
            include=None if include is None else as_patterns(include),
            exclude=as_patterns(exclude),
            shared=as_patterns(shared),
            backend=backend,
            noisy=True,
            generator=generator,
        ),
        inplace=inplace,
    )
    if absent_variance != "none" and not any(w.layer.factors for w in weights_of(converted)):
        which = "layer" if absent_variance == "all" else "linear layer"
        raise InvalidValue(
            "absent_variance",
            absent_variance,
            f"found no {which} with absent weights",
            "use 'none'",
        )
    return converted


def to_sparse(
    model: nn.Module,
    sparsity: Sparsity = 0.0,
    *,
    sparsity_distribution: str = "erk",
    support: SupportRule = "random",
    rescale: bool = True,
    include: Iterable[Pattern] | None = None,
    exclude: Iterable[Pattern] = (),
    backend: str = AUTO,
    generator: torch.Generator | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Like ``to_bayesian``, but one value per kept weight (``weight_values``), no distribution."""

    def build(
        module: nn.Module, kept: Support, values: Tensor, options: dict[str, Any]
    ) -> SparseLayer:
        twin = _twin(module)
        return twin.deterministic(twin.layout(module), kept, values, _bias(module), **options)

    return _convert(
        model,
        build,
        _Choice(
            sparsity=sparsity,
            distribution=sparsity_distribution,
            support=support,
            rescale=rescale,
            include=None if include is None else as_patterns(include),
            exclude=as_patterns(exclude),
            backend=backend,
            noisy=False,
            generator=generator,
        ),
        inplace=inplace,
    )


def to_deterministic(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """The way back: plain torch layers with the means on the support and zeros elsewhere."""
    model = model if inplace else copy.deepcopy(model)
    made: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, SparseLayer):
            continue
        if id(layer) not in made:
            made[id(layer)] = _dense_twin(layer, weights)
        model = put(model, name, made[id(layer)])
    model = join_modules(model)
    _forget_shared_draws(model)
    use_torch_batchnorm(model)
    return model


def layer_size(name: str, layout: Layout) -> LayerSize:
    """What allocation needs to know of a layer."""
    return LayerSize(name, layout.fan_in, layout.fan_out, layout.kernel)


@dataclass(frozen=True)
class _Choice:
    """What to keep and where; the arguments that both conversions share."""

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


def _convert(model: nn.Module, build: Builder, choice: _Choice, *, inplace: bool) -> nn.Module:
    if choice.support not in ("random", "magnitude"):
        raise UnknownName("support", str(choice.support), ("random", "magnitude"))
    if sparse_layers(model):
        first = next(iter(sparse_layers(model)))
        raise InvalidValue("model", first or "root", "is sparse already", "convert the torch model")
    model, wholes = split_modules(model if inplace else copy.deepcopy(model))
    try:
        model = _convert_layers(model, build, choice)
    finally:
        model = join_unconverted(model, wholes)
    if choice.backend != "masked":
        use_native_batchnorm(model)
    link_adjacent(model)  # whatever the backends: a run may go on with others
    if any(layer.draws_weights for layer in sparse_layers(model).values()):
        model.register_forward_pre_hook(begin_shared_draws)
        model.register_forward_hook(end_shared_draws)
    warn_of_partial(model, choice.exclude)
    return model


def _convert_layers(model: nn.Module, build: Builder, choice: _Choice) -> nn.Module:
    """``model``, whose modules are split, with its convertible layers replaced."""
    named = {"include": choice.include or (), "exclude": choice.exclude, "shared": choice.shared}
    for key, patterns in named.items():
        require_matches(model, key, patterns)
    candidates = find_candidates(model, choice.include, choice.exclude)
    if not candidates:
        raise none_to_convert(model)
    for candidate in candidates:
        for module in candidate.modules:
            require_linear(candidate.names[0], module)
    sizes = [layer_size(c.names[0] or "root", _layout(c.modules[0])) for c in candidates]
    counts = allocate(sizes, choice.sparsity, choice.distribution)
    for candidate, nnz in zip(candidates, counts, strict=True):
        model = _replace(model, candidate, nnz, build, choice)
    return model


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
    model: nn.Module, candidate: Candidate, nnz: int, build: Builder, choice: _Choice
) -> nn.Module:
    """Put the sparse layers of one weight in the place of its modules.

    Modules that shared it share the new parameters.
    """
    first = candidate.modules[0]
    weight, trained = _twin(first).weight(first), parameter_of(first).requires_grad
    _require_values(candidate.names[0] or "root", weight)
    kept, values = choice.select(weight.detach(), nnz)
    layout = _layout(first)
    backend = choose(choice.backend, layout, nnz, weight.device, weight.dtype, noisy=choice.noisy)
    options: dict[str, Any] = {"backend": backend, "draws_weights": choice.shares(candidate)}
    shared: dict[str, nn.Parameter] = {}
    for module in candidate.modules:
        layer = build(module, kept, values, options)
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
        layer.origin = Origin.of(module, transposed=_twin(module).transposed)
        if layer.origin is not None:
            layer.origin.lend(layer)
        move_hooks(module, layer)
        if choice.backend == MEASURE:
            measure_at_first_use(layer)
        for name, other in list(model.named_modules(remove_duplicate=False)):
            if other is module:
                model = put(model, name, layer)
    return model


def _twin(module: nn.Module) -> Twin:
    twin = twin_of(module)
    assert twin is not None
    return twin


def _layout(module: nn.Module) -> Layout:
    return _twin(module).layout(module)


def _bias(module: nn.Module) -> nn.Parameter | None:
    return module._parameters.get("bias")


def _dense_twin(layer: SparseLayer, weights: dict[int, nn.Parameter]) -> nn.Module:
    """A torch layer with the means as weight.

    Layers that shared parameters share the dense weight.
    """
    dense = layer.origin.restore(dense_twin_of(layer)) if layer.origin else dense_twin_of(layer)
    leading = layer.leading()
    if id(leading) not in weights:
        mean = layer.backend.weight(leading.detach(), layer.pattern, layer.layout, None)
        if layer.origin is not None and layer.origin.transposed:
            mean = mean.t()
        dense_mean = mean.clone(memory_format=torch.contiguous_format)
        weights[id(leading)] = nn.Parameter(dense_mean, requires_grad=leading.requires_grad)
    dense.register_parameter("weight", weights[id(leading)])
    dense.register_parameter("bias", layer.bias)
    forget_measurement(layer)
    forget_dropout(layer)
    move_hooks(layer, dense)
    return dense.train(layer.training)


def move_hooks(old: nn.Module, new: nn.Module) -> None:
    """Hooks go along; the dictionaries themselves move, so that their handles still remove them."""
    for hooks in _HOOKS:
        setattr(new, hooks, getattr(old, hooks))


def _forget_shared_draws(model: nn.Module) -> None:
    """Take the hooks of shared weights off, wherever a converted part was nested."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if hook in (begin_shared_draws, end_shared_draws):
                    del hooks[key]
