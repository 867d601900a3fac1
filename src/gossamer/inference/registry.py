"""The table of methods and the one way to build them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch

from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import methods
from gossamer.inference.method import Method, MethodEntry
from gossamer.inference.sharing import (
    Harvest,
    default_settings,
    has_own_members,
    joint,
    membership,
)
from gossamer.inference.starts import Networks, Start
from gossamer.likelihoods import Likelihood, make_likelihood
from gossamer.settings import checked


def _read_folder() -> dict[str, MethodEntry]:
    names = sorted(module.name for module in iter_modules(methods.__path__))
    return {name: import_module(f"{methods.__name__}.{name}").METHOD for name in names}


METHODS: dict[str, MethodEntry] = _read_folder()
"""Every file of ``inference/methods`` by its name; ``register_method`` adds one from elsewhere."""


def register_method(name: str, entry: MethodEntry) -> None:
    """Make a method of one's own known to ``build``, the command line and the contract tests.

    Args:
        name: What it is built by.
        entry: Its config, presets, ``build`` and one line about it.

    Raises:
        InvalidValue: The name is taken.
    """
    if name in METHODS:
        raise InvalidValue("method", name, "is registered already", "choose another name")
    METHODS[name] = entry


def method_entry(name: str) -> MethodEntry:
    """The row of that name, or a plain error."""
    if name not in METHODS:
        raise UnknownName("method", name, list(METHODS))
    return METHODS[name]


def resolve_config(
    name: str,
    preset: str = "default",
    defaults: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """The full settings of a method: defaults, changed by the preset, changed by ``settings``.

    Args:
        name: Key of ``METHODS``.
        preset: Named settings.
        defaults: Of some settings, in place of the method's own.
        **settings: Changes.
    """
    entry = method_entry(name)
    if preset not in entry.presets:
        raise UnknownName(f"preset of {name}", preset, list(entry.presets))
    given = checked(entry.config, settings, of=name)
    return entry.config(**{**(defaults or {}), **entry.presets[preset], **given})


def build(
    name: str,
    model: Networks,
    *,
    num_data: int,
    total_steps: int,
    likelihood: str | Likelihood = "categorical",
    preset: str = "default",
    members: int | None = None,
    member_sparsity: float | None = None,
    harvest: Harvest = "runs",
    member_start: Start | None = None,
    leave_out: int = 0,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Method:
    """A method, ready to step.

    Args:
        name: Key of ``METHODS``.
        model: A plain torch network, which is copied; or a function that makes one.
        num_data: Number of training examples.
        total_steps: Optimiser steps of the whole run.
        likelihood: Name or instance.
        preset: Named settings of the method, such as ``paper``.
        members: How many networks train and predict together, see docs/members.md. ``None`` is 1,
            3 of cycles, or the method's own number.
        member_sparsity: Sparsity of each; by default they share the weights of one network of the
            method's ``sparsity``, exactly.
        harvest: ``runs`` trains them one beside the other, ``abreast`` as one network, ``cycles``
            cuts one run into so many.
        member_start: Where members start whose network is a module, see ``Membership``.
        leave_out: How many members each example is left out of; batches then say of which, see
            ``gossamer.inference.leaving``.
        generator: Source of the structure: support, initial posterior, random swaps. torch's
            default one if ``None``. Noise always comes from the default one. So processes that
            train together give equal generators and seed their noise apart.
        **settings: Changes to the preset, checked by name.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> method = build("ssvi", net, num_data=60, total_steps=20, sparsity=0.5)
        >>> info = method.step((torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)))
        >>> info.kl > 0
        True
    """
    if num_data < 1:
        raise InvalidValue("num_data", num_data, "must be at least 1")
    if total_steps < 1:
        raise InvalidValue("total_steps", total_steps, "must be at least 1")
    entry = method_entry(name)
    plan = membership(
        name,
        entry,
        members=members,
        member_sparsity=member_sparsity,
        harvest=harvest,
        member_start=member_start,
        leave_out=leave_out,
    )
    if has_own_members(entry):
        own = {"members": members, "member_start": member_start}
        settings = {**settings, **{key: value for key, value in own.items() if value is not None}}
    config = resolve_config(name, preset, default_settings(entry, plan), **settings)
    return joint(
        name,
        entry,
        config,
        model,
        plan,
        num_data=num_data,
        total_steps=total_steps,
        # A copy, as of the model: two methods must not train one noise.
        likelihood=copy.deepcopy(make_likelihood(likelihood)),
        generator=generator,
    )
