"""What a survey is: many independent tasks, each of which gives one row of figures.

Tasks run in processes of their own, one thread each. A finished row is a file, so that the same
call goes on after an interruption; a task that was at work begins anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gossamer.errors import CheckpointError, InvalidValue, UnknownName
from gossamer.experiments.processes import available_cores
from gossamer.experiments.progress import TableProgress, default_table_progress
from gossamer.experiments.result import Verdict
from gossamer.experiments.table import SCALES
from gossamer.experiments.tasks import EndedTask, SurveyTask, Values, run_tasks
from gossamer.report.quantities import format_number, quantity
from gossamer.train.atomic import TEMPORARY, read_json, write_json
from gossamer.train.folder import gossamer_version

_JSON, _MARKDOWN, _ROWS = "survey.json", "survey.md", "rows"


@dataclass(frozen=True)
class Conclusion:
    """What the rows come to.

    Attributes:
        values: JSON values; the rows are among them under ``rows``.
        markdown: The same for a reader.
        verdicts: How the checks came out.
    """

    values: Values
    markdown: str
    verdicts: tuple[Verdict, ...] = ()


class MakeTasks(Protocol):
    """A function that gives all tasks of a survey."""

    def __call__(self, *, scale: str, seed: int, repeats: int) -> Sequence[SurveyTask]:
        """The tasks at a scale."""
        ...


class Conclude(Protocol):
    """A function that makes a table of rows."""

    def __call__(self, rows: Mapping[str, Values], *, scale: str) -> Conclusion:
        """From the rows by name of their task, in the order of the tasks; some may be missing."""
        ...


@dataclass(frozen=True)
class Survey:
    """One survey.

    Attributes:
        key: ``PAPER/NAME``.
        title: One line.
        tasks: Gives its tasks.
        carry_out: Does one task: from its settings to its row. A function of a module, since other
            processes must find it; it fixes its own seeds.
        conclude: Makes the table.
        figures: Keys of a row that are told when it is finished.
        repeats: Repeats unless told, by scale.
        scales: The scales it has.
    """

    key: str
    title: str
    tasks: MakeTasks
    carry_out: Callable[[Values], Values]
    conclude: Conclude
    figures: tuple[str, ...] = ()
    repeats: Mapping[str, int] | None = None
    scales: tuple[str, ...] = SCALES

    def default_repeats(self, scale: str) -> int:
        """Repeats at a scale unless told."""
        return 1 if self.repeats is None else self.repeats[scale]


@dataclass(frozen=True)
class SurveyResult:
    """A survey with its figures in.

    Attributes:
        survey: The survey.
        scale: The scale it was run at.
        conclusion: Its table.
        verdicts: Those of the conclusion, and one for every task that diverged.
    """

    survey: Survey
    scale: str
    conclusion: Conclusion
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(verdict.ok for verdict in self.verdicts)

    def to_json(self) -> Values:
        """As JSON values."""
        return {
            "survey": self.survey.key,
            "title": self.survey.title,
            "scale": self.scale,
            "gossamer": gossamer_version(),
            **self.conclusion.values,
            "checks": [{"name": v.name, "ok": v.ok, "text": v.text} for v in self.verdicts],
            "ok": self.ok,
        }

    def to_markdown(self) -> str:
        """For a document."""
        parts = [f"# {self.survey.key}: {self.survey.title}", self.conclusion.markdown.strip()]
        parts += ["\n".join(f"- {verdict}" for verdict in self.verdicts)] * bool(self.verdicts)
        parts.append(f"Scale {self.scale}; Gossamer {gossamer_version()}.")
        return "\n\n".join(parts) + "\n"


def run_survey(
    survey: Survey,
    *,
    out: str | os.PathLike[str],
    scale: str | None = None,
    seed: int = 0,
    repeats: int | None = None,
    jobs: int | None = None,
    progress: TableProgress | None = None,
) -> SurveyResult:
    """Do what is left of a survey's tasks, then write ``survey.json`` and ``survey.md``.

    Args:
        survey: The survey.
        out: A folder; rows lie in it as ``rows/TASK.json``.
        scale: One of the survey's scales; its first unless told.
        seed: The first seed.
        repeats: Of every task; the survey's own number unless told.
        jobs: Processes at a time, of one thread each; as many as there are cores unless told.
        progress: Who watches; a bar or plain lines unless told.

    Raises:
        KeyboardInterrupt: Interrupted; the same call goes on.
        CheckpointError: ``out`` holds something else, or rows with other settings.
        GossamerError: A task failed; it is named. What ran beside it was waited for and kept.
    """
    scale = scale or survey.scales[0]
    if scale not in survey.scales:
        raise UnknownName(f"scale of {survey.key}", scale, survey.scales)
    repeats = survey.default_repeats(scale) if repeats is None else repeats
    jobs = available_cores() if jobs is None else jobs
    for name, value in (("repeats", repeats), ("jobs", jobs)):
        if value < 1:
            raise InvalidValue(name, value, "must be at least 1")
    folder = Path(out)
    tasks = survey.tasks(scale=scale, seed=seed, repeats=repeats)
    _check_folder(folder, survey, scale)
    rows = _stored(tasks, folder)
    about = {"survey": survey.key, "scale": scale, "complete": False}
    (folder / _ROWS).mkdir(parents=True, exist_ok=True)
    write_json(folder / _JSON, about)
    left = [task for task in tasks if task.name not in rows]
    diverged: dict[str, str] = {}
    progress = progress or default_table_progress()
    try:
        progress.start(len(tasks), len(tasks) - len(left))
        for group, at_once in (
            ([task for task in left if not task.alone], jobs),
            ([task for task in left if task.alone], 1),
        ):
            # Closed at an exception here too: then nothing must go on.
            with closing(run_tasks(survey.carry_out, group, at_once)) as ends:
                for ended in ends:
                    task = ended.task
                    if ended.status == "diverged":
                        diverged[task.name] = ended.text
                        progress.finish(task.name, f"diverged: {ended.text}")
                        continue
                    stored = {"task": task.name, "settings": task.settings, "row": ended.row}
                    write_json(folder / _ROWS / f"{task.name}.json", stored)
                    rows[task.name] = ended.row
                    progress.finish(task.name, _told(survey.figures, ended))
    finally:
        progress.close()
    ordered = {task.name: rows[task.name] for task in tasks if task.name in rows}
    conclusion = survey.conclude(ordered, scale=scale)
    lost = tuple(Verdict(f"{name} ends", False, text) for name, text in diverged.items())
    result = SurveyResult(survey, scale, conclusion, conclusion.verdicts + lost)
    write_json(folder / _JSON, {**result.to_json(), "complete": True})
    (folder / _MARKDOWN).write_text(result.to_markdown(), encoding="utf-8")
    return result


def _told(figures: Sequence[str], ended: EndedTask) -> str:
    found = []
    for key in figures:
        value = ended.row.get(key)
        if isinstance(value, float):
            found.append(f"{quantity(key).label} {format_number(key, value)}")
        elif value is not None:
            found.append(f"{quantity(key).label} {value}")
    return ", ".join([*found, f"{ended.seconds:.1f} s"])


def _stored(tasks: Sequence[SurveyTask], folder: Path) -> dict[str, Values]:
    """The rows that are there; raises where one was made with other settings."""
    found: dict[str, Values] = {}
    for task in tasks:
        path = folder / _ROWS / f"{task.name}.json"
        if not path.exists():
            continue
        about = read_json(path)
        if not isinstance(about, dict) or not isinstance(about.get("row"), dict):
            raise CheckpointError(path.name, str(path), "is no row of a survey", "delete it")
        if about.get("settings") != task.settings:
            raise CheckpointError(
                f"settings of the row in {path}",
                about.get("settings"),
                f"differ from the survey's, {task.settings!r}",
                "choose another --out",
            )
        found[task.name] = about["row"]
    return found


def _check_folder(folder: Path, survey: Survey, scale: str) -> None:
    """Raise where writing this survey would overwrite something else."""
    if not (folder / _JSON).exists():
        ours = folder.is_dir() and all(
            path.name == _ROWS or path.name.startswith(TEMPORARY) for path in folder.iterdir()
        )
        if folder.exists() and not ours:
            raise CheckpointError(
                "survey folder", str(folder), "holds something else", "choose another --out"
            )
        return
    about = read_json(folder / _JSON)
    found = (about.get("survey"), about.get("scale")) if isinstance(about, dict) else (None, None)
    if found != (survey.key, scale):
        raise CheckpointError(
            "survey folder",
            str(folder),
            f"holds the survey {found[0]} at scale {found[1]}",
            "choose another --out",
        )
