"""The table of methods and the one way to build them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import nn

from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import (
    csghmc,
    csgld,
    cv_adam,
    cv_sghmc,
    dense_vi,
    em_mcmc,
    rigl,
    sgd,
    ssvi,
)
from gossamer.inference.method import Method
from gossamer.likelihoods import Likelihood, make_likelihood


@dataclass(frozen=True)
class MethodEntry:
    """One row of the table.

    Attributes:
        config: Dataclass of its settings.
        build: Makes the method from a config.
        presets: Named changes to the defaults; ``default`` is one of them.
        about: One line for ``gossamer methods``.
    """

    config: type[Any]
    build: Callable[..., Method]
    presets: dict[str, dict[str, Any]]
    about: str


METHODS: dict[str, MethodEntry] = {
    "ssvi": MethodEntry(
        ssvi.SSVIConfig,
        ssvi.build,
        ssvi.PRESETS,
        "sparse subspace variational inference: Gaussian posterior on a learnt set of weights",
    ),
    "dense_vi": MethodEntry(
        dense_vi.DenseVIConfig,
        dense_vi.build,
        dense_vi.PRESETS,
        "dense mean-field variational inference with local reparameterisation",
    ),
    "rigl": MethodEntry(
        rigl.RigLConfig, rigl.build, rigl.PRESETS, "sparse deterministic training with swaps"
    ),
    "sgd": MethodEntry(
        sgd.SGDConfig, sgd.build, sgd.PRESETS, "plain deterministic training, dense by default"
    ),
    "cv_adam": MethodEntry(
        cv_adam.CVAdamConfig,
        cv_adam.build,
        cv_adam.PRESETS,
        "constrained variational Adam: a bounded Gaussian around a trained mean",
    ),
    "cv_sghmc": MethodEntry(
        cv_sghmc.CVSGHMCConfig,
        cv_sghmc.build,
        cv_sghmc.PRESETS,
        "SGHMC preconditioned by a learnt scale per weight, in cycles",
    ),
    "csgld": MethodEntry(
        csgld.CSGLDConfig,
        csgld.build,
        csgld.PRESETS,
        "cyclical stochastic gradient Langevin dynamics",
    ),
    "csghmc": MethodEntry(
        csghmc.CSGHMCConfig,
        csghmc.build,
        csghmc.PRESETS,
        "cyclical stochastic gradient Hamiltonian Monte Carlo",
    ),
    "em_mcmc": MethodEntry(
        em_mcmc.EMMCMCConfig,
        em_mcmc.build,
        em_mcmc.PRESETS,
        "SGHMC under a spike-and-slab group prior, pruned while it runs",
    ),
}


def method_entry(name: str) -> MethodEntry:
    """The row of that name, or a plain error."""
    if name not in METHODS:
        raise UnknownName("method", name, list(METHODS))
    return METHODS[name]


def resolve_config(name: str, preset: str = "default", **settings: Any) -> Any:
    """The full settings of a method: defaults, changed by the preset, changed by ``settings``."""
    entry = method_entry(name)
    if preset not in entry.presets:
        raise UnknownName(f"preset of {name}", preset, list(entry.presets))
    known = [field.name for field in fields(entry.config)]
    hints = get_type_hints(entry.config)
    for key in settings:
        if key not in known:
            raise UnknownName(f"setting of {name}", key, known)
    # A pair that went through JSON comes back as a list.
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    for key, value in values.items():
        if not _fits(value, hints[key]):
            raise InvalidValue(f"{key} of {name}", value, f"must be {_words(hints[key])}")
    return entry.config(**{**entry.presets[preset], **values})


def _fits(value: object, hint: Any) -> bool:
    """Whether a setting has the type that its config declares; a whole number serves as a float."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        return (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(_fits(v, p) for v, p in zip(value, parts, strict=True))
        )
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, float | int if hint is float else hint)


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(repr(one) for one in get_args(hint))
    if hint is type(None):
        return "none"
    return {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}.get(
        hint, "two numbers"
    )


def build(
    name: str,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: str | Likelihood = "categorical",
    preset: str = "default",
    **settings: Any,
) -> Method:
    """A method, ready to step.

    Args:
        name: Key of ``METHODS``.
        model: A plain torch network; it is copied.
        num_data: Number of training examples.
        total_steps: Optimiser steps of the whole run.
        likelihood: Name or instance.
        preset: Named settings of the method, such as ``paper``.
        **settings: Changes to the preset, checked by name.

    Example:
        >>> method = build("ssvi", net, num_data=1000, total_steps=500, sparsity=0.95)  # doctest:
        +SKIP
        >>> info = method.step((x, y))  # doctest: +SKIP
    """
    if num_data < 1:
        raise InvalidValue("num_data", num_data, "must be at least 1")
    if total_steps < 1:
        raise InvalidValue("total_steps", total_steps, "must be at least 1")
    config = resolve_config(name, preset, **settings)
    return method_entry(name).build(
        config,
        model,
        num_data=num_data,
        total_steps=total_steps,
        # A copy, as of the model: two methods must not train one noise.
        likelihood=copy.deepcopy(make_likelihood(likelihood)),
    )
