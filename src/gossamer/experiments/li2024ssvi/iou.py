"""Which weights the criteria would remove: IoU of removed sets along a run (Fig. 5, Tables 5-7).

Every matrix is computed twice, exactly and with the formulas as printed in float32, because the
paper finds that criteria 2 and 4 part during training, which is impossible (docs/criteria.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from torch import Tensor

from gossamer.core.removal import REMOVAL
from gossamer.errors import InvalidValue
from gossamer.experiments.earlier import earlier
from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.fits import fit_of
from gossamer.experiments.li2024ssvi.fashion import base_config
from gossamer.experiments.li2024ssvi.printed import PRINTED
from gossamer.experiments.li2024ssvi.removed_sets import Matrix, iou_matrix
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable
from gossamer.experiments.task import FunctionTask, Values
from gossamer.inference import StepInfo
from gossamer.inference.gradient import GradientMethod
from gossamer.inference.subspace import Subspace
from gossamer.train import Epoch, Fit, Observer, RunConfig

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


def iou_along_run(config: RunConfig, watch: Watch) -> list[SwapIoU]:
    """Train an SSVI run and compare the criteria at every swap, on the very numbers it ranks.

    Args:
        config: A run of a method that swaps by removal scores.
        watch: Told after every epoch.
    """
    _, fit = fit_of(config)
    method = fit.method
    if not isinstance(method, GradientMethod) or method.subspace is None:
        raise InvalidValue("method", config.method, "has no support to swap", "use ssvi")
    compared = _Compared(_listen(method.subspace), watch)
    fit.observers.append(compared)
    fit.run()
    return compared.found


class _Compared(Observer):
    """Compares the criteria at every swap, on what was scored in its step."""

    def __init__(self, seen: list[tuple[Tensor, Tensor]], watch: Watch) -> None:
        self.found: list[SwapIoU] = []
        self._seen, self._watch = seen, watch

    def on_step(self, fit: Fit, info: StepInfo) -> None:
        seen, swap = self._seen, info.swap
        count = sum(int(swap.fraction * mean.numel()) for mean, _ in seen) if swap else 0
        # The last swaps of a short run may remove nothing at all: there is no set to compare.
        if swap is not None and count > 0:
            self.found.append(
                SwapIoU(
                    swap.step,
                    swap.fraction,
                    count,
                    iou_matrix(seen, swap.fraction, EXACT),
                    iou_matrix(seen, swap.fraction, PRINTED),
                )
            )
        seen.clear()

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        self._watch.tell(epoch.epoch / fit.epochs, f"{len(self.found)} swaps compared")


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


def swaps(config: RunConfig, watch: Watch) -> Values:
    """Every swap in short, and three in full."""
    found = iou_along_run(config, watch)
    return {
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
        "stages": {stage: at.to_json() for stage, at in stages(found).items()},
    }


def tasks(scope: Scope) -> list[FunctionTask[RunConfig]]:
    """The SSVI run at 95 % of ``li2024ssvi/fashion``."""
    config = replace(
        base_config(scope.data_dir),
        method="ssvi",
        method_options=earlier("ssvi", {"sparsity": 0.95}),
        seed=scope.seed,
        device=scope.device,
        ood=(),
    )
    return [FunctionTask("ssvi-95", swaps, config)]


def conclude(found: Finished) -> Outcome:
    """Tables 5-7, exact beside printed: ``exact / printed``."""
    values: Values = next(iter(found.rows.values()), {"swaps": [], "stages": {}})
    parts: list[TextTable | str] = []
    for stage, at in values["stages"].items():
        exact, printed = at["exact"], at["printed"]
        rows = [[a, *(f"{exact[a][b]:.4f} / {printed[a][b]:.4f}" for b in exact)] for a in exact]
        text = (
            f"At the {stage}: step {at['step']}, {at['removed']} weights "
            f"({100 * at['fraction']:.3g} %) removed; exact / printed in float32; mean of the ten "
            f"pairs of criteria 1-5: {at['average_exact']:.4f} / {at['average_printed']:.4f}"
        )
        parts += [text, TextTable(["", *exact], rows)]
    return Outcome(values, tuple(parts))


EXPERIMENT = Experiment(
    key="li2024ssvi/iou",
    title="IoU of the sets that criteria 1-6 remove, exact and as printed (Fig. 5, Tables 5-7)",
    tasks=tasks,
    conclude=conclude,
)
