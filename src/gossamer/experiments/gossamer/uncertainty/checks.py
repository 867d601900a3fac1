"""What the presets promise, decided by figures of test points.

A difference counts where it is two standard errors of the paired differences over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

from gossamer.experiments.gossamer.uncertainty.problems import PROBLEMS
from gossamer.experiments.gossamer.uncertainty.rows import Board, Line
from gossamer.experiments.outcome import Verdict

FINISH = "last_layer"
"""The form of the presets."""

GREY = ("mnist", "fashion")
FOREIGN = {problem.key: problem.config.ood for problem in PROBLEMS}
"""Sets of another kind, by problem."""

SCORE = "mutual_information"
"""The score that docs/uncertainty.md recommends for inputs of another kind."""

RIVALS = (
    ("rigl", "temperature-scaled RigL's"),
    ("rigl-lr", "temperature-scaled RigL's at twice the learning rate"),
)
"""RigL as it is, and at the learning rate of the presets: what of the gain is not just that."""

Boards = Mapping[str, Board]


def verdicts(boards: Boards) -> tuple[Verdict, ...]:
    """All of them, for the problems that there are."""
    images = [p.key for p in PROBLEMS if p.is_image and p.key in boards]
    found: list[Verdict] = []
    if images:
        found += [_below(boards, images, *rival) for rival in RIVALS]
        found += [
            _cost(boards, images, *each) for each in (("fast", 1.1), ("good", 2.0), ("best", 3.2))
        ]
        found.append(_no_higher(boards, images, "good", "sgd"))
        found.append(_within(boards, images, "best", "ensemble-3", 0.01))
    for key in GREY:
        if key in boards:
            found += [*_calibrated(boards[key], key), *_detects(boards[key], key)]
    return tuple(found)


def auroc_key(problem: str, outsider: str, score: str = SCORE) -> str:
    """The metric's key; the first outsider has the plain one."""
    plain = f"auroc_{score}"
    return plain if FOREIGN[problem][0] == outsider else f"{plain}_{outsider}"


def line(board: Board, contender: str, form: str = FINISH) -> Line:
    """A line; an empty one where it is missing, on which no check passes."""
    return board.lines.get((contender, form), Line(contender, contender, form, {}))


def _below(boards: Boards, images: list[str], rival: str, label: str) -> Verdict:
    below, above, told = 0, 0, []
    for key in images:
        gap = line(boards[key], "fast").below(line(boards[key], rival, "temperature"), "nll")
        if gap is None or gap.standard_error is None:
            told.append(f"{key}: no figures")
            continue
        below += gap.mean > 2.0 * gap.standard_error
        above += gap.mean < -2.0 * gap.standard_error
        told.append(f"{key} {gap.mean:+.4f} ± {gap.standard_error:.4f}")
    ok = below >= min(3, len(images)) and above == 0
    name = f"fast: NLL below {label} on three image sets, above on none"
    return Verdict(name, ok, ", ".join(told))


def _cost(boards: Boards, images: list[str], preset: str, most: float) -> Verdict:
    ratios = {key: boards[key].cost(preset) for key in images}
    told = ", ".join(f"{key} {ratio:.2f}" for key, ratio in ratios.items())
    ok = all(ratio <= most for ratio in ratios.values())
    return Verdict(f"{preset}: a step costs at most {most} of RigL's", ok, told)


def _no_higher(boards: Boards, images: list[str], preset: str, rival: str) -> Verdict:
    gaps = {
        k: line(boards[k], preset).below(line(boards[k], rival, "temperature"), "nll")
        for k in images
    }
    told = ", ".join(f"{key} {gap.mean if gap else nan:+.4f}" for key, gap in gaps.items())
    ok = all(gap is not None and gap.mean >= 0.0 for gap in gaps.values())
    return Verdict(f"{preset}: NLL no higher than that of {rival} with a temperature", ok, told)


def _within(boards: Boards, images: list[str], preset: str, rival: str, room: float) -> Verdict:
    told, ok = [], True
    for key in images:
        ours, theirs = line(boards[key], preset), line(boards[key], rival, "temperature")
        gap = ours.mean("nll") - theirs.mean("nll")
        told.append(f"{key} {gap:+.4f} NLL")
        ok = ok and gap <= room
        for outsider in FOREIGN[key]:
            metric = auroc_key(key, outsider)
            lost = theirs.mean(metric) - ours.mean(metric)
            told.append(f"{outsider} {-lost:+.3f} AUROC")
            ok = ok and lost <= room
    name = f"{preset}: within {room} NLL and AUROC of {rival} with a temperature"
    return Verdict(name, ok, ", ".join(told))


def _calibrated(board: Board, key: str) -> list[Verdict]:
    found = line(board, "fast").estimate("ece")
    mean = nan if found is None else found.mean
    return [Verdict(f"fast: ECE of {key} at most 0.012", mean <= 0.012, f"{mean:.4f}")]


def _detects(board: Board, key: str) -> list[Verdict]:
    found = []
    for outsider in FOREIGN[key]:
        metric = auroc_key(key, outsider)
        ours = line(board, "fast").mean(metric)
        found.append(
            Verdict(
                f"fast: AUROC of {outsider} for {key} at least 0.85", ours >= 0.85, f"{ours:.3f}"
            )
        )
        good, dense = line(board, "good").mean(metric), line(board, "dense_vi", "none").mean(metric)
        text = f"{good:.3f} against {dense:.3f}"
        found.append(
            Verdict(
                f"good: AUROC of {outsider} for {key} no lower than dense VI's", good >= dense, text
            )
        )
    return found
