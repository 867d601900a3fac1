"""``run_table``: do what is left of a table's runs, then write the table."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from gossamer.errors import CheckpointError, GossamerError, InvalidValue, UnknownName
from gossamer.experiments.processes import available_cores, run_jobs
from gossamer.experiments.progress import RunWatch, TableProgress, default_table_progress
from gossamer.experiments.result import TableResult, gather
from gossamer.experiments.single import Ended, Job, execute
from gossamer.experiments.table import Row, Table
from gossamer.report import write_report
from gossamer.train import RunFolder
from gossamer.train.atomic import read_json, write_json

_JSON, _MARKDOWN, _REPORT = "table.json", "table.md", "report.html"


def run_table(
    table: Table,
    *,
    out: str | os.PathLike[str],
    scale: str | None = None,
    seed: int = 0,
    repeats: int | None = None,
    jobs: int | None = None,
    data_dir: str | None = None,
    progress: TableProgress | None = None,
) -> TableResult:
    """Run a table; finished runs are kept, interrupted ones are resumed.

    Args:
        table: The table.
        out: A folder; the runs lie in it as ``ROW-sSEED``, the table as ``table.json`` and
            ``table.md``, the report as ``report.html``.
        scale: ``"small"`` or ``"paper"``; the table's first unless told.
        seed: The first seed.
        repeats: Seeds per row; the table's own number unless told.
        jobs: Runs at a time, each in a process with its share of the cores; the table's own number
            unless told. With 1 the runs are done here, on all cores.
        data_dir: Where data sets lie that are not embedded.
        progress: Who watches; a bar or plain lines unless told.

    Raises:
        KeyboardInterrupt: Interrupted; the same call goes on.
        CheckpointError: ``out`` holds something else, or runs with other settings.
        GossamerError: A run failed.
    """
    scale = scale or table.scales[0]
    repeats = table.repeats if repeats is None else repeats
    jobs = min(table.jobs, available_cores()) if jobs is None else jobs
    if scale not in table.scales:
        raise UnknownName(f"scale of {table.key}", scale, table.scales)
    for name, value in (("repeats", repeats), ("jobs", jobs)):
        if value < 1:
            raise InvalidValue(name, value, "must be at least 1")
    folder = Path(out)
    rows = table.rows(scale=scale, seed=seed, repeats=repeats, data_dir=data_dir)
    _check_folder(folder, table, scale)
    left = _left(rows, folder)
    write_json(_made(folder) / _JSON, {"table": table.key, "scale": scale, "complete": False})
    diverged: dict[str, str] = {}
    progress = progress or default_table_progress()
    try:
        progress.start(len(rows), len(rows) - len(left))
        with closing(_run(left, jobs, progress)) as ends:
            for ended in ends:
                if ended.status == "interrupted":
                    raise KeyboardInterrupt
                if ended.status == "failed":
                    raise GossamerError(f"run {ended.job.run}", None, ended.text)
                if ended.status == "diverged":
                    diverged[ended.job.run] = ended.text
                progress.finish(ended.job.run, ended.text)
    finally:
        progress.close()
    finished = [folder / row.run for row in rows if row.run not in diverged]
    report = write_report(finished, folder / _REPORT) if finished else None
    result = gather(table, scale, rows, folder, diverged, report)
    write_json(folder / _JSON, {**result.to_json(), "complete": True})
    _write_text(folder / _MARKDOWN, result.to_markdown())
    return result


def _run(left: Sequence[Job], jobs: int, progress: TableProgress) -> Generator[Ended, None, None]:
    if jobs > 1 and len(left) > 1:
        at_once = min(jobs, len(left))
        threads = max(1, available_cores() // at_once)
        yield from run_jobs(left, at_once=at_once, threads=threads, progress=progress)
        return
    for job in left:
        yield execute(job, RunWatch(partial(progress.update, job.run)))


def _left(rows: Sequence[Row], folder: Path) -> list[Job]:
    """The runs still to be done; raises where a run's folder holds another one."""
    left: list[Job] = []
    for row in rows:
        run = RunFolder(folder / row.run)
        if run.is_started:
            stored, _ = run.read_config()
            # Where the data lie is no matter: the run itself checks that they are the same.
            difference = replace(row.config, data_dir=stored.data_dir).first_difference(stored)
            if difference is not None:
                name, mine, theirs = difference
                raise CheckpointError(
                    f"{name} of the run in {run.path}",
                    theirs,
                    f"differs from the table's, {mine!r}",
                    "choose another --out",
                )
        if not run.is_finished:
            left.append(Job(row.run, run.path, row.config))
    return left


def _check_folder(folder: Path, table: Table, scale: str) -> None:
    """Raise where writing this table would overwrite something else."""
    if RunFolder(folder).is_started:
        raise CheckpointError(
            "table folder", str(folder), "is a run folder", "choose another --out"
        )
    if not (folder / _JSON).exists():
        foreign = [name for name in (_MARKDOWN, _REPORT) if (folder / name).exists()]
        if folder.is_file() or foreign:
            raise CheckpointError(
                "table folder", str(folder), "holds something else", "choose another --out"
            )
        return
    about = read_json(folder / _JSON)
    found = (about.get("table"), about.get("scale")) if isinstance(about, dict) else (None, None)
    if found != (table.key, scale):
        raise CheckpointError(
            "table folder",
            str(folder),
            f"holds the table {found[0]} at scale {found[1]}",
            "choose another --out",
        )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
