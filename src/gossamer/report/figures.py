"""All plots of the report, in the order of the page."""

from __future__ import annotations

from gossamer.report import (
    calibration_figures,
    selection_figures,
    selective_figures,
    shift_figures,
    sparsity_figures,
    training_figures,
)
from gossamer.report.plots import Plot

PLOTS: tuple[Plot, ...] = (
    *selection_figures.PLOTS,
    *training_figures.PLOTS,
    *calibration_figures.CALIBRATION,
    *selective_figures.PLOTS,
    *calibration_figures.UNCERTAINTY,
    *shift_figures.PLOTS,
    *sparsity_figures.PLOTS,
)
