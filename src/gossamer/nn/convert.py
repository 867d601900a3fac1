"""From any torch model to a sparse Bayesian or sparse deterministic one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.core.allocation import Sparsity
from gossamer.core.priors import Prior
from gossamer.core.support import Support
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn.base import SparseLayer
from gossamer.nn.candidates import Pattern, as_patterns
from gossamer.nn.prior import (
    POSTERIOR_SHARE,
    PosteriorStd,
    PriorStd,
    initial_std,
    make_prior,
    require_prior_std,
    resolve_prior_std,
)
from gossamer.nn.replacing import Choice, SupportRule, bias_of, convert, own_twin
from gossamer.nn.walk import weights_of
from gossamer.ops import AUTO, Layout

AbsentVariance = Literal["none", "linear", "all"]
PriorMean = Literal["zero", "pretrained"]


def to_bayesian(
    model: nn.Module,
    sparsity: Sparsity = 0.0,
    *,
    sparsity_distribution: str = "erk",
    support: SupportRule = "random",
    rescale: bool = True,
    prior_std: PriorStd | Mapping[str, PriorStd] = "scaled",
    prior: Prior | Mapping[str, Prior | None] | None = None,
    prior_mean: PriorMean | Mapping[str, PriorMean] = "zero",
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
            layers, or ``"empirical"``: per layer, that of its weights at any moment. This and the
            next two may also be given by patterns of names, as ``sparsity``:
            ``{"head": 1.0, "*": "scaled"}``.
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
            all but tables (``nn.Embedding``), which are converted where they are asked for. Needed
            where the model has sparse layers already, which stay as they are.
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
        >>> gossamer.summary(bnn).nnz
        80
    """
    if absent_variance not in get_args(AbsentVariance):
        raise UnknownName("absent_variance", str(absent_variance), get_args(AbsentVariance))

    def build(
        module: nn.Module,
        kept: Support,
        values: Tensor,
        settings: Mapping[str, Any],
        options: dict[str, Any],
    ) -> SparseLayer:
        twin, own_prior = own_twin(module), settings["prior"]
        layout = twin.layout(module)
        width = resolve_prior_std(settings["prior_std"], settings["scale"], kept.density)
        std = initial_std(posterior_std, width, values, generator, posterior_share)
        belief = make_prior(settings["prior_std"], width) if own_prior is None else own_prior
        layer = twin.bayesian(layout, kept, values, std, bias_of(module), prior=belief, **options)
        if kept.nnz < kept.numel and (
            absent_variance == "all" or (absent_variance == "linear" and layout.is_linear)
        ):
            # The scaled std of all inputs: those that a layer does not keep are as many.
            absent_std = resolve_prior_std(settings["prior_std"], layout, 1.0)
            layer.spread_absent(posterior_share * absent_std, absent_std)
        if settings["prior_mean"] == "pretrained":
            layer.centre_prior(twin.weight(module))
        return layer

    converted = convert(
        model,
        build,
        Choice(
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
            settings={"prior_std": prior_std, "prior": prior, "prior_mean": prior_mean},
            check=partial(_require_one_prior, absent_variance=absent_variance),
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
        module: nn.Module,
        kept: Support,
        values: Tensor,
        settings: Mapping[str, Any],
        options: dict[str, Any],
    ) -> SparseLayer:
        twin = own_twin(module)
        return twin.deterministic(twin.layout(module), kept, values, bias_of(module), **options)

    return convert(
        model,
        build,
        Choice(
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


def _require_one_prior(
    layouts: Iterable[Layout],
    *,
    prior_std: PriorStd,
    prior: Prior | None,
    prior_mean: PriorMean,
    absent_variance: AbsentVariance,
) -> None:
    """Raise where the settings of a layer are wrong, or contradict each other."""
    require_prior_std(prior_std)
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
    if absent_variance == "all" and any(layout.is_lookup for layout in layouts):
        raise InvalidValue(
            "absent_variance",
            "all",
            "has no form for the rows of a table (nn.Embedding)",
            "use 'linear', or leave the table out",
        )
