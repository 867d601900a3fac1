from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.errors import CheckpointError, GossamerError, InvalidValue, NonFinite, UnknownName
from gossamer.experiments import Row, Table, processes, run_table
from gossamer.experiments.processes import run_jobs
from gossamer.experiments.progress import RunWatch
from gossamer.experiments.single import Job, execute
from gossamer.train import RunConfig, SilentProgress
from gossamer.train.folder import RunFolder

RUNS = ["dense-s0", "dense-s1", "sparse-s0", "sparse-s1"]


def bytes_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file: a run that was not touched has both unchanged."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_table_is_run_and_written(table: Table, watcher: Any, tmp_path: Path) -> None:
    watch = watcher()
    result = run_table(table, out=tmp_path / "t", progress=watch)
    assert watch.started == (4, 0)
    assert watch.finished == RUNS
    assert watch.closed >= 1
    assert all(shares == sorted(shares) for shares in watch.shares.values())
    for line in result.lines:
        metrics = [
            json.loads((tmp_path / "t" / f"{line.key}-s{seed}" / "metrics.json").read_text())
            for seed in (0, 1)
        ]
        accuracies = [one["accuracy"] for one in metrics]
        found = line.values["accuracy"]
        assert line.seeds == (0, 1)
        assert found.n == 2
        assert found.mean == pytest.approx(np.mean(accuracies), rel=1e-12)
        spread = np.std(accuracies, ddof=1) / np.sqrt(2)
        assert found.standard_error == pytest.approx(spread, rel=1e-12, abs=1e-15)
    assert [v.ok for v in result.verdicts] == [True, False, True, False]
    assert result.verdicts[3].text == "there is no nothing"
    assert not result.ok
    written = json.loads((tmp_path / "t" / "table.json").read_text())
    assert written["complete"] is True
    assert [row["key"] for row in written["rows"]] == ["dense", "sparse"]
    assert written["rows"][1]["nnz"] == round(0.5 * (64 * 8 + 8 * 10))
    text = (tmp_path / "t" / "table.md").read_text()
    assert "| sparse net | 2 |" in text
    assert "✗ dense: accuracy ≥" in text
    assert (tmp_path / "t" / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.usefixtures("blank_report")
def test_an_interrupted_table_goes_on_without_training_again(
    table: Table, watcher: Any, tmp_path: Path
) -> None:
    out = tmp_path / "t"
    with pytest.raises(KeyboardInterrupt):
        run_table(table, out=out, progress=watcher(interrupt_after=1))
    assert RunFolder(out / "dense-s0").is_finished
    assert not (out / "dense-s1").exists()
    assert json.loads((out / "table.json").read_text())["complete"] is False
    before = bytes_of(out / "dense-s0")
    watch = watcher()
    run_table(table, out=out, progress=watch)
    assert watch.started == (4, 1)
    assert watch.finished == RUNS[1:]
    assert bytes_of(out / "dense-s0") == before
    again = watcher()
    run_table(table, out=out, progress=again)
    assert (again.started, again.finished) == ((4, 4), [])
    more = watcher()
    result = run_table(table, out=out, repeats=3, progress=more)
    assert more.finished == ["dense-s2", "sparse-s2"]
    assert [line.seeds for line in result.lines] == [(0, 1, 2)] * 2


@pytest.mark.usefixtures("blank_report")
def test_a_half_done_run_is_resumed(table: Table, watcher: Any, tmp_path: Path) -> None:
    class StopAt(SilentProgress):
        def update(self, epoch: int, step: int, info: object) -> None:
            if step == 3:
                signal.raise_signal(signal.SIGINT)

    row = table.rows(scale="small", seed=0, repeats=1, data_dir=None)[0]
    row = replace(row, config=replace(row.config, batch_size=20))
    one = replace(table, rows=lambda **_: [row], checks=())
    straight = run_table(one, out=tmp_path / "straight", progress=watcher())
    ended = execute(Job(row.run, tmp_path / "t" / row.run, row.config), StopAt())
    assert ended.status == "interrupted"
    resumed = run_table(one, out=tmp_path / "t", progress=watcher())
    for key in ("accuracy", "nll", "ece"):
        assert resumed.lines[0].mean(key) == straight.lines[0].mean(key)


@pytest.mark.usefixtures("blank_report")
def test_several_jobs_give_the_same_figures(table: Table, watcher: Any, tmp_path: Path) -> None:
    one = run_table(table, out=tmp_path / "one", progress=watcher())
    watch = watcher()
    two = run_table(table, out=tmp_path / "two", jobs=2, progress=watch)
    assert sorted(watch.finished) == RUNS  # more than processes: each does several
    assert sorted(watch.shares) == RUNS
    assert one.lines[0].seeds == two.lines[0].seeds == (0, 1)
    for a, b in zip(one.lines, two.lines, strict=True):
        assert a.mean("nll") == pytest.approx(b.mean("nll"), rel=1e-4)  # threads may differ
        assert a.mean("nnz") == b.mean("nnz")
    environment = json.loads((tmp_path / "two" / "dense-s0" / "environment.json").read_text())
    assert environment["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)


class InThread:
    """Stands in for a process: as good for pipes and endings, and without its own start-up."""

    exitcode = 0

    def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool) -> None:
        pipe, *rest = args
        own = Connection(os.dup(pipe.fileno()))  # a process has its own copy, too
        self._thread = threading.Thread(target=target, args=(own, *rest), daemon=daemon)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=InThread)
    monkeypatch.setattr(processes, "get_context", lambda kind: context)


@pytest.mark.usefixtures("in_threads")
def test_an_error_in_one_run_stops_the_others_and_is_told(
    table: Table, watcher: Any, tmp_path: Path
) -> None:
    long, bad = table.rows(scale="small", seed=0, repeats=1, data_dir=None)
    long = Row("long", "long", replace(long.config, epochs=100_000))
    bad = Row("bad", "bad", replace(bad.config, data="nothing"))
    broken = replace(table, rows=lambda **_: [long, bad], checks=())
    with pytest.raises(GossamerError, match="run bad-s0: data set = nothing: is not known"):
        run_table(broken, out=tmp_path / "t", jobs=2, progress=watcher())
    # The long run was asked to save and waited for: it has let go of its folder.
    assert not RunFolder(tmp_path / "t" / "long-s0").is_finished
    assert not (tmp_path / "t" / "long-s0" / "lock").exists()


@pytest.mark.usefixtures("in_threads")
def test_an_interrupt_lets_running_runs_save(table: Table, watcher: Any, tmp_path: Path) -> None:
    class InterruptAtFirstNews(watcher):  # type: ignore[misc]
        def update(self, run: str, share: float, figures: str) -> None:
            if not self.shares:
                super().update(run, share, figures)
                raise KeyboardInterrupt

    first, second = table.rows(scale="small", seed=0, repeats=1, data_dir=None)
    rows = [replace(r, config=replace(r.config, epochs=100_000)) for r in (first, second)]
    long = replace(table, rows=lambda **_: rows, checks=())
    with pytest.raises(KeyboardInterrupt):
        run_table(long, out=tmp_path / "t", jobs=2, progress=InterruptAtFirstNews())
    for row in rows:
        folder = tmp_path / "t" / row.run
        assert list((folder / "checkpoints").glob("step-*"))
        assert not (folder / "lock").exists()


@pytest.mark.usefixtures("in_threads")
def test_a_run_whose_parent_died_saves_and_ends(table: Table, tmp_path: Path) -> None:
    row = table.rows(scale="small", seed=0, repeats=1, data_dir=None)[0]
    job = Job(row.run, tmp_path / "run", replace(row.config, epochs=100_000))
    running = processes._start(job, threads=1)
    kind, *_ = running.pipe.recv()  # it trains
    assert kind == "update"
    running.pipe.close()  # which is all that a child sees of its parent's death
    running.process.join(60)
    assert not running.process.is_alive()
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.usefixtures("in_threads")
def test_a_process_that_vanishes_is_told(table: Table, watcher: Any, tmp_path: Path) -> None:
    rows = table.rows(scale="small", seed=0, repeats=1, data_dir=None)
    jobs = [Job(row.run, tmp_path / row.run, row.config) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_serve", lambda pipe, threads: pipe.close())
        ends = list(run_jobs(jobs, at_once=2, threads=1, progress=watcher()))
    assert {ended.status for ended in ends} == {"failed"}
    assert ends[0].text == "its process ended with exit code 0"


@pytest.mark.usefixtures("in_threads")
def test_a_bug_in_a_process_is_one_line(
    table: Table, watcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(processes, "execute", execute)
    monkeypatch.delenv("GOSSAMER_DEBUG", raising=False)
    with pytest.raises(GossamerError, match="TypeError: a bug"):
        run_table(table, out=tmp_path / "t", jobs=2, progress=watcher())


@pytest.mark.usefixtures("blank_report")
def test_a_diverged_run_is_a_result(
    table: Table, watcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gossamer.experiments import single

    def train(config: RunConfig | None, path: Path, **rest: Any) -> Any:
        if path.name == "dense-s1":
            raise NonFinite("loss", None, "became NaN")
        return real(config, path, **rest)

    real = single.train
    monkeypatch.setattr(single, "train", train)
    result = run_table(table, out=tmp_path / "t", progress=watcher())
    assert [line.seeds for line in result.lines] == [(0,), (0, 1)]
    assert result.verdicts[-1].name == "dense-s1 ends"
    assert "became NaN" in result.verdicts[-1].text
    assert not result.verdicts[-1].ok


def test_wrong_arguments_are_named(table: Table, tmp_path: Path) -> None:
    small = replace(table, scales=("small",))
    with pytest.raises(UnknownName, match="scale of gossamer/tiny = paper"):
        run_table(small, out=tmp_path / "t", scale="paper")
    for name in ("repeats", "jobs"):
        with pytest.raises(InvalidValue, match=f"{name} = 0"):
            run_table(table, out=tmp_path / "t", **{name: 0})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("blank_report")
def test_a_folder_of_something_else_is_not_touched(
    table: Table, watcher: Any, tmp_path: Path
) -> None:
    one = replace(table, rows=lambda **kw: table.rows(**kw)[:1], checks=())
    out = tmp_path / "t"
    run_table(one, out=out, repeats=1, progress=watcher())
    before = bytes_of(out)
    with pytest.raises(CheckpointError, match="holds the table gossamer/tiny at scale small"):
        run_table(one, out=out, scale="paper", progress=watcher())
    other = replace(one, rows=lambda **kw: [_changed(one.rows(**kw)[0])])
    with pytest.raises(CheckpointError, match=r"epochs of the run in .* = 2: differs"):
        run_table(other, out=out, progress=watcher())
    with pytest.raises(CheckpointError, match="is a run folder"):
        run_table(one, out=out / "dense-s0", progress=watcher())
    assert bytes_of(out) == before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "table.md").write_text("mine")
    with pytest.raises(CheckpointError, match="holds something else"):
        run_table(one, out=foreign, progress=watcher())
    assert (foreign / "table.md").read_text() == "mine"


def _changed(row: Row) -> Row:
    return replace(row, config=replace(row.config, epochs=5))


@pytest.mark.usefixtures("blank_report")
def test_another_place_of_the_data_is_no_other_run(
    table: Table, watcher: Any, tmp_path: Path
) -> None:
    one = replace(table, rows=lambda **kw: table.rows(**kw)[:1], checks=())
    run_table(one, out=tmp_path / "t", data_dir="here", progress=watcher())
    watch = watcher()
    run_table(one, out=tmp_path / "t", data_dir="there", progress=watch)
    assert watch.started == (1, 1)


def test_a_run_tells_its_share_now_and_then() -> None:
    told: list[tuple[float, str]] = []
    watch = RunWatch(lambda share, text: told.append((share, text)))
    watch.start(10, 5)
    for step in range(6, 11):
        watch.update(1, step, {"accuracy": 0.5, "nll": None, "kl": 3.0})
    assert told[0] == (0.5, "")
    assert told[1] == (0.6, "acc 0.5")
    assert len(told) == 2  # the rest came too soon after
    assert time.monotonic() > 0.2  # else the first update would have come too soon, too
