"""What optimisers keep per weight, and what a weight that was not there before begins with.

A name that no table holds is refused: zero would be right for a momentum, wrong by orders of
magnitude for a copy of σ's pre-image.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args, runtime_checkable

from torch import Tensor
from torch.optim.optimizer import Optimizer

from gossamer.errors import InvalidValue, UnknownName

StateKind = Literal["first", "second", "tracks"]
"""``first`` averages gradients or steps, ``second`` measures the size of gradients, ``tracks`` is
another copy of the parameter: an average of it, slow weights, or one in higher precision."""

_FIRST = ("exp_avg", "momentum_buffer", "grad_avg", "prev")
_SECOND = (
    "exp_avg_sq",
    "max_exp_avg_sq",
    "square_avg",
    "acc_delta",
    "sum",
    "exp_inf",
    "variance",
    "step_size",
    "curvature",
)
_TRACKS = (
    "ax",  # ASGD: the average of the iterates
    "slow_buffer",  # Lookahead, as the known packages call it
    "slow_params",
    "slow_param",
    "slow_weights",
    "lookahead_slow_buff",
    "cached_params",
    "master_param",  # float32 copies of half-precision weights
    "master_params",
    "master_weight",
    "master_weights",
    "fp32_param",
)
_KINDS: dict[str, StateKind] = {
    **dict.fromkeys(_FIRST, "first"),
    **dict.fromkeys(_SECOND, "second"),
    **dict.fromkeys(_TRACKS, "tracks"),
}
_REGISTERED: dict[tuple[type, str], StateKind] = {}


@runtime_checkable
class NamesFreshState(Protocol):
    """An optimiser that says itself what its state of a fresh weight is."""

    def fresh_state(self, parameter: Tensor, name: str) -> float | None:
        """The value under ``name``; ``None`` where torch's conventions hold."""
        ...


def register_state(name: str, kind: StateKind, optimizer: type = Optimizer) -> None:
    """Say what a foreign optimiser keeps under a name, so that it may follow swaps.

    Args:
        name: Key of ``optimizer.state[parameter]``.
        kind: ``first``: an average of gradients or steps, 0 for a fresh weight. ``second``: the
            size of gradients, the mean of those that stay. ``tracks``: another copy of the
            parameter, whose fresh value it gets.
        optimizer: Class of the optimisers that mean this by the name; all of them by default.

    Raises:
        InvalidValue: The name is known for all optimisers, and means something else.

    Example:
        >>> register_state("exp_avg_diff", "first")
    """
    if kind not in get_args(StateKind):
        raise UnknownName("kind of state", str(kind), get_args(StateKind))
    known = _KINDS.get(name) if optimizer is Optimizer else None
    if known not in (None, kind):
        raise InvalidValue(
            f"state {name!r}",
            kind,
            f"is {known!r} in torch's optimisers",
            "name the class of yours: register_state(name, kind, MyOptimizer)",
        )
    _REGISTERED[optimizer, name] = kind


def kind_of(optimizer: Optimizer, name: str) -> StateKind | None:
    """What an optimiser keeps under a name; ``None`` where nobody has said so."""
    for cls in type(optimizer).__mro__:
        if (cls, name) in _REGISTERED:
            return _REGISTERED[cls, name]
    # A name too short to mean one thing: FTRL's z is a sum of gradients.
    if name == "z" and "ScheduleFree" in _class_names(optimizer):
        return "tracks"
    return _KINDS.get(name)


def require_known_state(optimizer: Optimizer, parameter: Tensor, name: str) -> None:
    """Raise where nobody has said what a fresh weight's state under ``name`` is."""
    if (
        isinstance(optimizer, NamesFreshState)
        and optimizer.fresh_state(parameter, name) is not None
    ):
        return
    if kind_of(optimizer, name) is None:
        raise InvalidValue(
            f"state {name!r} of {type(optimizer).__name__}",
            None,
            "is not known, and what a fresh weight begins with depends on what it is",
            f"say so once with gossamer.nn.register_state({name!r}, 'first' | 'second' | "
            "'tracks'), or give the optimiser a method fresh_state(parameter, name)",
        )


def _class_names(optimizer: Optimizer) -> str:
    """Of an optimiser, its bases and the one that it wraps, if any, such as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    classes = (*type(optimizer).__mro__, *type(inner).__mro__)
    return " ".join(cls.__name__ for cls in classes)
