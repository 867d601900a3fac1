"""Tasks in processes, threads and here: rows are kept, ends are told, interrupts are heard."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from joblib.externals.loky import get_reusable_executor

from gossamer.cli.main import main
from gossamer.errors import CheckpointError, GossamerError
from gossamer.experiments import (
    EXPERIMENTS,
    Experiment,
    Finished,
    FunctionTask,
    Outcome,
    Scope,
    Verdict,
    Watch,
    find_experiment,
    run_experiment,
)
from gossamer.experiments import news as news_module
from gossamer.experiments.news import Interrupted, News
from reference.experiment_tasks import Work, work

KEY = "gossamer/squares"


def conclude(found: Finished) -> Outcome:
    total = sum(row["square"] for row in found.rows.values())
    verdict = Verdict("the sum is 5", total == 5, str(total))
    values = {"rows": list(found.rows.values()), "sum": total}
    return Outcome(values, (f"sum: {total}",), (verdict,))


def experiment_of(folder: Path, kinds: Sequence[str]) -> Experiment:
    """A task of every kind; "alone" is a plain one that runs last by itself."""

    def tasks(scope: Scope) -> list[FunctionTask[Work]]:
        return [
            FunctionTask(
                f"t{number}",
                work,
                Work(number, kind, str(folder / "marks"), scope.seed),
                told=("square", "bad"),
                alone=kind == "alone",
            )
            for number, kind in enumerate(kinds[: scope.repeats])
        ]

    repeats = {"small": len(kinds), "paper": 9}
    scales = ("small", "paper")
    return Experiment(KEY, "squares", tasks, conclude, scales, repeats, jobs=None, threads=1)


def run(experiment: Experiment, out: Path, watch: Any, jobs: int, **asked: Any) -> Outcome:
    return run_experiment(experiment, experiment.scope(**asked), out=out, jobs=jobs, display=watch)


def marks(folder: Path) -> list[int]:
    path = folder / "marks"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_processes_are_stopped_at_an_interrupt_and_the_same_call_goes_on(
    tmp_path: Path, watcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLOC_MMAP_MAX_", raising=False)
    get_reusable_executor().shutdown()  # processes of other tests
    out = tmp_path / "out"
    experiment = experiment_of(tmp_path, ["sleeps", "plain", "waits"])
    watch, began = watcher(interrupt_after=2), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out, watch, 2)
    assert time.monotonic() - began < 500  # the one at work heard it
    assert watch.closed >= 1
    assert "t0" in watch.shares
    assert "MALLOC_MMAP_MAX_" not in os.environ
    assert json.loads((out / "outcome.json").read_text())["complete"] is False
    assert {path.name for path in (out / "rows").iterdir()} == {"t1.json", "t2.json"}
    stored = json.loads((out / "rows" / "t2.json").read_text())
    row = stored["row"]
    assert row.pop("process") != os.getpid()
    assert row == {"square": 4, "threads": 1, "malloc": "0", "bad": None}

    settings = {**stored["settings"], "number": 0, "kind": "sleeps"}
    row = {"task": "t0", "settings": settings, "row": {"square": 0}}
    (out / "rows" / "t0.json").write_text(json.dumps(row))
    done, watch = len(marks(tmp_path)), watcher()
    assert run(experiment, out, watch, 2).ok
    assert watch.started == (3, 3)
    assert len(marks(tmp_path)) == done


def test_a_process_that_dies_names_its_task(tmp_path: Path, watcher: Any) -> None:
    experiment = experiment_of(tmp_path, ["dies", "sleeps"])
    with pytest.raises(GossamerError, match=r"task t0(, t1)?: its process ended \(Terminated"):
        run(experiment, tmp_path / "out", watcher(), 2)


@pytest.mark.usefixtures("in_threads")
def test_rows_are_kept_and_the_command_reads_them_again(
    tmp_path: Path,
    watcher: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiment = experiment_of(tmp_path, ["alone", "plain", "plain"])
    watch, out = watcher(), tmp_path / "out"
    outcome = run(experiment, out, watch, 2)
    assert outcome.ok
    assert watch.started == (3, 0)
    assert watch.finished[-1] == "t0"
    assert sorted(watch.finished) == ["t0", "t1", "t2"]
    assert watch.texts["t2"].startswith("square 4, bad nan, ")
    assert marks(tmp_path)[-1] == 0
    assert [row["square"] for row in outcome.values["rows"]] == [0, 1, 4]
    written = json.loads((out / "outcome.json").read_text())
    assert (written["complete"], written["sum"], written["ok"]) == (True, 5, True)
    assert written["rows"][1]["bad"] is None
    assert "✓ the sum is 5: 5" in (out / "outcome.md").read_text()

    monkeypatch.setitem(EXPERIMENTS, KEY, experiment)
    assert find_experiment(KEY) is experiment
    assert main(["reproduce", KEY, "--out", str(out), "--strict", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sum"] == 5
    assert "3 of them finished before" in printed.err
    assert main(["reproduce", KEY, "--out", str(out), "--repeats", "2", "--strict"]) == 1
    assert "✗ the sum is 5: 1" in capsys.readouterr().out
    assert len(marks(tmp_path)) == 3

    (out / "outcome.json").rename(out / "survey.json")  # as an earlier version left it
    marker = {"survey": KEY, "scale": "small", "complete": True}
    (out / "survey.json").write_text(json.dumps(marker))
    run(experiment, out, watcher(), 1)
    assert len(marks(tmp_path)) == 3

    with pytest.raises(CheckpointError, match=r"t0\.json.*differ from the experiment's"):
        run(experiment, out, watcher(), 1, seed=1)
    with pytest.raises(CheckpointError, match="at scale small; choose another --out"):
        run(experiment, out, watcher(), 1, scale="paper")
    with pytest.raises(CheckpointError, match="holds something else"):
        run(experiment, tmp_path, watcher(), 1)
    (out / "rows" / "t1.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is no row of a task"):
        run(experiment, out, watcher(), 1)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.usefixtures("in_threads")
def test_a_failure_names_its_task_and_divergence_is_a_verdict(
    tmp_path: Path, watcher: Any, jobs: int
) -> None:
    out = tmp_path / "out"
    experiment = experiment_of(tmp_path, ["diverges", "plain", "plain", "alone"])
    outcome = run(experiment, out, watcher(), jobs)
    assert [verdict.ok for verdict in outcome.verdicts] == [False, False]
    assert str(outcome.verdicts[1]).startswith("✗ t0 ends: loss = nan: must be finite")
    assert not (out / "rows" / "t0.json").exists()  # it is tried again

    failing, watch = experiment_of(tmp_path, ["plain", "fails", *["slow"] * 6, "alone"]), watcher()
    with pytest.raises(GossamerError, match="task t1: ValueError: no such luck"):
        run(failing, tmp_path / "failing", watch, jobs)
    assert watch.texts["t1"] == "failed: ValueError: no such luck"
    kept = {path.name for path in (tmp_path / "failing" / "rows").iterdir()}
    assert "t0.json" in kept
    assert not kept & {"t7.json", "t8.json"}


def test_under_debug_a_bug_comes_through(
    tmp_path: Path, watcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSAMER_DEBUG", "1")
    with pytest.raises(ValueError, match="no such luck"):
        run(experiment_of(tmp_path, ["fails"]), tmp_path / "out", watcher(), 1)


def test_one_job_is_done_here_and_leaves_no_trace(tmp_path: Path, watcher: Any) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    outcome = run(experiment_of(tmp_path, ["plain"]), tmp_path / "out", watcher(), 1)
    assert outcome.values["rows"][0]["process"] == os.getpid()
    assert outcome.values["rows"][0]["threads"] == 1
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)
    assert not list((tmp_path / "out").glob(".gossamer-tmp-*"))


def test_news_are_shown_now_and_then_and_stops_are_heard(tmp_path: Path, watcher: Any) -> None:
    watch = watcher()
    with News(tmp_path, watch) as news:
        one, two = Watch(news.path, "one"), Watch(news.path, "two")
        one.tell(0.25, "acc 0.5")
        one.tell(0.5)  # too soon
        two.tell(0.0)
        assert news.at_work() == ["one", "two"]
        assert not one.is_set()
        news.end("one")
        assert watch.shares == {"one": [0.25], "two": [0.0]}
        assert news.at_work() == ["two"]
        two.fail()
        three = Watch(news.path, "three")
        three.tell(0.1)  # a failure elsewhere does not stop what cannot be resumed
        assert three.asked() == "failure"
        news.ask("interrupt")
        time.sleep(news_module.SECONDS_BETWEEN)
        assert three.asked() == "interrupt"
        news.ask("failure")
        assert news.asked == "interrupt"
        with pytest.raises(Interrupted):
            Watch(news.path, "four").tell(0.1)
    assert not news.path.exists()
    one.note(0.75)  # nobody listens any more


def test_a_task_whose_experiment_died_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that the experiment started, the parent is the experiment until it dies."""
    monkeypatch.setattr(news_module, "SECONDS_BETWEEN", 0.0)
    parents = [os.getpid(), os.getpid(), 1]
    monkeypatch.setattr(os, "getppid", lambda: parents.pop(0))
    watch = Watch(tmp_path, "task")
    assert [watch.asked() for _ in range(3)] == [None, None, "interrupt"]
    parents += [17, 17, 1]  # of a process of someone else's it says nothing
    other = Watch(tmp_path, "task")
    assert [other.asked() for _ in range(3)] == [None, None, None]
