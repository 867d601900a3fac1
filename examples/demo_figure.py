"""The README figure from the demo: ``demo_figure.py runs/demo docs/figures/demo.svg``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

_COLOURS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#777777")
_PANELS = (
    ("checkpoint_bytes", "checkpoint, kB", 1e-3),
    ("accuracy", "test accuracy, %", 100.0),
    ("ece", "calibration error (ECE), %", 100.0),
)


def main(folder: Path, out: Path) -> None:
    """Draw three panels of dots with standard errors, one dot per method."""
    found = folder / "outcome.json"
    if not found.exists():
        found = folder / "table.json"  # folders of earlier versions
    rows = json.loads(found.read_text(encoding="utf-8"))["rows"]
    figure = Figure(figsize=(9.0, 2.4), layout="constrained")
    labels = [row["label"] for row in rows]
    for place, (metric, title, factor) in enumerate(_PANELS, start=1):
        axes = figure.add_subplot(1, len(_PANELS), place)
        for y, (row, colour) in enumerate(zip(rows, _COLOURS, strict=False)):
            error = factor * row["standard_error"].get(metric, 0.0)
            axes.errorbar(factor * row[metric], y, xerr=error, fmt="o", color=colour, capsize=3)
        axes.set_yticks(range(len(labels)), labels if place == 1 else [""] * len(labels))
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        if metric == "checkpoint_bytes":
            axes.set_xscale("log")
        axes.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    # The same table gives the same file: no date, no random names of clip paths.
    with rc_context({"svg.hashsalt": "gossamer"}):
        figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
