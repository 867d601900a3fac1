from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer.experiments import (
    EXPERIMENTS,
    Experiment,
    Finished,
    FunctionTask,
    Outcome,
    RunTable,
    RunTask,
    Scope,
    TextTable,
    Watch,
    at_least,
    repeated,
)
from gossamer.experiments.display import PlainDisplay
from gossamer.train import RunConfig


def tasks(scope: Scope) -> list[RunTask]:
    config = RunConfig(method="sgd", epochs=1, limit_train=100, model_options={"hidden": [8]})
    other = RunConfig.from_json({**config.to_json(), "lr": 0.01})
    return [
        *repeated("first", "first", config, scope),
        *repeated("second", "second", other, scope),
    ]


def look(scope: Scope, watch: Watch) -> dict[str, Any]:
    return {"seed": scope.seed}


def conclude(found: Finished) -> Outcome:
    table = TextTable(["what", "figure"], [["found", "0.5"]])
    return Outcome(found.rows["look"], ("A *look*:", table), figures={"look.svg": "<svg/>"})


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Experiment(
        key="gossamer/tiny",
        title="a tiny table",
        tasks=tasks,
        conclude=RunTable(columns=("accuracy",), checks=(at_least("first", "accuracy", 2.0),)),
        scales=("small", "paper"),
        repeats={"small": 1, "paper": 2},
    )
    plain = Experiment(
        key="gossamer/look",
        title="a look",
        tasks=lambda scope: [FunctionTask("look", look, scope, told=("seed",))],
        conclude=conclude,
    )
    for one in (table, plain):
        monkeypatch.setitem(EXPERIMENTS, one.key, one)


def test_list(gossamer: Callable[..., Any]) -> None:
    found = {row["key"]: row for row in gossamer("reproduce", "--list", "--json").json}
    assert set(found) == set(EXPERIMENTS)
    assert found["gossamer/tiny"] == {
        "key": "gossamer/tiny",
        "title": "a tiny table",
        "scales": ["small", "paper"],
        "repeats": {"small": 1, "paper": 2},
    }
    shown = gossamer("reproduce", "--list").out
    assert all(key in shown for key in EXPERIMENTS)


def test_the_table_is_printed_and_checks_decide_only_if_strict(
    gossamer: Callable[..., Any],
) -> None:
    answer = gossamer("reproduce", "gossamer/tiny")
    assert answer.code == 0
    assert "✗ first: accuracy ≥ 2.0000" in answer.out
    assert "report: runs/gossamer-tiny-small/report.html" in answer.out
    assert Path("runs/gossamer-tiny-small/report.html").exists()
    assert "[2/2] second-s0: test: accuracy" in answer.err
    answer = gossamer("reproduce", "gossamer/tiny", "--strict", "--json")
    assert answer.code == 1
    assert answer.json["ok"] is False
    assert [row["n"] for row in answer.json["rows"]] == [1, 1]
    assert {"accuracy", "nll", "nnz", "sparsity", "seconds"} <= set(answer.json["rows"][0])
    assert answer.err == "2 tasks, 2 of them finished before\n"


def test_part_of_the_tasks(gossamer: Callable[..., Any]) -> None:
    answer = gossamer("reproduce", "gossamer/tiny", "--only", "fir*", "--json")
    assert [row["n"] for row in answer.json["rows"]] == [1, 0]
    assert answer.json["ok"] is False
    assert "✗ all tasks are done" in gossamer("reproduce", "gossamer/tiny", "--only", "fir*").out


def test_an_interrupt_is_130_and_the_same_command_goes_on(
    gossamer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(PlainDisplay):
        def finish(self, task: str, text: str) -> None:
            raise KeyboardInterrupt

    words = ("reproduce", "gossamer/tiny", "--out", "t", "--json")
    with monkeypatch.context() as patch:
        patch.setattr("gossamer.experiments.experiment.default_display", Interrupting)
        answer = gossamer(*words)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.endswith("interrupted; what is done is saved; the same command goes on\n")
    before = (Path("t/first-s0/metrics.json").stat().st_mtime_ns, Path("t/second-s0").exists())
    answer = gossamer(*words)
    assert answer.code == 0
    assert answer.err.startswith("2 tasks, 1 of them finished before\n[2/2] second-s0:")
    assert before == (Path("t/first-s0/metrics.json").stat().st_mtime_ns, False)


def test_the_device_reaches_runs_and_settings(gossamer: Callable[..., Any]) -> None:
    assert gossamer("reproduce", "gossamer/tiny", "--device", "cpu", "--out", "t").code == 0
    assert json.loads(Path("t/first-s0/config.json").read_text())["device"] == "cpu"
    again = gossamer("reproduce", "gossamer/tiny", "--out", "t")  # auto
    assert again.err.startswith("2 tasks, 2 of them finished before\n")
    gossamer("reproduce", "gossamer/look", "--device", "cpu", "--out", "l")
    assert json.loads(Path("l/rows/look.json").read_text())["settings"]["device"] == "cpu"
    assert gossamer("reproduce", "gossamer/look", "--out", "l").err == (
        "1 tasks, 1 of them finished before\n"
    )


def test_an_experiment_without_scales(gossamer: Callable[..., Any]) -> None:
    answer = gossamer("reproduce", "gossamer/look", "--seed", "3")
    assert answer.code == 0
    assert "A look:" in answer.out
    assert "found" in answer.out
    assert "all of it: runs/gossamer-look" in answer.out
    assert answer.err.startswith("1 tasks\n[1/1] look: seed 3, ")
    assert Path("runs/gossamer-look/look.svg").read_text() == "<svg/>"
    found = gossamer("reproduce", "gossamer/look", "--seed", "3", "--json").json
    assert found.pop("gossamer")
    assert found == {
        "experiment": "gossamer/look",
        "title": "a look",
        "scale": None,
        "seed": 3,
        "checks": [],
        "ok": True,
        "report": None,
        "out": "runs/gossamer-look",
    }
    assert "repeats = 2" in gossamer("reproduce", "gossamer/look", "--repeats", "2").error
    assert "scale = small" in gossamer("reproduce", "gossamer/look", "--scale", "small").error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "KEY/TABLE: must be given"),
        (("nothing",), "experiment = nothing: is not known; choose one of:"),
        (("gossamer/tiny", "--scale", "huge"), "scale of gossamer/tiny = huge: is not known"),
        (("gossamer/tiny", "--repeats", "0"), "repeats = 0: must be at least 1"),
        (("gossamer/tiny", "--jobs", "-1"), "jobs = -1: must be at least 1"),
        (("gossamer/tiny", "--device", "gpu"), "device = gpu: must be auto, cpu, cuda, cuda:N"),
        (("gossamer/tiny", "--device", "cuda"), "device = cuda: is not available here; use cpu"),
    ],
)
def test_wrong_words_are_named(
    gossamer: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert said in gossamer("reproduce", *words).error
    assert list(tmp_path.iterdir()) == []
