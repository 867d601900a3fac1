"""Calibration errors and the reliability curve.

Two questions, two families. *Top label*: is the predicted class right as often as its probability
says (``ece``, ``adaptive_ece``, ``reliability_curve``)? *Marginal*: does each class occur as often
as its column says (``classwise_ece``, ``marginal_calibration_error``)?

Equal-width bins are ((m-1)/M, m/M] as in Guo et al. (2017), the first one closed at 0. We do not
call torchmetrics' calibration error: it closes bins on the left, so confidences of exactly 1, which
saturated networks give in float32, fall into a bin of their own; and it takes a rounding excess
(1.0000001) for a logit and softmaxes everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.metrics._validation import check_num_bins, check_probs

_MARGINAL_BINS = 15
# Elements per block of classes: bounds the temporaries at some tens of megabytes.
_BLOCK_ELEMENTS = 2**21


@dataclass(frozen=True)
class ReliabilityCurve:
    """Accuracy against confidence in M equal-width bins.

    Attributes:
        edges: [M + 1], bin edges from 0 to 1.
        confidence: [M], mean top-label probability; NaN in an empty bin.
        accuracy: [M], share of right predictions; NaN in an empty bin.
        count: [M], int64, rows per bin.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    def to_json(self) -> dict[str, list[float | None]]:
        """Lists for a JSON file; an empty bin's confidence and accuracy are ``None``."""
        full = self.count > 0
        return {
            "edges": self.edges.tolist(),
            "confidence": _none_where_empty(self.confidence, full),
            "accuracy": _none_where_empty(self.accuracy, full),
            "count": self.count.tolist(),
        }


def ece(probs: Tensor, target: Tensor, num_bins: int = 15) -> float:
    """Expected calibration error: top label, L1, equal-width bins (Guo et al. 2017).

    Args:
        probs: [B, C].
        target: [B], labels.
        num_bins: M.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
        >>> ece(probs, torch.tensor([0, 1]))  # confidence 0.75, accuracy 0.5
        0.25
    """
    check_num_bins(num_bins)
    confidence, hit = _top_label(probs, target)
    return _l1_error(confidence, hit, _equal_width_edges(num_bins))


def adaptive_ece(probs: Tensor, target: Tensor, num_bins: int = 15) -> float:
    """Calibration error of the top label, L1, with bins of equal mass.

    Edges lie halfway between neighbouring confidences of two shares, so equal confidences share a
    bin and the order of rows does not matter; heavy ties leave fewer bins.

    Args:
        probs: [B, C].
        target: [B], labels.
        num_bins: Most bins; at most one per row.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25], [1.0, 0.0]])
        >>> adaptive_ece(probs, torch.tensor([0, 1]), num_bins=2)  # (|0.75 - 1| + |1 - 0|) / 2
        0.625
    """
    check_num_bins(num_bins)
    confidence, hit = _top_label(probs, target)
    return _l1_error(confidence, hit, _equal_mass_edges(confidence, num_bins))


def classwise_ece(probs: Tensor, target: Tensor, num_bins: int = 15) -> float:
    """Mean over classes of the L1 error of each class's own probability (Kull et al. 2019).

    Args:
        probs: [B, C].
        target: [B], labels.
        num_bins: Equal-width bins per class.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
        >>> classwise_ece(probs, torch.tensor([0, 1]))
        0.25
    """
    check_num_bins(num_bins)
    probs, target = check_probs(probs, target)
    edges = _equal_width_edges(num_bins)
    total = 0.0
    for columns, hit in _class_blocks(probs, target):
        total += _l1_error(columns, hit, edges) * columns.shape[0]
    return total / probs.shape[1]


def marginal_calibration_error(probs: Tensor, target: Tensor) -> float:
    """Debiased L2 marginal calibration error (Kumar, Liang and Ma 2019).

    What the SSVI authors report as "ECE": the value of ``get_calibration_error(probs, labels)`` of
    the PyPI package ``uncertainty-calibration`` with its defaults. Per class k, with bins b of mean
    probability p_b, frequency y_b of the class and n_b of the n rows::

        error_k = Σ_b (n_b / n) [(p_b − y_b)² − y_b (1 − y_b) / (n_b − 1)]     (n_b ≥ 2)
        result  = √ mean_k max(error_k, 0)

    The bins have equal mass (15 per class), or one per distinct value if every class has fewer than
    n/4 distinct probabilities (a model that was binned itself).

    Args:
        probs: [B, C]. The dtype matters where neighbouring floats meet a bin edge, as it does in
            the package: edges are midpoints rounded to it.
        target: [B], labels.

    Example:
        >>> probs = torch.tensor([[0.5, 0.5]]).expand(8, 2)
        >>> round(marginal_calibration_error(probs, torch.zeros(8, dtype=torch.int64)), 6)
        0.5
    """
    probs, target = check_probs(probs, target)
    binned = all(_has_few_values(columns) for columns, _ in _class_blocks(probs, target))
    total = 0.0
    for columns, hit in _class_blocks(probs, target):
        edges = _value_edges(columns) if binned else _equal_mass_edges(columns, _MARGINAL_BINS)
        total += float(_debiased_square_error(columns, hit, edges).clamp(min=0).sum())
    return math.sqrt(total / probs.shape[1])


def reliability_curve(probs: Tensor, target: Tensor, num_bins: int = 15) -> ReliabilityCurve:
    """Confidence and accuracy of the top label per equal-width bin; the bins of :func:`ece`.

    Args:
        probs: [B, C].
        target: [B], labels.
        num_bins: M.

    Example:
        >>> curve = reliability_curve(torch.tensor([[0.75, 0.25]]), torch.tensor([0]), num_bins=2)
        >>> curve.to_json()["accuracy"], curve.count.tolist()
        ([None, 1.0], [0, 1])
    """
    check_num_bins(num_bins)
    confidence, hit = _top_label(probs, target)
    edges = _equal_width_edges(num_bins)
    count, confidence_sum, hit_sum = (part[0] for part in _bin_sums(confidence, hit, edges))
    return ReliabilityCurve(
        edges=torch.cat([torch.zeros(1, dtype=torch.float64), edges[0]]),
        confidence=confidence_sum / count,  # 0 / 0 = NaN marks an empty bin
        accuracy=hit_sum / count,
        count=count.to(torch.int64),
    )


def _top_label(probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and correctness of the predicted class, each [1, B]."""
    probs, target = check_probs(probs, target)
    confidence, predicted = probs.max(dim=1)
    return confidence[None], (predicted == target)[None]


def _class_blocks(probs: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the columns as rows [c, B] with the class indicator [c, B], in blocks of classes."""
    num_rows, num_classes = probs.shape
    step = max(1, _BLOCK_ELEMENTS // num_rows)
    classes = torch.arange(num_classes)
    for k in range(0, num_classes, step):
        yield probs[:, k : k + step].T, classes[k : k + step, None] == target


def _equal_width_edges(num_bins: int) -> Tensor:
    """Upper edges m/M, [1, M]."""
    return (torch.arange(1, num_bins + 1, dtype=torch.float64) / num_bins)[None]


def _equal_mass_edges(values: Tensor, num_bins: int) -> Tensor:
    """Upper edges [g, M] that cut each row of ``values`` [g, B] into M nearly equal shares."""
    num_values = values.shape[1]
    num_bins = min(num_bins, num_values)
    share, rest = divmod(num_values, num_bins)
    bins = torch.arange(1, num_bins)
    cuts = bins * share + bins.clamp(max=rest)  # the first `rest` shares hold one more
    ordered = values.sort(dim=1).values
    return _with_last_edge((ordered[:, cuts - 1] + ordered[:, cuts]) / 2)


def _value_edges(values: Tensor) -> Tensor:
    """Upper edges [g, B] between the distinct values of each row of ``values`` [g, B]."""
    ordered = values.sort(dim=1).values
    low, high = ordered[:, :-1], ordered[:, 1:]
    # An edge at a repeated value would part it from a next float to which the midpoint rounds up.
    middle = torch.where(low < high, (low + high) / 2, torch.ones_like(low))
    return _with_last_edge(middle.sort(dim=1).values)


def _with_last_edge(edges: Tensor) -> Tensor:
    """``edges`` [g, M - 1] closed with 1; a midpoint of rounding excesses must not pass it."""
    return torch.cat([edges.clamp(max=1), edges.new_ones(edges.shape[0], 1)], dim=1)


def _has_few_values(values: Tensor) -> bool:
    """Whether every row of ``values`` [g, B] has fewer than B/4 distinct ones."""
    ordered = values.sort(dim=1).values
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(dim=1)
    return bool((4 * distinct < values.shape[1]).all())


def _bin_sums(values: Tensor, hit: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin the count, the sum of values and the sum of hits.

    Args:
        values: [g, B], probabilities.
        hit: [g, B], bool.
        edges: [g, M] or [1, M], increasing upper edges; a value belongs to the first edge >= it.

    Returns:
        Three float64 tensors [g, M]; counts stay exact up to 2^53.
    """
    num_groups = values.shape[0]
    values = values.double().contiguous()
    edges = edges.double().expand(num_groups, -1).contiguous()
    # A rounding excess above 1 belongs to the last bin.
    index = torch.searchsorted(edges, values).clamp_(max=edges.shape[1] - 1)
    empty = torch.zeros_like(edges)
    return (
        empty.scatter_add(1, index, torch.ones_like(values)),
        empty.scatter_add(1, index, values),
        empty.scatter_add(1, index, hit.double()),
    )


def _l1_error(values: Tensor, hit: Tensor, edges: Tensor) -> float:
    """Σ_b (n_b / n) |mean value − mean hit|, averaged over the rows of ``values``."""
    _, value_sum, hit_sum = _bin_sums(values, hit, edges)
    return float((value_sum - hit_sum).abs().sum() / values.numel())


def _debiased_square_error(values: Tensor, hit: Tensor, edges: Tensor) -> Tensor:
    """Squared error of each row of ``values`` [g, B], less its sampling variance: [g]."""
    count, value_sum, hit_sum = _bin_sums(values, hit, edges)
    # Bins of fewer than two rows have no variance estimate: they count as 0, as in the package.
    usable = count >= 2
    size = torch.where(usable, count, torch.full_like(count, 2.0))
    frequency = hit_sum / size
    error = ((value_sum - hit_sum) / size).square() - frequency * (1 - frequency) / (size - 1)
    return torch.where(usable, count * error, torch.zeros_like(count)).sum(dim=1) / values.shape[1]


def _none_where_empty(values: Tensor, full: Tensor) -> list[float | None]:
    return [float(value) if keep else None for value, keep in zip(values, full, strict=True)]
