"""How members share one budget of weights.

``joint`` builds what ``gossamer.build(..., members=M)`` gives: M methods of one name, or one whose
run is cut into M.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn

from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference.abreast import Abreast, Together
from gossamer.inference.cycles import Cycles
from gossamer.inference.gradient import DescentConfig
from gossamer.inference.joining import joined
from gossamer.inference.leaving import check_leaving
from gossamer.inference.members import Members
from gossamer.inference.method import Method, MethodEntry
from gossamer.inference.starts import Networks, Start, network_of, networks, weights_in
from gossamer.likelihoods import Likelihood
from gossamer.nn.candidates import convertible_weights

Harvest = Literal["runs", "abreast", "cycles"]

CYCLE_SWAPS = 0.5
"""Share of the weights that a cycle swaps at its start, unless told."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """How many predict together, and how they come about.

    Attributes:
        members: M; 1 is the method itself.
        member_sparsity: Sparsity of each; ``None``: they share what one network of the method's
            sparsity keeps.
        harvest: ``runs`` trains M networks one beside the other, ``abreast`` as one network (see
            ``abreast``), ``cycles`` cuts one run into M and keeps a copy at each cut.
        member_start: Initial weights where the network is given as a module: ``own`` draws anew
            those of all but the first, ``same`` takes the given ones for all. ``None`` is ``same``
            where supports differ, and has to be told where there is none.
        leave_out: How many members each training example is left out of; those judge it honestly,
            see ``leaving``. 0: all learn from all.
    """

    members: int = 1
    member_sparsity: float | None = None
    harvest: Harvest = "runs"
    member_start: Start | None = None
    leave_out: int = 0

    def __post_init__(self) -> None:
        if self.members < 1:
            raise InvalidValue("members", self.members, "must be at least 1")
        if self.harvest not in get_args(Harvest):
            raise UnknownName("harvest", str(self.harvest), get_args(Harvest))
        if self.member_start not in (None, "own", "same"):
            raise UnknownName("member_start", str(self.member_start), ("own", "same"))
        if self.member_sparsity is not None and not 0.0 <= self.member_sparsity < 1.0:
            raise InvalidValue("member_sparsity", self.member_sparsity, "must lie in [0, 1)")
        if self.harvest == "cycles" and self.member_start is not None:
            raise InvalidValue(
                "member_start", self.member_start, "is not for cycles, which have one start"
            )
        if self.leave_out:
            check_leaving(self.members, self.leave_out)
            if self.harvest == "cycles":
                raise InvalidValue(
                    "leave_out", self.leave_out, "is not for cycles, which are one network", ""
                )
        if self.members == 1 and self.member_sparsity is not None:
            raise InvalidValue(
                "member_sparsity",
                self.member_sparsity,
                "is of several members, and there is one",
                "give members, or sparsity",
            )


def member_budgets(total: int, members: int) -> list[int]:
    """``total`` weights in parts that differ by one at most; they sum to it exactly.

    Example:
        >>> member_budgets(21_525, 2)
        [10763, 10762]
    """
    if not 1 <= members <= total:
        raise InvalidValue("members", members, f"must lie in [1, {total}], the weights to share")
    return [total // members + (number < total % members) for number in range(members)]


def membership(
    name: str,
    entry: MethodEntry,
    *,
    members: int | None = None,
    member_sparsity: float | None = None,
    harvest: Harvest = "runs",
    member_start: Start | None = None,
    leave_out: int = 0,
) -> Membership:
    """What was asked for, checked against the method; ``members=None`` is 1, or 3 of cycles.

    Raises:
        InvalidValue: The method cannot have members, or has its own.
    """
    if members is None:
        members = 3 if harvest == "cycles" else 1
    if has_own_members(entry):
        own = {"member_sparsity": member_sparsity, "harvest": harvest, "leave_out": leave_out}
        for key, value in own.items():
            if value not in (None, "runs", 0):
                raise InvalidValue(
                    key,
                    value,
                    f"is not for {name}, which has its own members",
                    "use another method",
                )
        return Membership()
    plan = Membership(
        members=members,
        member_sparsity=member_sparsity,
        harvest=harvest,
        member_start=member_start,
        leave_out=leave_out,
    )
    if plan.members > 1 and not issubclass(entry.config, DescentConfig):
        raise InvalidValue(
            "members",
            plan.members,
            f"{name} samples: what it keeps are its networks, and several chains are not this",
            "leave members out, or use a method that follows a gradient, such as rigl",
        )
    if member_sparsity is not None and not _has(entry, "sparsity"):
        raise InvalidValue(
            "member_sparsity", member_sparsity, f"is not for {name}, which is dense", "leave it out"
        )
    return plan


def has_own_members(entry: MethodEntry) -> bool:
    """Whether ``members`` is a setting of the method itself."""
    return _has(entry, "members")


def default_settings(entry: MethodEntry, plan: Membership) -> dict[str, Any]:
    """Defaults that the plan changes: cycles swap more."""
    swaps = plan.members > 1 and plan.harvest == "cycles" and _has(entry, "swap_fraction")
    return {"swap_fraction": CYCLE_SWAPS} if swaps else {}


def joint(
    name: str,
    entry: MethodEntry,
    config: Any,
    model: Networks,
    plan: Membership,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> Method:
    """The method of a plan.

    Args:
        name: Key in the registry.
        entry: Its row.
        config: Its settings; ``sparsity`` is that of all members together.
        model: A network, or a function that makes one.
        plan: How many, and how.
        num_data: Number of training examples.
        total_steps: Optimiser steps of each member, or of all cycles together.
        likelihood: Of which every member has a copy.
        generator: Source of the structure of all members, as of ``gossamer.build``.
    """
    arguments: Mapping[str, Any] = {"num_data": num_data, "total_steps": total_steps}
    if plan.members == 1:
        given = model if entry.takes_function else network_of(model)
        return entry.build(config, given, likelihood=likelihood, generator=generator, **arguments)
    if plan.harvest == "cycles":
        own = network_of(model)
        weights, own_config = weights_in(own), _config_of(config, plan, own, 0)
        built = entry.build(
            own_config, own, likelihood=likelihood, generator=generator, **arguments
        )
        return Cycles(built, plan.members, total_steps, _measure(config, plan, weights))
    if plan.leave_out:
        arguments = {**arguments, "num_data": rows_of_member(num_data, plan)}
    network = networks(model, plan.member_start, differ=_is_sparse(config, plan))
    counts: list[int] = []
    plains: list[nn.Module] = []

    def start(number: int) -> Method:
        own = network(number)
        plains.append(own)
        counts.append(weights_in(own))
        if counts[-1] != counts[0]:
            raise InvalidValue("model", counts, "must make networks of one size for all members")
        own_config = _config_of(config, plan, own, number)
        return entry.build(own_config, own, likelihood=copy.deepcopy(likelihood), **arguments)

    seed = int(torch.randint(2**62, (), generator=generator))
    # A generator is for structure: processes that share it have noise of their own.
    noise_seed = None if generator is None else int(torch.randint(2**62, ()))
    starts = [partial(start, number) for number in range(plan.members)]
    method = Members(name, starts, seed, noise_seed)
    method.weights = _measure(config, plan, counts[0])
    if plan.harvest == "runs":
        return method
    whole = entry.build(
        _config_of(config, plan, plains[0], 0),
        joined(plains),
        likelihood=Together(likelihood, plan.members),
        generator=generator,
        **arguments,
    )
    return Abreast(whole, method.members, plains[0], method.weights)


def rows_of_member(num_data: int, plan: Membership) -> int:
    """Training examples that a member learns from; members differ by one or two."""
    return max(1, round(num_data * (1.0 - plan.leave_out / plan.members)))


def _is_sparse(config: Any, plan: Membership) -> bool:
    if plan.member_sparsity is not None:
        return plan.member_sparsity > 0.0
    return bool(getattr(config, "sparsity", 0.0))


def _config_of(config: Any, plan: Membership, network: nn.Module, number: int) -> Any:
    """The settings of one member: its own sparsity, all else alike."""
    if plan.member_sparsity is not None:
        return replace(config, sparsity=plan.member_sparsity)
    if not _is_sparse(config, plan):
        return config
    total = _total(network, config.sparsity, plan.members)
    budgets, weights = member_budgets(total, plan.members), weights_in(network)
    # Cycles keep one network M times, so all have the same number: the smallest.
    share = budgets[-1] if plan.harvest == "cycles" else budgets[number]
    return replace(config, sparsity=1.0 - share / weights)


def _total(network: nn.Module, sparsity: float, members: int) -> int:
    """Weights that all members keep together, as ``core.allocation`` rounds it for one network."""
    if not 0.0 <= sparsity < 1.0:
        raise InvalidValue(
            "sparsity", sparsity, "must lie in [0, 1)", "it is the share of weights removed"
        )
    weights, layers = weights_in(network), len(convertible_weights(network))
    total = round((1.0 - sparsity) * weights)
    if total < members * layers:
        raise InvalidValue(
            "sparsity",
            sparsity,
            f"keeps {total} of {weights} weights for {members} members of {layers} layers: "
            "one would be empty",
            "use fewer members, or a lower sparsity",
        )
    return total


def _measure(config: Any, plan: Membership, weights: int) -> int:
    """Weights that sparsity is told against: of one dense network if the members fit into one."""
    each = 1.0 - (plan.member_sparsity or 0.0)
    shares = plan.member_sparsity is None and _is_sparse(config, plan)
    fits = shares or plan.members * each <= 1.0
    return weights if fits else plan.members * weights


def _has(entry: MethodEntry, setting: str) -> bool:
    return setting in {field.name for field in fields(entry.config)}
