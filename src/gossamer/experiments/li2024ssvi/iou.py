"""Which weights the criteria would remove: IoU of removed sets along a run (Fig. 5, Tables 5-7).

Every matrix is computed twice, exactly and with the formulas as printed in float32, because the
paper finds that criteria 2 and 4 part during training, which is impossible (docs/criteria.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gossamer.core.removal import REMOVAL
from gossamer.data import batches
from gossamer.errors import InvalidValue
from gossamer.experiments.li2024ssvi.fashion import base_config
from gossamer.experiments.li2024ssvi.printed import PRINTED
from gossamer.experiments.li2024ssvi.removed_sets import Matrix, iou_matrix
from gossamer.experiments.study import Findings, Study
from gossamer.inference.gradient import GradientMethod
from gossamer.inference.subspace import Subspace
from gossamer.train import RunConfig
from gossamer.train.assembly import assemble

AVERAGED = ("mean_abs", "snr", "e_abs", "snr_abs", "e_exp")
"""The five criteria whose ten pairs Fig. 5 averages."""

EXACT = {name: REMOVAL[name] for name in PRINTED}
"""The same criteria, accurate."""


@dataclass(frozen=True)
class SwapIoU:
    """IoU of the removed sets at one swap.

    Attributes:
        step: Optimiser steps done.
        fraction: r_t.
        removed: Weights that leave in all layers together, before any wins its place back.
        exact: ``exact[a][b]`` for all pairs of criteria, accurate scores.
        printed: The same with the printed formulas in float32.
    """

    step: int
    fraction: float
    removed: int
    exact: Matrix
    printed: Matrix

    def average(self, kind: str) -> float:
        """Mean over the ten pairs of ``AVERAGED``: a point of Fig. 5."""
        matrix = self.exact if kind == "exact" else self.printed
        pairs = list(combinations(AVERAGED, 2))
        return sum(matrix[a][b] for a, b in pairs) / len(pairs)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "step": self.step,
            "fraction": self.fraction,
            "removed": self.removed,
            "average_exact": self.average("exact"),
            "average_printed": self.average("printed"),
            "exact": self.exact,
            "printed": self.printed,
        }


def iou_along_run(config: RunConfig, notice: Callable[[str], None] | None = None) -> list[SwapIoU]:
    """Train an SSVI run and compare the criteria at every swap, on the very numbers it ranks.

    Args:
        config: A run of a method that swaps by removal scores.
        notice: Called with a line of progress per epoch.
    """
    torch.manual_seed(config.seed)
    assembly = assemble(config)
    method = assembly.method
    if not isinstance(method, GradientMethod) or method.subspace is None:
        raise InvalidValue("method", config.method, "has no support to swap", "use ssvi")
    seen = _listen(method.subspace)
    generator = torch.Generator().manual_seed(config.seed)
    found = []
    for epoch in range(config.epochs):
        data = assembly.dataset
        for batch in batches(data.x_train, data.y_train, config.batch_size, generator):
            seen.clear()
            swap = method.step(batch).swap
            count = sum(int(swap.fraction * mean.numel()) for mean, _ in seen) if swap else 0
            # The last swaps of a short run may remove nothing at all: there is no set to compare.
            if swap is not None and count > 0:
                found.append(
                    SwapIoU(
                        swap.step,
                        swap.fraction,
                        count,
                        iou_matrix(seen, swap.fraction, EXACT),
                        iou_matrix(seen, swap.fraction, PRINTED),
                    )
                )
        if notice is not None:
            notice(f"epoch {epoch + 1}/{config.epochs}: {len(found)} swaps compared")
    return found


def stages(found: list[SwapIoU]) -> dict[str, SwapIoU]:
    """The swaps at the beginning, in the middle and at the end, as Tables 5, 6 and 7 show them."""
    if not found:
        raise InvalidValue("swaps", 0, "the run never swapped", "train longer")
    return {"beginning": found[0], "middle": found[len(found) // 2], "end": found[-1]}


def _listen(subspace: Subspace) -> list[tuple[Tensor, Tensor]]:
    """A list that receives every (mean, std) that the subspace scores."""
    seen: list[tuple[Tensor, Tensor]] = []
    score = subspace.removal_score

    def listening(mean: Tensor, std: Tensor) -> Tensor:
        seen.append((mean.clone(), std.clone()))
        return score(mean, std)

    subspace.removal_score = listening
    return seen


def _markdown(chosen: Mapping[str, SwapIoU]) -> str:
    """Tables 5-7, exact beside printed: ``exact / printed``."""
    names = list(EXACT)
    lines = []
    for stage, at in chosen.items():
        lines += [
            f"At the {stage}: step {at.step}, {at.removed} weights ({100 * at.fraction:.3g} %) "
            f"removed; exact / printed in float32; mean of the ten pairs of criteria 1-5: "
            f"{at.average('exact'):.4f} / {at.average('printed'):.4f}",
            "",
            "| | " + " | ".join(names) + " |",
            "| --- |" + " --- |" * len(names),
        ]
        for row in names:
            cells = [f"{at.exact[row][c]:.4f} / {at.printed[row][c]:.4f}" for c in names]
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def carry_out(*, seed: int, data_dir: str | None, notice: Callable[[str], None]) -> Findings:
    """The SSVI run at 95 % of ``li2024ssvi/fashion``, compared at every swap."""
    options = {"sparsity": 0.95}
    config = replace(
        base_config(data_dir), method="ssvi", method_options=options, seed=seed, ood=()
    )
    found = iou_along_run(config, notice)
    chosen = stages(found)
    return Findings(
        {
            "swaps": [
                {
                    "step": at.step,
                    "fraction": at.fraction,
                    "removed": at.removed,
                    "average_exact": at.average("exact"),
                    "average_printed": at.average("printed"),
                    "snr_vs_snr_abs_exact": at.exact["snr"]["snr_abs"],
                    "snr_vs_snr_abs_printed": at.printed["snr"]["snr_abs"],
                }
                for at in found
            ],
            "stages": {stage: at.to_json() for stage, at in chosen.items()},
        },
        _markdown(chosen),
    )


STUDY = Study(
    key="li2024ssvi/iou",
    title="IoU of the sets that criteria 1-6 remove, exact and as printed (Fig. 5, Tables 5-7)",
    carry_out=carry_out,
)
