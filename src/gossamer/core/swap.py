"""One swap.

Which positions leave, which enter, and how every vector over the support follows (Algorithm 1,
lines 9-11).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.support import Support
from gossamer.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class SwapPlan:
    """The outcome of removal and addition in one layer.

    Attributes:
        support: The new support, of the same size as the old one.
        source: int64 ``[nnz]``: for each new slot the old slot whose value it takes, or -1 for a
            fresh weight.
        removed: int64, sorted positions that left.
        added: int64, sorted positions that entered; as many as ``removed``.
    """

    support: Support
    source: Tensor
    removed: Tensor
    added: Tensor


def plan_swap(
    support: Support,
    removal_scores: Tensor,
    own_scores: Tensor,
    candidates: Tensor,
    candidate_scores: Tensor,
    count: int,
) -> SwapPlan:
    """Remove the ``count`` lowest, then fill up with the best of candidates and removed.

    A removed weight that wins its place back at once is simply kept: it appears in neither
    ``removed`` nor ``added``. Ties are broken in favour of staying, then of the lower position, so
    the outcome does not depend on a sorting algorithm.

    Args:
        support: The present support.
        removal_scores: ``[nnz]``, lowest leave (Sec. 3.3.1).
        own_scores: ``[nnz]``, addition scores at the kept positions (Sec. 3.3.2), used for those
            that are removed.
        candidates: int64 ``[k]``, distinct positions off the support.
        candidate_scores: ``[k]``, their addition scores, highest enter.
        count: Number of weights to remove, at most ``nnz``.
    """
    if not 0 <= count <= support.nnz:
        raise InvalidValue("count", count, f"must lie in [0, nnz = {support.nnz}]")
    positions = support.positions().to(removal_scores.device)
    leaving = removal_scores.sort(stable=True).indices[:count].sort().values
    kept = torch.ones(support.nnz, dtype=torch.bool, device=positions.device)
    kept[leaving] = False

    candidates, by_position = candidates.sort()
    pool = torch.cat([positions[leaving], candidates])
    scores = torch.cat([own_scores[leaving], candidate_scores[by_position]])
    winners = scores.sort(descending=True, stable=True).indices[:count]
    entering = pool[winners]

    new_positions, _ = torch.cat([positions[kept], entering]).sort()
    source = support.slots(new_positions.cpu()).to(positions.device)
    fresh = source < 0
    stayed = torch.zeros(support.nnz, dtype=torch.bool, device=positions.device)
    stayed[source[~fresh]] = True
    new_support = Support.from_positions(new_positions.cpu(), support.shape)
    return SwapPlan(new_support, source, positions[~stayed], new_positions[fresh])


def follow(vector: Tensor, source: Tensor, fresh: Tensor | float) -> Tensor:
    """A vector over the old support carried to the new one.

    Slots of fresh weights take the value ``fresh``.
    """
    carried = vector[source.clamp(min=0)]
    return torch.where(
        source >= 0, carried, torch.as_tensor(fresh, dtype=vector.dtype, device=vector.device)
    )
