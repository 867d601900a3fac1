"""Variable selection: which inputs a sparse model uses, against those that matter.

With p inputs, S the true ones and Ŝ the selected ones (cvadam2023, Table 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue


@dataclass(frozen=True)
class Selection:
    """How good a selection is.

    Attributes:
        fdr: False discovery rate |Ŝ ∖ S| / |Ŝ|; 0 where nothing is selected.
        fndr: False non-discovery rate |S ∖ Ŝ| / (p - |Ŝ|); 0 where everything is selected. With
            many inputs it is near 0 whatever is missed: see ``miss_rate``.
        miss_rate: |S ∖ Ŝ| / |S|; 0 where no input is true.
        selected: |Ŝ|.
    """

    fdr: float
    fndr: float
    miss_rate: float
    selected: int


def variable_selection(
    selected: Iterable[int] | Tensor, true: Iterable[int] | Tensor, num_features: int
) -> Selection:
    """Compares selected with true inputs.

    Args:
        selected: Indices of the selected inputs, [|Ŝ|], counted from 0, each once, in any order;
            may be empty.
        true: Indices of the true inputs, likewise.
        num_features: Number of inputs, p.

    Example:
        >>> variable_selection([0, 1, 7, 9], true=[0, 1, 2], num_features=14)
        Selection(fdr=0.5, fndr=0.1, miss_rate=0.3333333333333333, selected=4)
    """
    if isinstance(num_features, bool) or not isinstance(num_features, int) or num_features < 1:
        raise InvalidValue("num_features", num_features, "must be an integer >= 1")
    chosen = _check_indices("selected", selected, num_features)
    wanted = _check_indices("true", true, num_features)
    missed = len(wanted - chosen)
    return Selection(
        fdr=_share(len(chosen - wanted), len(chosen)),
        fndr=_share(missed, num_features - len(chosen)),
        miss_rate=_share(missed, len(wanted)),
        selected=len(chosen),
    )


def inclusion_probabilities(selected: Tensor) -> Tensor:
    """Posterior probability that an input is in the model: its share of the posterior samples.

    Args:
        selected: bool [S, p], whether sample s uses input i.

    Returns:
        float64 [p] on the CPU.

    Example:
        >>> inclusion_probabilities(torch.tensor([[True, False], [True, True]])).tolist()
        [1.0, 0.5]
    """
    if not isinstance(selected, Tensor):
        kind = type(selected).__name__
        raise InvalidData("selected", kind, "must be a torch tensor", "use torch.as_tensor")
    if selected.dtype != torch.bool:
        raise InvalidData(
            "selected.dtype", selected.dtype, "must be torch.bool", "pass column_norms > 0"
        )
    if selected.dim() != 2 or selected.numel() == 0:
        rule = "must be [S, p] with at least one sample and one input"
        raise InvalidData("selected.shape", tuple(selected.shape), rule, "put the samples first")
    return selected.detach().cpu().double().mean(dim=0)


def _share(part: int, whole: int) -> float:
    # An empty set holds nothing wrong.
    return part / whole if whole else 0.0


def _check_indices(name: str, value: Iterable[int] | Tensor, num_features: int) -> set[int]:
    if isinstance(value, Tensor) and value.dim() != 1:
        raise InvalidData(f"{name}.shape", tuple(value.shape), "must be [number of indices]")
    # As plain integers: a tensor's elements are distinct objects, which a set would not merge.
    entries = value.tolist() if isinstance(value, Tensor) else list(value)
    found: set[int] = set()
    for place, entry in enumerate(entries):
        where = f"{name}[{place}]"
        if isinstance(entry, bool) or not isinstance(entry, Integral):
            hint = f"of a mask, pass {name}.nonzero().flatten()"
            raise InvalidData(where, entry, "must be an integer index", hint)
        index = int(entry)
        if not 0 <= index < num_features:
            hint = "count inputs from 0"
            raise InvalidData(where, index, f"must lie in [0, {num_features})", hint)
        if index in found:
            raise InvalidData(where, index, "is given twice", "give each index once")
        found.add(index)
    return found
