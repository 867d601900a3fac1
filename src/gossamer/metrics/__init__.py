"""Pure metrics of predictions: tensors in, Python floats out.

Functional cores per idea (classification, calibration, labelling, ranking, regression, selection,
selective) and two shells that take batches (streaming). Nothing here knows of models, methods or
data sets.
"""

from gossamer.metrics.calibration import (
    ReliabilityCurve,
    adaptive_ece,
    classwise_ece,
    ece,
    marginal_calibration_error,
    reliability_curve,
)
from gossamer.metrics.classification import accuracy, brier, nll, nll_from_log_probs
from gossamer.metrics.labelling import average_precision, confusion_matrix, roc_auc
from gossamer.metrics.ranking import aupr, auroc, fpr95, ood_metrics
from gossamer.metrics.regression import (
    gaussian_mixture_cdf,
    gaussian_mixture_coverage,
    gaussian_mixture_crps,
    gaussian_mixture_nll,
    interval_coverage,
    mae,
    mean_interval_width,
    r2,
    rmse,
    sample_crps,
)
from gossamer.metrics.selection import (
    Selection,
    inclusion_probabilities,
    variable_selection,
)
from gossamer.metrics.selective import (
    RiskCoverageCurve,
    SelectiveCurve,
    aurc,
    excess_aurc,
    risk_coverage_curve,
    selective_curve,
)
from gossamer.metrics.streaming import ClassificationMetrics, RegressionMetrics

__all__ = [
    "ClassificationMetrics",
    "RegressionMetrics",
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "Selection",
    "SelectiveCurve",
    "accuracy",
    "adaptive_ece",
    "aupr",
    "aurc",
    "auroc",
    "average_precision",
    "brier",
    "classwise_ece",
    "confusion_matrix",
    "ece",
    "excess_aurc",
    "fpr95",
    "gaussian_mixture_cdf",
    "gaussian_mixture_coverage",
    "gaussian_mixture_crps",
    "gaussian_mixture_nll",
    "inclusion_probabilities",
    "interval_coverage",
    "mae",
    "marginal_calibration_error",
    "mean_interval_width",
    "nll",
    "nll_from_log_probs",
    "ood_metrics",
    "r2",
    "reliability_curve",
    "risk_coverage_curve",
    "rmse",
    "roc_auc",
    "sample_crps",
    "selective_curve",
    "variable_selection",
]
