"""An experiment of runs: run, interrupted, resumed, refused; folders of earlier versions."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.errors import CheckpointError, GossamerError, InvalidValue, NonFinite, UnknownName
from gossamer.experiments import (
    Experiment,
    Outcome,
    RunTask,
    Scope,
    Watch,
    run_experiment,
)
from gossamer.experiments import task as task_module
from gossamer.experiments.news import Interrupted
from gossamer.train import RunConfig
from gossamer.train.folder import RunFolder

RUNS = ["dense-s0", "dense-s1", "sparse-s0", "sparse-s1"]


def bytes_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file: a run that was not touched has both unchanged."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def run(experiment: Experiment, out: Path, watch: Any, jobs: int = 1, **asked: Any) -> Outcome:
    return run_experiment(experiment, experiment.scope(**asked), out=out, jobs=jobs, display=watch)


def of(experiment: Experiment, make: Callable[[Scope], list[RunTask]]) -> Experiment:
    """The experiment with other tasks and no checks."""
    return replace(experiment, tasks=make, conclude=replace(experiment.conclude, checks=()))


def first(experiment: Experiment, **changes: Any) -> Experiment:
    """Its first run alone, with other settings."""

    def make(scope: Scope) -> list[RunTask]:
        one = experiment.tasks(scope)[0]
        return [replace(one, config=replace(one.config, **changes))]

    return of(experiment, make)


def test_it_is_run_and_written(experiment: Experiment, watcher: Any, tmp_path: Path) -> None:
    watch = watcher()
    outcome = run(experiment, tmp_path / "t", watch)
    assert watch.started == (4, 0)
    assert watch.finished == RUNS
    assert watch.closed >= 1
    assert sorted(watch.shares) == RUNS
    assert all(shares == sorted(shares) for shares in watch.shares.values())
    for line in outcome.values["rows"]:
        metrics = [
            json.loads((tmp_path / "t" / f"{line['key']}-s{seed}" / "metrics.json").read_text())
            for seed in (0, 1)
        ]
        accuracies = [one["accuracy"] for one in metrics]
        assert line["seeds"] == [0, 1]
        assert line["accuracy"] == pytest.approx(np.mean(accuracies), rel=1e-12)
        spread = np.std(accuracies, ddof=1) / np.sqrt(2)
        found = line["standard_error"]["accuracy"]
        assert found == pytest.approx(spread, rel=1e-12, abs=1e-15)
    assert [v.ok for v in outcome.verdicts] == [True, False, True, False]
    assert outcome.verdicts[3].text == "there is no nothing"
    assert not outcome.ok
    written = json.loads((tmp_path / "t" / "outcome.json").read_text())
    assert written == {**outcome.to_json(), "complete": True}
    assert (written["experiment"], written["scale"]) == ("gossamer/tiny", "small")
    assert [row["key"] for row in written["rows"]] == ["dense", "sparse"]
    assert written["rows"][1]["nnz"] == round(0.5 * (64 * 8 + 8 * 10))
    text = (tmp_path / "t" / "outcome.md").read_text()
    assert "| sparse net | 2 |" in text
    assert "✗ dense: accuracy ≥" in text
    assert (tmp_path / "t" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert not list((tmp_path / "t").glob(".gossamer-tmp-*"))


@pytest.mark.usefixtures("blank_report")
def test_an_interrupted_one_goes_on_without_training_again(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    out = tmp_path / "t"
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out, watcher(interrupt_after=1))
    assert RunFolder(out / "dense-s0").is_finished
    assert not (out / "dense-s1").exists()
    assert json.loads((out / "outcome.json").read_text())["complete"] is False
    before = bytes_of(out / "dense-s0")
    watch = watcher()
    run(experiment, out, watch)
    assert watch.started == (4, 1)
    assert watch.finished == RUNS[1:]
    assert bytes_of(out / "dense-s0") == before
    again = watcher()
    run(experiment, out, again)
    assert (again.started, again.finished) == ((4, 4), [])
    more = watcher()
    outcome = run(experiment, out, more, repeats=3)
    assert more.finished == ["dense-s2", "sparse-s2"]
    assert [line["seeds"] for line in outcome.values["rows"]] == [[0, 1, 2]] * 2


@pytest.mark.usefixtures("blank_report")
def test_a_half_done_run_is_resumed(experiment: Experiment, watcher: Any, tmp_path: Path) -> None:
    class StopAt(Watch):
        steps = 0

        def is_set(self) -> bool:
            self.steps += 1
            return self.steps == 3

    one = first(experiment, batch_size=20)
    straight = run(one, tmp_path / "straight", watcher(), repeats=1)
    (task,) = one.tasks(Scope("small"))
    with pytest.raises(Interrupted):
        task.carry_out(tmp_path / "t", StopAt(tmp_path, task.name))
    assert list((tmp_path / "t" / task.name / "checkpoints").glob("step-*"))
    outcome = run_experiment(one, Scope("small"), out=tmp_path / "other", display=watcher())
    (tmp_path / "other" / task.name).rename(tmp_path / "other" / "whole")
    (tmp_path / "t" / task.name).rename(tmp_path / "other" / task.name)
    resumed = run(one, tmp_path / "other", watcher(), repeats=1)
    for key in ("accuracy", "nll", "ece"):
        found = [one.values["rows"][0][key] for one in (straight, outcome, resumed)]
        assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("blank_report")
def test_several_jobs_give_the_same_figures(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    one = run(experiment, tmp_path / "one", watcher())
    watch = watcher()
    two = run(experiment, tmp_path / "two", watch, jobs=2)
    assert sorted(watch.finished) == RUNS  # more than processes: each does several
    assert sorted(watch.shares) == RUNS
    for a, b in zip(one.values["rows"], two.values["rows"], strict=True):
        assert a["seeds"] == b["seeds"] == [0, 1]
        assert a["nll"] == pytest.approx(b["nll"], rel=1e-4)  # threads may differ
        assert a["nnz"] == b["nnz"]
    environment = json.loads((tmp_path / "two" / "dense-s0" / "environment.json").read_text())
    assert environment["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.usefixtures("in_threads")
def test_an_error_in_one_run_stops_the_others_and_is_told(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    def make(scope: Scope) -> list[RunTask]:
        long, quick, bad, _ = experiment.tasks(scope)
        never = RunTask("never", "never", long.config)
        long = RunTask("long", "long", replace(long.config, epochs=100_000))
        bad = RunTask("bad", "bad", replace(bad.config, data="nothing"))
        return [long, quick, bad, never]  # while the quick one trains the long one has begun

    watch = watcher()
    with pytest.raises(GossamerError, match="task bad-s0: data set = nothing: is not known"):
        run(of(experiment, make), tmp_path / "t", watch, jobs=2)
    assert watch.texts.keys() - {"dense-s1"} == {"bad-s0"}
    # The long run was asked to save and waited for: it has let go of its folder.
    assert list((tmp_path / "t" / "long-s0" / "checkpoints").glob("step-*"))
    assert not (tmp_path / "t" / "long-s0" / "lock").exists()
    assert not (tmp_path / "t" / "never-s0").exists()


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.usefixtures("in_threads")
def test_an_interrupt_lets_running_runs_save(
    experiment: Experiment, watcher: Any, tmp_path: Path, jobs: int
) -> None:
    """Ctrl-C while runs are at work: in this process the run itself hears it, else the pool."""

    class InterruptAtNews(watcher):  # type: ignore[misc]
        def update(self, task: str, share: float, figures: str) -> None:
            super().update(task, share, figures)
            if len(self.shares) == jobs and share > 0 and not self.finished:
                self.finished.append(task)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def make(scope: Scope) -> list[RunTask]:
        return [
            replace(one, config=replace(one.config, epochs=100_000))
            for one in experiment.tasks(scope)
        ]

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(of(experiment, make), tmp_path / "t", InterruptAtNews(), jobs=jobs)
    for name in RUNS[:jobs]:
        assert list((tmp_path / "t" / name / "checkpoints").glob("step-*"))
        assert not (tmp_path / "t" / name / "lock").exists()
    assert not (tmp_path / "t" / RUNS[3]).exists()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("blank_report")
def test_a_diverged_run_is_a_result(
    experiment: Experiment, watcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig | None, path: Path, **rest: Any) -> Any:
        if path.name == "dense-s1":
            raise NonFinite("loss", None, "became NaN")
        return real(config, path, **rest)

    real = task_module.train
    monkeypatch.setattr(task_module, "train", train)
    watch = watcher()
    outcome = run(experiment, tmp_path / "t", watch)
    assert [line["seeds"] for line in outcome.values["rows"]] == [[0], [0, 1]]
    assert outcome.verdicts[-1].name == "dense-s1 ends"
    assert "became NaN" in outcome.verdicts[-1].text
    assert not outcome.verdicts[-1].ok
    assert watch.texts["dense-s1"].startswith("diverged: loss")


def test_wrong_arguments_are_named(experiment: Experiment, tmp_path: Path) -> None:
    small = replace(experiment, scales=("small",))
    with pytest.raises(UnknownName, match="scale of gossamer/tiny = paper"):
        small.scope(scale="paper")
    with pytest.raises(InvalidValue, match="repeats = 0: must be at least 1"):
        experiment.scope(repeats=0)
    with pytest.raises(InvalidValue, match="jobs = 0: must be at least 1"):
        run_experiment(experiment, experiment.scope(), out=tmp_path / "t", jobs=0)
    plain = replace(experiment, scales=(), repeats={})
    with pytest.raises(InvalidValue, match="scale = small: gossamer/tiny has no such choice"):
        plain.scope(scale="small")
    with pytest.raises(InvalidValue, match="repeats = 1: gossamer/tiny has no such choice"):
        plain.scope(repeats=1)
    assert plain.scope(seed=3) == Scope("", 3, 1, None)
    assert experiment.scope(data_dir="d") == Scope("small", 0, 2, "d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("blank_report")
def test_part_of_it_is_done_by_name_and_concluded_from_all_that_is_finished(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    def some(*only: str) -> tuple[Outcome, Any]:
        watch = watcher()
        scope = experiment.scope()
        return run_experiment(
            experiment, scope, out=tmp_path / "t", jobs=1, only=only, display=watch
        ), watch

    outcome, watch = some("*-s1")
    assert watch.finished == ["dense-s1", "sparse-s1"]
    assert [line["seeds"] for line in outcome.values["rows"]] == [[1], [1]]
    left = outcome.verdicts[-1]
    assert (left.name, left.ok) == ("all tasks are done", False)
    assert left.text == "2 of 4 tasks are not done; the figures are of the others"
    assert json.loads((tmp_path / "t" / "outcome.json").read_text())["complete"] is False
    outcome, watch = some("dense-s0", "sparse-s0")
    assert watch.finished == ["dense-s0", "sparse-s0"]
    assert [line["seeds"] for line in outcome.values["rows"]] == [[0, 1], [0, 1]]
    assert "all tasks are done" not in {verdict.name for verdict in outcome.verdicts}
    with pytest.raises(
        InvalidValue, match=r"only = thick-\*: matches no task; tasks have names li"
    ):
        some("dense-*", "thick-*")


@pytest.mark.usefixtures("blank_report")
def test_a_folder_of_something_else_is_not_touched(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    one, out = first(experiment), tmp_path / "t"
    run(one, out, watcher(), repeats=1)
    before = bytes_of(out)
    with pytest.raises(CheckpointError, match="holds the experiment gossamer/tiny at scale small"):
        run(one, out, watcher(), scale="paper")
    with pytest.raises(CheckpointError, match="holds the experiment gossamer/tiny at scale small"):
        run(replace(one, key="gossamer/other"), out, watcher())
    with pytest.raises(CheckpointError, match=r"epochs of the run in .* = 2: differs"):
        run(first(experiment, epochs=5), out, watcher())
    with pytest.raises(CheckpointError, match="holds something else"):
        run(one, out / "dense-s0", watcher())
    assert bytes_of(out) == before
    for name in ("table.md", "study.json"):
        foreign = tmp_path / name.partition(".")[0]
        foreign.mkdir()
        (foreign / name).write_text("mine")
        with pytest.raises(CheckpointError, match="holds something else; choose another --out"):
            run(one, foreign, watcher())
        assert (foreign / name).read_text() == "mine"


@pytest.mark.usefixtures("blank_report")
def test_the_table_of_an_earlier_version_is_found_again(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    one, out = first(experiment), tmp_path / "t"
    run(one, out, watcher(), repeats=1)
    (out / "outcome.json").unlink()
    (out / "outcome.md").rename(out / "table.md")
    marker = {"table": "gossamer/tiny", "scale": "small", "complete": True}
    (out / "table.json").write_text(json.dumps(marker))
    watch = watcher()
    run(one, out, watch, repeats=1)
    assert watch.started == (1, 1)
    (out / "outcome.json").unlink()
    (out / "table.json").write_text(json.dumps({**marker, "table": "gossamer/demo"}))
    with pytest.raises(CheckpointError, match="holds the table gossamer/demo at scale small"):
        run(one, out, watcher(), repeats=1)


@pytest.mark.usefixtures("blank_report")
def test_another_place_of_the_data_is_no_other_run(
    experiment: Experiment, watcher: Any, tmp_path: Path
) -> None:
    one = first(experiment)
    run(one, tmp_path / "t", watcher(), data_dir="here")
    watch = watcher()
    run(one, tmp_path / "t", watch, data_dir="there")
    assert watch.started == (1, 1)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("name", ["outcome.md", "outcome.json", "dense-s0", "rows", "rows/a.json"])
def test_nothing_is_written_through_a_link(
    experiment: Experiment, watcher: Any, tmp_path: Path, name: str
) -> None:
    thesis, place = tmp_path / "thesis.txt", tmp_path / "t" / name
    thesis.write_text("years of work")
    place.parent.mkdir(parents=True)
    place.symlink_to(thesis)
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        run(experiment, tmp_path / "t", watcher())
    assert thesis.read_text() == "years of work"
    assert {p.name for p in tmp_path.rglob("*") if not p.is_dir()} == {place.name, "thesis.txt"}
