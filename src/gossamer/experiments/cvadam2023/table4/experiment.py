"""The tasks of ``cvadam2023/table4`` and what they come to.

Every repeat draws its own data, with an independent test set. Where the settings are not the
authors', :mod:`gossamer.experiments.cvadam2023.table4.settings` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gossamer.estimates import Estimate
from gossamer.experiments.cvadam2023.table4 import repeat, timing
from gossamer.experiments.cvadam2023.table4.settings import METHODS, RepeatSettings
from gossamer.experiments.cvadam2023.table4.timing import TimingSettings
from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.outcome import Outcome, TextTable, Verdict
from gossamer.experiments.table import Figures, expected_figures
from gossamer.experiments.task import FunctionTask, Task, Values

_EXPERIMENT = "cvadam2023/table4"
_TIMING = "timing"
_SMALL_CYCLES = 1
"""The first of the six, which for Example 1 is 500 epochs."""

BOUNDS = {1: ("mse", 1.32), 2: ("mse", 2.46), 3: ("accuracy", 0.935)}
"""What the mean over the repeats must reach at the authors' number of epochs."""

_TOLD = ("mse", "accuracy", "mse_ensemble", "accuracy_ensemble", "num_selected")
_NUMBERS = ("fdr", "fndr", "miss_rate", "num_selected", "nnz", "seconds")


def tasks(scope: Scope) -> list[Task]:
    """Small: Example 1, DFP, the first cycle. Paper: all, at the authors' numbers of epochs."""
    small = scope.scale == "small"
    cycles = _SMALL_CYCLES if small else None
    found: list[Task] = [
        FunctionTask(
            f"{_key(example, method)}-r{number}",
            repeat.carry_out,
            RepeatSettings.of(
                example, method, number, seed=scope.seed, cycles=cycles, device=scope.device
            ),
            _TOLD,
        )
        # What there is after an interruption: all of DFP, then fewer repeats of DPF.
        for method in (METHODS[:1] if small else METHODS)
        for number in range(scope.repeats)
        for example in ((1,) if small else (1, 2, 3))
    ]
    measured = TimingSettings.of(1, "dfp", 0, seed=scope.seed)  # of the CPU, wherever repeats are
    return [*found, FunctionTask(_TIMING, timing.carry_out, measured, ("ratio",), alone=True)]


def conclude(found: Finished) -> Outcome:
    """Means and standard errors beside the paper's figures, and the verdicts."""
    repeats = [row for name, row in found.rows.items() if name != _TIMING]
    repeats.sort(key=lambda row: (row["example"], row["method"], row["repeat"]))
    lines: dict[str, list[Values]] = {}
    for row in repeats:
        lines.setdefault(_key(row["example"], row["method"]), []).append(row)
    measured = found.rows.get(_TIMING)
    return Outcome(
        values={
            "rows": repeats,
            "lines": [_line_json(key, members) for key, members in lines.items()],
            "timing": measured,
        },
        parts=(
            _table(lines),
            _NOTE,
            *_rivals(lines),
            "Selected variables of every repeat:",
            _selected(repeats),
            *([] if measured is None else [timing.describe(measured)]),
        ),
        verdicts=tuple(verdicts(lines, found.scope.scale)),
    )


def verdicts(lines: Mapping[str, Sequence[Values]], scale: str) -> list[Verdict]:
    """FDR and FNDR are 0 in every repeat; at the authors' epochs the errors are in their bounds."""
    found = []
    for key, members in lines.items():
        wrong = [str(row["repeat"]) for row in members if row["fdr"] > 0.0 or row["fndr"] > 0.0]
        right = f"{len(members) - len(wrong)} of {len(members)} repeats"
        text = right + (f"; not in repeat {', '.join(wrong)}" if wrong else "")
        found.append(Verdict(f"{key}: FDR = FNDR = 0 in every repeat", not wrong, text))
    if scale == "small":  # a sixth of the epochs has no bound to keep
        return found
    for key, members in lines.items():
        metric, bound = BOUNDS[members[0]["example"]]
        for suffix, of in (("", "last sample"), ("_ensemble", "ensemble")):
            got = _estimate(members, metric + suffix)
            ok = got.mean <= bound if metric == "mse" else got.mean >= bound
            sign = "≤" if metric == "mse" else "≥"
            name = f"{key}: {_NAMES[metric]} of the {of} {sign} {_figure(metric, bound)}"
            found.append(Verdict(name, ok, _spread(metric, got)))
    return found


def _key(example: int, method: str) -> str:
    return f"example{example}-{method}"


def _label(key: str) -> str:
    example, _, method = key.partition("-")
    return f"Example {example.removeprefix('example')}, {method.upper()}"


def _metric(members: Sequence[Values]) -> str:
    return "mse" if "mse" in members[0] else "accuracy"


def _estimate(members: Sequence[Values], name: str) -> Estimate:
    # A number that is not finite is null in a file; it must not vanish from the mean.
    values = [row[name] for row in members]
    return Estimate.of([float("nan") if value is None else float(value) for value in values])


def _line_json(key: str, members: Sequence[Values]) -> Values:
    metric = _metric(members)
    names = (metric, f"{metric}_cycle", f"{metric}_ensemble", *_NUMBERS)
    found = {name: _estimate(members, name) for name in names}
    return {
        "key": key,
        "label": _label(key),
        "n": len(members),
        **{name: one.mean for name, one in found.items()},
        "standard_error": {name: one.standard_error for name, one in found.items()},
        "paper": _paper().get(key, {}),
    }


def _paper() -> Figures:
    return expected_figures(_EXPERIMENT)


_NAMES = {"mse": "MSE", "accuracy": "accuracy"}


def _figure(metric: str, value: float) -> str:
    """As Table 4 prints it: squared errors as they are, shares in percent."""
    if metric == "mse":
        return f"{value:.3f}"
    if metric in ("num_selected", "nnz"):
        return f"{value:.4g}"
    return f"{value:.0f} s" if metric == "seconds" else f"{100.0 * value:.2f} %"


def _spread(metric: str, got: Estimate) -> str:
    error = got.standard_error
    return _figure(metric, got.mean) + (f" ± {_figure(metric, error)}" if error else "")


def _table(lines: Mapping[str, Sequence[Values]]) -> TextTable:
    headings = ["", "n", "MSE or accuracy, last sample", "last cycle", "all cycles", "paper"]
    headings += ["FDR", "FNDR", "miss rate", "selected", "nnz", "time"]
    rows = []
    for key, members in lines.items():
        metric = _metric(members)
        paper = _paper().get(key, {}).get(metric)
        rows.append(
            [
                _label(key),
                str(len(members)),
                *(
                    _spread(metric, _estimate(members, metric + suffix))
                    for suffix in ("", "_cycle", "_ensemble")
                ),
                "–" if paper is None else _figure(metric, paper),
                *(_spread(name, _estimate(members, name)) for name in _NUMBERS),
            ]
        )
    return TextTable(headings, rows)


_NOTE = (
    "Mean ± standard error over n repeats with fresh data; test points independent of the training "
    "points. Settings are the authors' but for the choice among chains, the cycles and spikes of "
    "Example 2, Example 3 and DPF, and DPF's λ₂ and, in Example 2, warm-up, chosen on training "
    "points. The paper's figures are means of 10 repeats too."
)


def _rivals(lines: Mapping[str, Sequence[Values]]) -> list[TextTable]:
    """What the paper prints for other methods on the examples that were run."""
    examples = sorted({members[0]["example"] for members in lines.values()})
    rows = []
    for method in ("splbnn", "svbnn"):
        row = [method.upper()]
        for example in examples:
            figures = _paper()[_key(example, method)]
            metric = BOUNDS[example][0]
            row += [_figure(metric, figures[metric]), _figure("fdr", figures["fdr"])]
        rows.append(row)
    headings = ["paper, other methods"]
    for example in examples:
        headings += [f"Example {example}: {_NAMES[BOUNDS[example][0]]}", "FDR"]
    return [TextTable(headings, rows)] if examples else []


def _selected(repeats: Sequence[Values]) -> TextTable:
    rows = [
        [
            _label(_key(row["example"], row["method"])),
            str(row["repeat"]),
            _figure(_metric([row]), _estimate([row], _metric([row])).mean),
            ", ".join(map(str, row["selected"])),
        ]
        for row in repeats
    ]
    return TextTable(["", "repeat", "last sample", "selected"], rows)


EXPERIMENT = Experiment(
    key=_EXPERIMENT,
    title="variable selection by EM-MCMC on the simulated examples",
    tasks=tasks,
    conclude=conclude,
    scales=("small", "paper"),
    repeats={"small": 2, "paper": 10},
    jobs=None,
    threads=1,
)
