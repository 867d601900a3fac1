"""The experiment: every contender on every problem under five seeds, then the cost of steps."""

from __future__ import annotations

from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.gossamer.uncertainty.checks import FOREIGN, SCORE, auroc_key, verdicts
from gossamer.experiments.gossamer.uncertainty.contenders import CONTENDERS, parts_of
from gossamer.experiments.gossamer.uncertainty.costs import Contest, cost
from gossamer.experiments.gossamer.uncertainty.measuring import FORMS, Measured, measure, told
from gossamer.experiments.gossamer.uncertainty.problems import SCALES, Problem, problems_of
from gossamer.experiments.gossamer.uncertainty.rows import COST, Board, Line, board_of, task_name
from gossamer.experiments.outcome import Outcome, TextTable
from gossamer.experiments.task import FunctionTask, Task, Values
from gossamer.report.front_figures import draw_front
from gossamer.report.quantities import format_spread, quantity
from gossamer.report.style import draw_file
from gossamer.train.quality import QUALITIES

_SHOWN_FORMS = {"none": "", "temperature": " + temperature", "last_layer": " + last layer"}
_LABELS = ("accuracy", "nll", "ece", "aurc")
_NUMBERS = ("rmse", "nll", "crps", "coverage")


def tasks(scope: Scope) -> list[Task]:
    """Problem by problem, seed by seed, so that contenders take turns; times last, alone."""
    found: list[Task] = []
    for problem in problems_of(scope.scale):
        for seed in range(scope.seed, scope.seed + scope.repeats):
            base = problem.seeded(seed, scope.data_dir, scope.device)
            found += [
                FunctionTask(
                    task_name(problem.key, contender.key, seed),
                    measure,
                    Measured(told(contender.of(base)), parts_of(contender, base)),
                )
                for contender in CONTENDERS
                if contender.part_of is None
            ]
        base = problem.seeded(scope.seed, scope.data_dir, "cpu")
        configs = {contender.key: told(contender.of(base)) for contender in CONTENDERS}
        found.append(FunctionTask(f"{problem.key}-{COST}", cost, Contest(configs), alone=True))
    return found


def conclude(found: Finished) -> Outcome:
    """A table for every problem, the checks, and the front."""
    boards = {
        problem.key: board_of(problem.key, found) for problem in problems_of(found.scope.scale)
    }
    parts: list[TextTable | str] = []
    for problem in problems_of(found.scope.scale):
        parts += [f"**{problem.label}**", _table(problem, boards[problem.key])]
    parts.append(
        "Mean ± standard error over seeds. Cost: processor time of a training step over RigL's."
    )
    fronts = {
        problem.label: _points(boards[problem.key])
        for problem in problems_of(found.scope.scale)
        if boards[problem.key].lines
    }
    figures = {}
    if fronts:
        title = "NLL against training time and bytes, all contenders"
        figures["front.svg"] = draw_file(draw_front, fronts, title=title)
    values: Values = {
        "problems": {key: _values(board) for key, board in boards.items()},
        "front": fronts,
    }
    return Outcome(values, tuple(parts), verdicts(boards), figures)


def _metrics(problem: Problem) -> list[str]:
    if problem.config.data not in ("energy", "concrete", "protein"):
        outsiders = problem.config.ood
        keys = [f"auroc_{o}" if n else "auroc" for n, o in enumerate(outsiders)]
        by_mi = [auroc_key(problem.key, outsider) for outsider in outsiders]
        return [*_LABELS, *(key for pair in zip(keys, by_mi, strict=True) for key in pair)]
    return list(_NUMBERS)


def _heading(problem: Problem, metric: str) -> str:
    for number, outsider in enumerate(problem.config.ood):
        plain = f"auroc_{outsider}" if number else "auroc"
        if metric == plain:
            return f"{outsider} entropy ↑"
        if metric == auroc_key(problem.key, outsider):
            return f"{outsider} MI ↑"
    return f"{quantity(metric).label} {quantity(metric).arrow}".strip()


def _table(problem: Problem, board: Board) -> TextTable:
    metrics = _metrics(problem)
    rows = []
    for (contender, form), line in _in_order(board):
        label = line.label + _SHOWN_FORMS[form]
        cost_text = f"{board.cost(contender):.2f}" if board.costs else "–"
        rows.append([label, str(_count(line)), cost_text, *(_shown(line, m) for m in metrics)])
    headings = ["", "n", "cost", *(_heading(problem, metric) for metric in metrics)]
    return TextTable(headings, rows)


def _in_order(board: Board) -> list[tuple[tuple[str, str], Line]]:
    """By contender, forms side by side."""
    places = {contender.key: number for number, contender in enumerate(CONTENDERS)}
    return sorted(
        board.lines.items(),
        key=lambda item: (places[item[0][0]], item[0][0], FORMS.index(item[0][1])),
    )


def _count(line: Line) -> int:
    return max((len(values) for values in line.figures.values()), default=0)


def _shown(line: Line, metric: str) -> str:
    found = line.estimate(metric)
    return "–" if found is None else format_spread(metric, found.mean, found.standard_error)


def _points(board: Board) -> list[Values]:
    """One per contender, in the form that suits it: ours finished, the others at a temperature."""
    points = []
    for (contender, form), line in _in_order(board):
        ours = contender in QUALITIES
        found = line.estimate("nll")
        if form != ("last_layer" if ours else "temperature") or found is None:
            continue
        points.append(
            {
                "name": contender,
                "nll": found.mean,
                "error": found.standard_error,
                "cost": board.cost(contender),
                "bytes": board.bytes(contender),
                "ours": ours,
            }
        )
    return points


def _values(board: Board) -> Values:
    lines = {
        f"{contender}/{form}": {
            metric: {"mean": found.mean, "standard_error": found.standard_error, "n": found.n}
            for metric in line.figures
            if (found := line.estimate(metric)) is not None
        }
        for (contender, form), line in board.lines.items()
    }
    return {"lines": lines, "costs": dict(board.costs), "score": SCORE, "foreign": FOREIGN}


EXPERIMENT = Experiment(
    key="gossamer/uncertainty",
    title="What honest uncertainty costs: our presets and what a user would pick instead",
    tasks=tasks,
    conclude=conclude,
    scales=tuple(SCALES),
    repeats=dict.fromkeys(SCALES, 5),
    jobs=None,
    threads=1,
)
