"""What a survey is: many independent tasks, each of which gives one row of figures.

Tasks run in processes of their own, one thread each. A finished row is a file, so that the same
call goes on after an interruption; a task that was at work begins anew.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, Literal, Protocol

from gossamer.errors import CheckpointError, GossamerError, InvalidValue, NonFinite, UnknownName
from gossamer.experiments.processes import available_cores
from gossamer.experiments.progress import TableProgress, default_table_progress
from gossamer.experiments.result import Verdict
from gossamer.experiments.table import SCALES
from gossamer.report.quantities import format_number, quantity
from gossamer.train.atomic import TEMPORARY, read_json, write_json
from gossamer.train.folder import gossamer_version

_JSON, _MARKDOWN, _ROWS = "survey.json", "survey.md", "rows"

_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Environment of the processes: glibc keeps freed memory, as the command's own process does.

Else the system clears the pages of every batch anew; another allocator does not read it."""

Values = dict[str, Any]
"""JSON values."""


@dataclass(frozen=True)
class SurveyTask:
    """One task.

    Attributes:
        name: Names its file; unique in the survey.
        settings: What the survey's function is called with: JSON values, kept beside the row.
        alone: Whether nothing else may run beside it, as when it measures time. Such tasks come
            last.
    """

    name: str
    settings: Values
    alone: bool = False


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
            with closing(_run(survey, group, min(at_once, len(group)))) as ends:
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


@dataclass(frozen=True)
class _Ended:
    task: SurveyTask
    status: Literal["finished", "diverged"]
    row: Values
    text: str
    seconds: float


def _run(
    survey: Survey, tasks: Sequence[SurveyTask], at_once: int
) -> Generator[_Ended, None, None]:
    """Yields tasks as they end. After a failure no further one begins; it is raised at the end."""
    if not tasks:
        return
    failure: GossamerError | None = None
    others = set(active_children())
    context = get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_prepare)
    try:
        with _environment(_MALLOC):
            futures = {pool.submit(_do, survey.carry_out, t.settings): t for t in tasks}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            task = futures[future]
            status, row, text, seconds = _outcome(future)
            if status == "failed":
                failure = failure or GossamerError(f"task {task.name}", None, text)
                for other in futures:
                    other.cancel()
            else:
                yield _Ended(task, status, row, text, seconds)
    except BaseException:  # an interrupt, or the caller left: nobody waits for the tasks at work
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


_Outcome = tuple[Literal["finished", "diverged", "failed"], Values, str, float]


def _outcome(future: Future[_Outcome]) -> _Outcome:
    try:
        return future.result()
    except Exception as error:  # the process died, or the row cannot be sent
        return "failed", {}, f"{type(error).__name__}: {error}", 0.0


def _do(carry_out: Callable[[Values], Values], settings: Values) -> _Outcome:
    """One task, in its process. Errors travel as text: not every exception can be sent."""
    began = time.perf_counter()
    try:
        row = carry_out(settings)
    except NonFinite as error:
        return "diverged", {}, str(error), time.perf_counter() - began
    except Exception as error:
        if os.environ.get("GOSSAMER_DEBUG") == "1":
            raise
        text = (
            str(error) if isinstance(error, GossamerError) else f"{type(error).__name__}: {error}"
        )
        return "failed", {}, text, time.perf_counter() - began
    return "finished", row, "", time.perf_counter() - began


def _prepare() -> None:
    """A process begins: one thread, deaf to Ctrl-C (the parent decides), gone with the parent."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for processes started inside; what the user set himself stays."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _told(figures: Sequence[str], ended: _Ended) -> str:
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
