"""Catching addition scores in a backward pass (Sec. 3.3.2, Eq. 9).

An *armed* layer routes its dense weight through ``probe``, an identity whose backward writes the
gradient's scores into the bounded buffers of a ``Growth``: the k best off the support and those on
it. The buffers are tensors that a registered operator changes in place, so an armed layer compiles
to a second graph without a break. The last backward before a swap counts: each one overwrites.

Where several processes share a batch, a ``Reducer`` sums every block of the gradient over them
before it is scored: the best of sums are not the sum of bests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.core.scores import SCORES, Score, score_named
from gossamer.core.support import Support
from gossamer.errors import InvalidData
from gossamer.ops.torch_private import NO_BACKWARD, backward_number

_EMPTY = -1
_PASS, _USES, _SCORE, _REDUCER, _SUMS = range(5)


class Reducer(Protocol):
    """Sums gradients over the processes that train together."""

    def sum_(self, block: Tensor) -> Tensor:
        """The sum over all processes, of the shape of ``block``, which may hold it.

        All processes come here with the same blocks in the same order, inside the backward pass.
        """
        ...


_REDUCERS: list[Reducer] = []


def _handle_of(reducer: Reducer | None) -> int:
    """The number by which operators know a reducer; they take tensors only.

    A reducer is kept for the life of the process, which has one.
    """
    if reducer is None:
        return _EMPTY
    for handle, known in enumerate(_REDUCERS):
        if known is reducer:
            return handle
    _REDUCERS.append(reducer)
    return len(_REDUCERS) - 1


@dataclass(eq=False)
class Growth:
    """Scores caught for one weight.

    Attributes:
        scores: ``[k]`` best addition scores off the support, highest first.
        positions: int64 ``[k]``, their flat positions; -1 until a backward has filled them.
        own: ``[nnz]`` scores on the support.
        dense: ``[numel]`` gradient summed over the uses of the weight in one backward pass, where
            it is known to have several or several passes are averaged; else ``[0]``. Of this
            process alone: ``summed`` is the gradient of all.
        task: int64 ``[5]`` on the CPU: number of the backward pass that wrote last, how often it
            used the weight, which score counts, which reducer sums, and whether passes are summed.
    """

    scores: Tensor
    positions: Tensor
    own: Tensor
    dense: Tensor
    task: Tensor

    @classmethod
    def empty(
        cls,
        support: Support,
        count: int,
        device: torch.device,
        *,
        keep_dense: bool,
        score: str = "abs",
        reducer: Reducer | None = None,
        sums_passes: bool = False,
    ) -> Growth:
        """Buffers for the ``count`` best positions off ``support``.

        Args:
            support: The kept positions.
            count: How many candidates are kept, at most.
            device: Of the weight.
            keep_dense: Whether the uses of the weight in one pass are summed.
            score: Key of ``gossamer.core.scores.SCORES``.
            reducer: Sums gradients over processes; ``None`` for a process alone.
            sums_passes: Whether all backward passes from now on are one gradient, the parts of a
                batch that is differentiated piece by piece; else the last pass counts. Needs
                ``keep_dense``.
        """
        k = min(count, support.numel - support.nnz)
        score_named(score)
        task = [_EMPTY, _EMPTY, list(SCORES).index(score), _handle_of(reducer), int(sums_passes)]
        return cls(
            scores=torch.zeros(k, device=device),
            positions=torch.full((k,), _EMPTY, dtype=torch.int64, device=device),
            own=torch.zeros(support.nnz, device=device),
            dense=torch.zeros(support.numel if keep_dense else 0, device=device),
            task=torch.tensor(task, dtype=torch.int64),
        )

    @property
    def score(self) -> Score:
        """The function that scores a block of the gradient."""
        return list(SCORES.values())[int(self.task[_SCORE])]

    def reduced(self, block: Tensor) -> Tensor:
        """A block of the gradient summed over processes; it may be written into."""
        handle = int(self.task[_REDUCER])
        return block if handle == _EMPTY else _REDUCERS[handle].sum_(block)

    @property
    def summed(self) -> Tensor:
        """``dense`` summed over processes; a process alone gets ``dense`` itself."""
        return (
            self.dense if int(self.task[_REDUCER]) == _EMPTY else self.reduced(self.dense.clone())
        )

    @property
    def is_filled(self) -> bool:
        """Whether a backward pass has reached the weight since it was armed."""
        return bool((self.positions != _EMPTY).all())

    @property
    def is_finite(self) -> bool:
        """Whether no caught score is NaN or infinite."""
        return bool(torch.isfinite(self.scores).all() and torch.isfinite(self.own).all())

    @property
    def needs_dense(self) -> bool:
        """Whether one backward pass used the weight several times with nowhere to sum."""
        return int(self.task[_USES]) > 1 and self.dense.numel() == 0

    @property
    def buffers(self) -> list[Tensor]:
        """The tensors that operators fill, in the order of the fields."""
        return [self.scores, self.positions, self.own, self.dense, self.task]

    def require(self, numel: int, indices: Tensor) -> None:
        """Raise unless these are buffers for a weight of ``numel`` values kept at ``indices``.

        Operators ask it of what they are given; the positions themselves torch checks.
        """
        nnz, k = indices.numel(), self.scores.numel()
        shapes = {"scores": (k,), "positions": (k,), "own": (nnz,), "task": (_SUMS + 1,)}
        shapes["dense"] = (numel if self.dense.numel() else 0,)
        for name, shape in shapes.items():
            tensor: Tensor = getattr(self, name)
            is_right = (
                tensor.dtype == torch.int64
                if name in ("positions", "task")
                else tensor.is_floating_point()
            )
            if not is_right or tuple(tensor.shape) != shape or tensor.layout != torch.strided:
                found = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise InvalidData(name, found, f"must be a buffer of the shape {shape}")
        is_right = indices.dtype in (torch.int32, torch.int64) and indices.layout == torch.strided
        if not is_right or indices.dim() != 1 or nnz + k > numel or not _lie_in(indices, numel):
            found = f"{indices.dtype} {tuple(indices.shape)}"
            raise InvalidData("indices", found, f"must be positions of a weight of {numel}")
        for place, least, most in ((_SCORE, 0, len(SCORES)), (_REDUCER, _EMPTY, len(_REDUCERS))):
            if not least <= int(self.task[place]) < most:
                raise InvalidData("task", self.task.tolist(), "names no score or reducer")

    def forget(self) -> None:
        """Mark the buffers as not filled."""
        self.positions.fill_(_EMPTY)

    def new_pass(self) -> None:
        """Forget the gradient summed so far."""
        self.dense.zero_()

    def note_use(self) -> bool:
        """Count a use of the weight; whether its gradient adds to what was caught before."""
        number = backward_number()
        again = number != NO_BACKWARD and int(self.task[_PASS]) == number
        self.task[_PASS] = number
        self.task[_USES] = int(self.task[_USES]) + 1 if again else 1
        return again or bool(self.task[_SUMS])

    def catch(self, gradient: Tensor, indices: Tensor) -> None:
        """Take the dense gradient of one use of the weight.

        The uses of one backward pass are summed, as autograd sums them; a later pass starts anew.
        """
        again = self.note_use()
        flat = gradient.detach().flatten().to(self.scores.dtype)
        if self.needs_dense:
            self.forget()
            return
        if self.dense.numel() > 0:
            flat = self.dense.add_(flat) if again else self.dense.copy_(flat)
        self.rank_gradient(flat, indices)

    def __deepcopy__(self, memo: object) -> None:
        """A copy of an armed layer is not armed."""

    def rank_gradient(self, flat: Tensor, indices: Tensor) -> None:
        """Fill the buffers from a gradient ``[numel]`` of this process, which stays as it is."""
        block = self.reduced(flat.clone())
        self.rank(self.score(block, range(block.numel())), indices)

    def rank(self, size: Tensor, indices: Tensor) -> None:
        """Fill the buffers from addition scores ``size`` ``[numel]``, all at least 0."""
        kept = indices.to(torch.int64)
        self.own.copy_(size[kept])
        best = size.index_fill(0, kept, -1.0).topk(self.scores.numel())
        self.scores.copy_(best.values)
        self.positions.copy_(best.indices)


def _lie_in(indices: Tensor, numel: int) -> bool:
    if indices.numel() == 0:
        return True
    low, high = indices.aminmax()
    return int(low) >= 0 and int(high) < numel


def _require_dense(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise InvalidData(name, str(tensor.layout), "must be dense")


@torch.library.custom_op("gossamer::probe", mutates_args=())
def _probe(
    weight: Tensor,
    indices: Tensor,
    scores: Tensor,
    positions: Tensor,
    own: Tensor,
    dense: Tensor,
    task: Tensor,
) -> Tensor:
    _require_dense("weight", weight)
    Growth(scores, positions, own, dense, task).require(weight.numel(), indices)
    return weight.clone()


@_probe.register_fake
def _(weight: Tensor, *buffers: Tensor) -> Tensor:
    return torch.empty_like(weight)


@torch.library.custom_op(
    "gossamer::catch_scores", mutates_args=("scores", "positions", "own", "dense", "task")
)
def _catch_scores(
    gradient: Tensor,
    indices: Tensor,
    scores: Tensor,
    positions: Tensor,
    own: Tensor,
    dense: Tensor,
    task: Tensor,
) -> None:
    _require_dense("gradient", gradient)
    growth = Growth(scores, positions, own, dense, task)
    growth.require(gradient.numel(), indices)
    growth.catch(gradient, indices)


@_catch_scores.register_fake
def _(gradient: Tensor, *buffers: Tensor) -> None:
    return None


def _setup_probe(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    # Not save_for_backward: the buffers are written by every use of the weight, which its version
    # check would take for a mistake.
    ctx.buffers = inputs[1:]


def _probe_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    _catch_scores(gradient, *ctx.buffers)
    return gradient, None, None, None, None, None, None


_probe.register_autograd(_probe_backward, setup_context=_setup_probe)


def probe(weight: Tensor, indices: Tensor, growth: Growth) -> Tensor:
    """``weight``, dense, unchanged; its gradient fills ``growth`` on the way back.

    Gradients may overflow (a loss scaler tries): ask ``Growth.is_finite`` before the scores are
    used.
    """
    out: Tensor = _probe(weight, indices, *growth.buffers)
    return out
