"""Models and optimisers with which a swap cannot be right: refused before the first one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from gossamer.errors import InvalidValue
from gossamer.inference.group import ALONE, Group
from gossamer.nn import Weight
from gossamer.ops import version_of

_SHARDED = {
    "ZeroRedundancyOptimizer": "holds the state of a share of the parameters only",
    "LBFGS": "keeps one flat vector over all parameters",
}


def require_group(model: nn.Module, group: Group) -> None:
    """Raise where several processes train one model, and a swap would ask one of them only."""
    if group.size > 1:
        return
    world = 1
    if distributed.is_available() and distributed.is_initialized():
        world = distributed.get_world_size()
    wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    if wrapped:
        raise InvalidValue(
            "model",
            "DistributedDataParallel",
            "has ranks that would swap by their own gradients, and part",
            "give Subspace the group of processes that train it: group=",
        )
    if world > 1 and group is ALONE:
        raise InvalidValue(
            "group",
            None,
            f"is needed: torch.distributed has {world} processes, and each would swap by its own "
            "gradients",
            "pass group= with all of them, or gossamer.inference.Alone() where every process "
            "trains a network of its own",
        )


def require_whole(model: nn.Module, weights: Iterable[Weight]) -> None:
    """Raise where parameters are spread over processes (FSDP): positions would leave values."""
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise _sharded("model", "FullyShardedDataParallel")
    # Where nobody imported them there are none.
    tensors = sys.modules.get("torch.distributed.tensor")
    kind: type | None = getattr(tensors, "DTensor", None)
    if kind is None:
        return
    for weight in weights:
        for vector in weight.layer.vectors:
            if isinstance(vector.parameter, kind):
                raise _sharded(f"{vector.name} of layer {weight.title}", "DTensor")


def _sharded(name: str, value: str) -> InvalidValue:
    return InvalidValue(
        name,
        value,
        "is spread over processes, while a swap needs all values of a layer beside its positions",
        "keep a whole copy per process (sparse layers are small): fully_shard and FSDP are for "
        "dense ones",
    )


def require_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """Raise where the state of an optimiser is nowhere that a swap could find it."""
    if not optimizers:
        raise InvalidValue("optimizer", "[]", "must be one or more")
    for optimizer in optimizers:
        reason = None
        for cls in type(optimizer).__mro__:
            reason = reason or _SHARDED.get(cls.__name__)
            if cls.__module__.partition(".")[0] == "deepspeed":
                reason = "flattens parameters and keeps its state under other ones"
        if reason is not None:
            raise InvalidValue(
                "optimizer",
                type(optimizer).__name__,
                f"{reason}, which a swap cannot move",
                "use an optimiser with elementwise state, such as SGD, Adam or RMSprop",
            )
        for inner in vars(optimizer).values():
            if not isinstance(inner, Optimizer) or inner in optimizers:
                continue
            if inner.state is not optimizer.state:
                raise InvalidValue(
                    "optimizer",
                    type(optimizer).__name__,
                    f"wraps {type(inner).__name__}, whose state a swap would not see",
                    "give both: Subspace(model, [outer, inner])",
                )


class Stepped:
    """Tells, by the writes to them, which parameters were stepped since the last swap."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def note(self, weights: Iterable[Weight]) -> None:
        """Whatever was written to these weights so far were no steps."""
        for parameter in _vectors(weights):
            self._versions[id(parameter)] = version_of(parameter)

    def require_state(self, optimizers: Sequence[Optimizer], weights: Iterable[Weight]) -> None:
        """Raise where an optimiser has stepped a parameter and holds no state of it.

        One that keeps state holds it for all parameters of a group; what is kept elsewhere would
        stay behind at a swap.

        Args:
            optimizers: All of them.
            weights: Those that had a gradient in the step before, so that they were stepped.
        """
        moved = {id(p): p for p in _vectors(weights) if version_of(p) != self._versions.get(id(p))}
        for optimizer in optimizers:
            for number, group in enumerate(optimizer.param_groups):
                held = {id(p) for p in group["params"] if optimizer.state.get(p)}
                without = [p for p in group["params"] if id(p) in moved and id(p) not in held]
                if held and without:
                    raise InvalidValue(
                        f"state of {type(optimizer).__name__}",
                        None,
                        f"is missing for {len(without)} parameters of group "
                        f"{group.get('name', number)} that it has stepped",
                        "an optimiser that keeps its state elsewhere cannot follow swaps; give "
                        "Subspace the one that holds it",
                    )


def _vectors(weights: Iterable[Weight]) -> list[Tensor]:
    vectors = [vector for weight in weights for vector in weight.layer.vectors]
    return [v.parameter for v in vectors if v.parameter.requires_grad]


def as_sequence(optimizer: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """One optimiser, or several, as several."""
    return tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)


def holders(optimizers: Iterable[Optimizer]) -> set[int]:
    """Identities of all parameters that some optimiser holds."""
    return {id(p) for opt in optimizers for group in opt.param_groups for p in group["params"]}
