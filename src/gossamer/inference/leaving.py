"""Who leaves out which example: members that judge one another's training rows.

With M members and T rounds, each round deals all examples out to M / T members, which do not learn
from theirs. So every example is left out of exactly T members, every member learns from the same
share 1 - T / M of the examples, and the answers of the T members to an example that they never saw
are as honest as those to a new one. With T = 2 or more they also tell how much averaging gains
(``gossamer.prediction.finish.left_out``), which one answer per example cannot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.errors import InvalidValue


def check_leaving(members: int, times: int) -> None:
    """Raise unless examples can be left out of ``times`` of ``members`` members each.

    Raises:
        InvalidValue: A round would have fewer than two members, or they do not divide.
    """
    if times < 1 or members % times or members // times < 2:
        raise InvalidValue(
            "leave_out",
            times,
            f"must divide the {members} members into rounds of two or more",
            "use e.g. members=10 and leave_out=2",
        )


def left_out(
    rows: int, members: int, times: int, generator: torch.Generator, labels: Tensor | None = None
) -> Tensor:
    """The members that leave out each example.

    Args:
        rows: N, no fewer than the members of a round.
        members: M.
        times: T, the members that leave out an example; divides M.
        generator: CPU generator that deals.
        labels: Class of each example ``[N]``; then every member leaves out nearly the same share of
            every class.

    Returns:
        int64 ``[N, T]``; column t holds numbers in ``[t M / T, (t + 1) M / T)``. The examples that
        two members of a round leave out differ by one in number at most.

    Example:
        >>> dealt = left_out(100, members=10, times=2, generator=torch.Generator().manual_seed(0))
        >>> dealt.shape, torch.bincount(dealt.flatten()).tolist()
        (torch.Size([100, 2]), [20, 20, 20, 20, 20, 20, 20, 20, 20, 20])
    """
    check_leaving(members, times)
    hands = members // times
    if rows < hands:
        raise InvalidValue(
            "leave_out",
            times,
            f"needs {hands} training examples or more, one for each of {hands} members",
            "use fewer members",
        )
    columns = []
    for round_number in range(times):
        order = torch.randperm(rows, generator=generator)
        if labels is not None:
            order = order[labels.cpu()[order].argsort(stable=True)]
        dealt = torch.empty(rows, dtype=torch.int64)
        dealt[order] = torch.arange(rows) % hands + round_number * hands
        columns.append(dealt)
    return torch.stack(columns, 1)
