from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from gossamer.cli.main import main
from gossamer.errors import CheckpointError, GossamerError, InvalidValue, UnknownName
from gossamer.experiments import (
    SURVEYS,
    Conclusion,
    Survey,
    SurveyTask,
    Verdict,
    find_experiment,
    run_survey,
)
from gossamer.experiments import tasks as tasks_module
from reference.survey_tasks import work

KEY = "gossamer/squares"


def conclude(rows: Mapping[str, dict[str, Any]], *, scale: str) -> Conclusion:
    total = sum(row["square"] for row in rows.values())
    verdict = Verdict("the sum is 5", total == 5, str(total))
    return Conclusion({"rows": list(rows.values()), "sum": total}, f"sum: {total}", (verdict,))


def survey_of(folder: Path, kinds: Sequence[str]) -> Survey:
    """A task of every kind; "alone" is a plain one that runs last by itself."""

    def tasks(*, scale: str, seed: int, repeats: int) -> list[SurveyTask]:
        return [
            SurveyTask(
                f"t{number}",
                {"number": number, "kind": kind, "marks": str(folder / "marks"), "seed": seed},
                alone=kind == "alone",
            )
            for number, kind in enumerate(kinds[:repeats])
        ]

    return Survey(
        KEY, "squares", tasks, work, conclude, ("square",), {"small": len(kinds), "paper": 9}
    )


def marks(folder: Path) -> list[int]:
    path = folder / "marks"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads instead of processes, which take seconds to start."""

    def pool(at_once: int, **_: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(at_once)

    monkeypatch.setattr(tasks_module, "ProcessPoolExecutor", pool)


def test_processes_are_stopped_at_an_interrupt_and_the_same_call_goes_on(
    tmp_path: Path, watcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLOC_MMAP_MAX_", raising=False)
    out = tmp_path / "out"
    survey = survey_of(tmp_path, ["plain", "sleeps", "plain"])
    watch, began = watcher(interrupt_after=2), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_survey(survey, out=out, jobs=2, progress=watch)
    assert time.monotonic() - began < 55  # nobody waited for the one at work
    assert watch.closed >= 1
    assert not [p for p in active_children() if p.name.startswith("SpawnProcess")]
    assert "MALLOC_MMAP_MAX_" not in os.environ
    assert json.loads((out / "survey.json").read_text())["complete"] is False
    assert {path.name for path in (out / "rows").iterdir()} == {"t0.json", "t2.json"}
    stored = json.loads((out / "rows" / "t2.json").read_text())
    assert stored["row"] == {"square": 4, "threads": 1, "malloc": "0", "bad": None}

    settings = {**stored["settings"], "number": 1, "kind": "sleeps"}
    row = {"task": "t1", "settings": settings, "row": {"square": 1}}
    (out / "rows" / "t1.json").write_text(json.dumps(row))
    done, watch = len(marks(tmp_path)), watcher()
    assert run_survey(survey, out=out, progress=watch).ok
    assert watch.started == (3, 3)
    assert len(marks(tmp_path)) == done


def test_a_process_that_dies_names_its_task(tmp_path: Path, watcher: Any) -> None:
    survey = survey_of(tmp_path, ["dies"])
    with pytest.raises(GossamerError, match="task t0: BrokenProcessPool"):
        run_survey(survey, out=tmp_path / "out", progress=watcher())


@pytest.mark.usefixtures("threads")
def test_rows_are_kept_and_the_command_reads_them_again(
    tmp_path: Path,
    watcher: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    survey = survey_of(tmp_path, ["alone", "plain", "plain"])
    watch, out = watcher(), tmp_path / "out"
    result = run_survey(survey, out=out, jobs=2, progress=watch)
    assert result.ok
    assert watch.started == (3, 0)
    assert watch.finished[-1] == "t0"
    assert sorted(watch.finished) == ["t0", "t1", "t2"]
    assert marks(tmp_path)[-1] == 0
    assert [row["square"] for row in result.conclusion.values["rows"]] == [0, 1, 4]
    written = json.loads((out / "survey.json").read_text())
    assert (written["complete"], written["sum"], written["ok"]) == (True, 5, True)
    assert written["rows"][1]["bad"] is None
    assert "✓ the sum is 5: 5" in (out / "survey.md").read_text()

    monkeypatch.setitem(SURVEYS, KEY, survey)
    assert find_experiment(KEY) is survey
    assert main(["reproduce", KEY, "--out", str(out), "--strict", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sum"] == 5
    assert "3 of them finished before" in printed.err
    assert main(["reproduce", KEY, "--out", str(out), "--repeats", "2", "--strict"]) == 1
    assert "✗ the sum is 5: 1" in capsys.readouterr().out
    assert len(marks(tmp_path)) == 3

    with pytest.raises(CheckpointError, match=r"t0\.json.*differ from the survey's"):
        run_survey(survey, out=out, seed=1)
    with pytest.raises(CheckpointError, match="at scale small; choose another --out"):
        run_survey(survey, out=out, scale="paper")
    with pytest.raises(CheckpointError, match="holds something else"):
        run_survey(survey, out=tmp_path)
    (out / "rows" / "t1.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is no row of a survey"):
        run_survey(survey, out=out)


@pytest.mark.usefixtures("threads")
def test_a_failure_names_its_task_and_divergence_is_a_verdict(tmp_path: Path, watcher: Any) -> None:
    out = tmp_path / "out"
    survey = survey_of(tmp_path, ["diverges", "plain", "plain", "alone"])
    result = run_survey(survey, out=out, jobs=1, progress=watcher())
    assert [verdict.ok for verdict in result.verdicts] == [False, False]
    assert str(result.verdicts[1]).startswith("✗ t0 ends: loss = nan: must be finite")
    assert not (out / "rows" / "t0.json").exists()  # it is tried again

    failing = survey_of(tmp_path, ["plain", "fails", *["slow"] * 6])
    with pytest.raises(GossamerError, match="task t1: ValueError: no such luck"):
        run_survey(failing, out=tmp_path / "failing", jobs=1, progress=watcher())
    kept = {path.name for path in (tmp_path / "failing" / "rows").iterdir()}
    assert "t0.json" in kept
    assert "t7.json" not in kept


def test_bad_values_are_refused(tmp_path: Path) -> None:
    survey = survey_of(tmp_path, ["plain"])
    with pytest.raises(InvalidValue, match="jobs = 0: must be at least 1"):
        run_survey(survey, out=tmp_path / "o", jobs=0)
    with pytest.raises(InvalidValue, match="repeats = 0"):
        run_survey(survey, out=tmp_path / "o", repeats=0)
    with pytest.raises(UnknownName, match="scale of gossamer/squares = huge"):
        run_survey(survey, out=tmp_path / "o", scale="huge")
    assert not (tmp_path / "o").exists()
