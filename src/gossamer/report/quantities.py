"""What is measured: the words, the better direction and the digits of every metric.

One row here names a metric in the terminal table and in the report; a key without a row is shown
under its own name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gossamer.report.keys import shift_key

_QUALITIES = ("ratio", "small", "unit")
_LEAST = 5e-5
"""Below it four decimals would show 0, which it is not."""


@dataclass(frozen=True)
class Quantity:
    """How one metric is shown.

    Attributes:
        label: Its short name.
        meaning: One sentence for a reader who meets it for the first time.
        better: ``"higher"``, ``"lower"`` or ``None`` where neither is.
        form: ``"ratio"`` (4 decimals, 2 from 10 on), ``"small"`` (the same, below 0.1 three
            digits that count), ``"unit"`` (of the target, which may be of any size: below 1
            four digits that count), ``"exact"``, ``"count"``, ``"bytes"`` or ``"seconds"``.
    """

    label: str
    meaning: str = ""
    better: str | None = None
    form: str = "ratio"

    @property
    def arrow(self) -> str:
        """An arrow to the better side for a measure of quality; of size and time all know it."""
        known = {"higher": "↑", "lower": "↓"} if self.form in _QUALITIES else {}
        return known.get(self.better or "", "")


_SCORES = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
    "epistemic": "epistemic std",
}
_SHIFTED: dict[str, tuple[str, str | None]] = {
    "accuracy": ("accuracy", "higher"),
    "rmse": ("RMSE", "lower"),
    "nll": ("NLL", "lower"),
    "ece": ("ECE", "lower"),
    "coverage": ("coverage of 90 %", None),
}
_UNDER_SHIFT = "Mean over all corruptions and severities that were measured."

QUANTITIES: dict[str, Quantity] = {
    "accuracy": Quantity("accuracy", "Share of right answers.", "higher"),
    "roc_auc": Quantity(
        "ROC AUC", "How often a row of the class has more of it than another; macro.", "higher"
    ),
    "average_precision": Quantity(
        "average precision", "Mean precision at the rows of the class; macro.", "higher"
    ),
    "rmse": Quantity(
        "RMSE", "Root of the mean squared error, in units of the target.", "lower", "unit"
    ),
    "mae": Quantity("MAE", "Mean absolute error, in units of the target.", "lower", "unit"),
    "r2": Quantity("R²", "Share of the targets' variance that is explained.", "higher"),
    "nll": Quantity("NLL", "Mean −log probability (nats) given to the truth.", "lower"),
    "brier": Quantity("Brier", "Squared distance of the probabilities from the truth.", "lower"),
    "crps": Quantity(
        "CRPS", "Distance of the predicted distribution from the truth.", "lower", "unit"
    ),
    "ece": Quantity("ECE", "Mean gap of confidence and accuracy, 15 equal-width bins.", "lower"),
    "adaptive_ece": Quantity("adaptive ECE", "The same, in bins of equal mass.", "lower"),
    "classwise_ece": Quantity("classwise ECE", "The same, for every class, averaged.", "lower"),
    "marginal_calibration_error": Quantity(
        "marginal calibration error", "Debiased L2 over the classes; the SSVI paper's ECE.", "lower"
    ),
    "coverage": Quantity("coverage of 90 %", "Share of targets inside their 90 % interval."),
    "width": Quantity(
        "width of 90 %", "Mean width of the 90 % interval, in units of the target.", None, "unit"
    ),
    "interval_level": Quantity("interval level", "Of coverage and width.", None, "exact"),
    "epistemic": Quantity(
        "epistemic std", "Predicted std that more data would remove, RMS.", None, "unit"
    ),
    "aleatoric": Quantity(
        "aleatoric std", "Predicted std of the noise in the target, RMS.", None, "unit"
    ),
    "aurc": Quantity(
        "AURC", "Mean risk over all shares answered, the surest answers first.", "lower", "small"
    ),
    "eaurc": Quantity(
        "excess AURC", "The same, above the best order of these answers.", "lower", "small"
    ),
    **{
        f"aurc_{score}": Quantity(
            f"AURC by {words}", f"The same as AURC, the least {words} first.", "lower", "small"
        )
        for score, words in _SCORES.items()
    },
    "auroc": Quantity("OOD AUROC", "Ranking of out-of-distribution inputs above others.", "higher"),
    **{
        f"auroc_{score}": Quantity(f"OOD AUROC by {words}", f"The same, by {words}.", "higher")
        for score, words in _SCORES.items()
        if score != "entropy"
    },
    "aupr": Quantity("OOD AUPR", "The same, as area under precision and recall.", "higher"),
    "fpr95": Quantity("OOD FPR95", "False alarms when 95 % of the OOD inputs are found.", "lower"),
    **{
        f"shift_{key}": Quantity(
            f"{words} under shift", _UNDER_SHIFT, better, "unit" if key == "rmse" else "ratio"
        )
        for key, (words, better) in _SHIFTED.items()
    },
    "temperature": Quantity("temperature", "What logits are divided by; chosen on held-out rows."),
    "last_layer_scale": Quantity(
        "last layer's scale", "Factor of the last layer's variance; 0 is temperature alone."
    ),
    "calibration_rows": Quantity(
        "calibration rows", "Held-out rows that intervals or label sets rest on.", None, "count"
    ),
    "nnz": Quantity("nnz", "Weights kept.", "lower", "count"),
    "sparsity": Quantity("sparsity", "Share of the weights removed.", None, "exact"),
    "checkpoint_bytes": Quantity("checkpoint", "Size of the saved state.", "lower", "bytes"),
    "seconds": Quantity("fit time", "Wall-clock time of training.", "lower", "seconds"),
    "predict_seconds": Quantity(
        "predict time", "Wall-clock time of predicting the part measured.", "lower", "seconds"
    ),
}


def quantity(key: str) -> Quantity:
    """Returns how a metric is shown.

    A variant such as ``ece_local``, ``auroc_notmnist`` or ``local.ece`` takes the row of the metric
    it is one of, with the rest of its key in brackets; so does ``shift_rotation_3_ece``.
    """
    if key in QUANTITIES:
        return QUANTITIES[key]
    parts = shift_key(key)
    if parts is not None:
        known = quantity(parts.metric)
        return replace(known, label=f"{known.label} ({parts.name} {parts.severity})")
    for base in sorted(QUANTITIES, key=len, reverse=True):
        rest = key.removeprefix(f"{base}_").removesuffix(f".{base}")
        if rest != key:
            return replace(QUANTITIES[base], label=f"{QUANTITIES[base].label} ({rest})")
    return Quantity(key)


def format_number(key: str, value: float) -> str:
    """Writes one value of a metric with its digits and unit."""
    if not math.isfinite(value):
        return str(value)
    form = quantity(key).form
    if form in _SHOWN:
        return _SHOWN[form](value)
    size = abs(value)
    if form == "unit" and 0.0 < size < 1.0:  # of any size: digits that count, not decimals
        text = f"{value:#.4g}"
    elif (form == "small" and size < 0.1) or 0.0 < size < _LEAST:
        text = f"{value:.3g}"
    else:
        text = f"{value:.4f}" if size < 10 else f"{value:,.2f}"
    return text


def format_spread(key: str, mean: float, standard_error: float | None) -> str:
    """Writes ``mean ± standard error``; an error of 0 or none is left out."""
    text = format_number(key, mean)
    if not standard_error:
        return text
    if quantity(key).form == "seconds":
        text = text.removesuffix(" s")
    return f"{text} ± {format_number(key, standard_error)}"


def _format_bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    decimals = 0 if unit == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f} {unit}"


def _format_seconds(value: float) -> str:
    return f"{value:.2g} s" if 0.0 < value < 0.1 else f"{value:,.1f} s"


_SHOWN: dict[str, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "bytes": _format_bytes,
    "seconds": _format_seconds,
    "exact": lambda value: f"{value:.6g}",
}
