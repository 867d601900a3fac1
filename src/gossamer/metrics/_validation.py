"""Checks of metric inputs, in one place, so that every metric refuses the same things alike.

All checks return detached tensors on the CPU: a metric is computed once per evaluation, in float64,
which some accelerators do not have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue

# A softmax rounded to bfloat16 misses 1 by up to 2^-8 = 0.4 %, also after it was widened again.
_SUM_TOLERANCE = 1e-2
_HALF = (torch.float16, torch.bfloat16)


def check_real(name: str, value: Tensor) -> Tensor:
    """Check a non-empty tensor of finite real numbers.

    Args:
        name: What the caller calls it, for the message.
        value: Any shape, floating or integer.

    Returns:
        The same numbers as float64 on the CPU, detached.
    """
    _check_tensor(name, value)
    if value.is_complex() or value.dtype == torch.bool:
        raise InvalidData(name, value.dtype, "must hold real numbers", f"pass {name}.float()")
    checked = value.detach().to("cpu", torch.float64)
    _refuse(name, checked, ~checked.isfinite(), "must be finite", "look for a diverged run")
    return checked


def check_vector(name: str, value: Tensor) -> Tensor:
    """Check a non-empty 1-D tensor of finite numbers; returns it as float64 [B]."""
    checked = check_real(name, value)
    if checked.dim() != 1:
        raise InvalidData(f"{name}.shape", tuple(value.shape), "must be [B]", f"flatten {name}")
    return checked


def check_same_shape(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Check that two tensors have one shape; broadcasting would average over the wrong pairs."""
    if value.shape != other.shape:
        raise InvalidData(
            f"{name}.shape",
            tuple(value.shape),
            f"must equal {other_name}.shape {tuple(other.shape)}",
            "reshape one of them; metrics never broadcast",
        )


def check_probs(probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Check class probabilities and labels.

    Args:
        probs: [B, C], C >= 2, entries in [0, 1], rows summing to 1 within 0.01.
        target: [B], integer labels in [0, C).

    Returns:
        ``probs`` in float32 or float64 (half types are widened) and ``target`` in int64.
    """
    checked = _check_class_matrix("probs", probs)
    _refuse("probs", checked, ~checked.isfinite(), "must be finite", "look for a diverged run")
    outside = (checked < 0) | (checked > 1 + _SUM_TOLERANCE)
    _refuse("probs", checked, outside, "must lie in [0, 1]", "apply softmax to logits first")
    _check_total(checked.sum(dim=1, dtype=torch.float64), "probs")
    return checked, _check_labels(target, checked)


def check_log_probs(log_probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Check log-probabilities [B, C] (-inf is a probability of 0) and labels [B]."""
    checked = _check_class_matrix("log_probs", log_probs).double()
    wrong = checked.isnan() | (checked == torch.inf)
    _refuse("log_probs", checked, wrong, "must not be NaN or +inf", "look for a diverged run")
    _check_total(checked.exp().sum(dim=1), "log_probs")
    return checked, _check_labels(target, checked)


def check_mixture(means: Tensor, stds: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check an equally weighted Gaussian mixture per row; returns the three in float64.

    Args:
        means: [S, B] or [S, B, D].
        stds: Of the shape of ``means``, above 0.
        target: [B] or [B, D].
    """
    checked_means, checked_target = check_members("means", means, target)
    checked_stds = check_real("stds", stds)
    check_same_shape("stds", stds, "means", means)
    _refuse("stds", checked_stds, checked_stds <= 0, "must be above 0", "use sample_crps for draws")
    return checked_means, checked_stds, checked_target


def check_members(name: str, members: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Check S predictions [S, B] or [S, B, D] of targets [B] or [B, D]; returns float64."""
    checked, checked_target = check_real(name, members), check_real("target", target)
    if target.dim() not in (1, 2):
        raise InvalidData(
            "target.shape", tuple(target.shape), "must be [B] or [B, D]", "reshape the target"
        )
    if members.shape[1:] != target.shape:
        raise InvalidData(
            f"{name}.shape",
            tuple(members.shape),
            f"must be [S] + target.shape {tuple(target.shape)}",
            "put the samples first",
        )
    return checked, checked_target


def check_interval(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Check interval ends of one shape with ``lower <= upper``; returns them in float64."""
    low, high = check_real("lower", lower), check_real("upper", upper)
    check_same_shape("lower", lower, "upper", upper)
    _refuse("lower", low, low > high, "must not exceed upper", "swap lower and upper")
    return low, high


def check_num_bins(num_bins: int) -> None:
    """Check a number of bins."""
    if isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
        raise InvalidValue("num_bins", num_bins, "must be an integer >= 1", "15 is customary")


def check_level(level: float) -> None:
    """Check the nominal probability of an interval."""
    if not 0 < level < 1:
        raise InvalidValue("level", level, "must lie in (0, 1)", "0.9 is customary")


def _check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise InvalidData(name, kind, "must be a torch tensor", "use torch.as_tensor")
    if value.numel() == 0:
        raise InvalidData(f"{name}.shape", tuple(value.shape), "must hold at least one value")


def _check_class_matrix(name: str, value: Tensor) -> Tensor:
    _check_tensor(name, value)
    if value.dim() != 2 or value.shape[1] < 2:
        raise InvalidData(
            f"{name}.shape",
            tuple(value.shape),
            "must be [B, C] with C >= 2",
            "give a binary problem as two columns, [1 - p, p]",
        )
    if not value.is_floating_point():
        raise InvalidData(f"{name}.dtype", value.dtype, "must be floating", f"pass {name}.float()")
    checked = value.detach().cpu()
    return checked.float() if checked.dtype in _HALF else checked


def _check_labels(target: Tensor, probs: Tensor) -> Tensor:
    _check_tensor("target", target)
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InvalidData("target.dtype", target.dtype, "must be an integer", "pass target.long()")
    if target.shape != probs.shape[:1]:
        raise InvalidData(
            "target.shape",
            tuple(target.shape),
            f"must be [B] = ({probs.shape[0]},)",
            "give one class index per row",
        )
    labels = target.detach().to("cpu", torch.int64)
    wrong = (labels < 0) | (labels >= probs.shape[1])
    _refuse("target", labels, wrong, f"must lie in [0, {probs.shape[1]})", "number classes from 0")
    return labels


def _check_total(total: Tensor, name: str) -> None:
    wrong = (total - 1).abs() > _SUM_TOLERANCE
    rule = f"a row's probabilities must sum to 1 within {_SUM_TOLERANCE:g}"
    _refuse(f"sum of {name}", total, wrong, rule, "apply softmax or log_softmax to logits first")


def _refuse(name: str, value: Tensor, wrong: Tensor, rule: str, hint: str) -> None:
    """Raise about the first wrong element, naming its index."""
    if bool(wrong.any()):
        where = tuple(int(i) for i in wrong.nonzero()[0])
        place = ", ".join(map(str, where))
        raise InvalidData(f"{name}[{place}]", value[where].item(), rule, hint)
