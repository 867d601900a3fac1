from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossamer.experiments import (
    STUDIES,
    SURVEYS,
    TABLES,
    Findings,
    Row,
    Study,
    Table,
    at_least,
    repeated,
)
from gossamer.experiments.progress import PlainTableProgress
from gossamer.train import RunConfig


def rows(*, scale: str, seed: int, repeats: int, data_dir: str | None) -> list[Row]:
    config = RunConfig(method="sgd", epochs=1, limit_train=100, model_options={"hidden": [8]})
    return [
        *repeated("first", "first", config, seed=seed, repeats=repeats),
        *repeated(
            "second",
            "second",
            RunConfig.from_json({**config.to_json(), "lr": 0.01}),
            seed=seed,
            repeats=repeats,
        ),
    ]


def carry_out(*, seed: int, data_dir: str | None, notice: Callable[[str], None]) -> Findings:
    notice("at work")
    return Findings({"seed": seed}, "found: 0.5")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(
        key="gossamer/tiny",
        title="a tiny table",
        rows=rows,
        columns=("accuracy",),
        checks=(at_least("first", "accuracy", 2.0),),
        repeats=1,
    )
    monkeypatch.setitem(TABLES, table.key, table)
    monkeypatch.setitem(STUDIES, "gossamer/look", Study("gossamer/look", "a look", carry_out))


def test_list(gossamer: Callable[..., Any]) -> None:
    found = gossamer("reproduce", "--list", "--json").json
    assert {row["key"] for row in found} == {*TABLES, *STUDIES, *SURVEYS}
    assert all(key in gossamer("reproduce", "--list").out for key in (*TABLES, *STUDIES, *SURVEYS))


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
    assert answer.err == "2 runs, 2 of them finished before\n"


def test_an_interrupt_is_130_and_the_same_command_goes_on(
    gossamer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(PlainTableProgress):
        def finish(self, run: str, text: str) -> None:
            raise KeyboardInterrupt

    words = ("reproduce", "gossamer/tiny", "--out", "t", "--json")
    with monkeypatch.context() as patch:
        patch.setattr("gossamer.experiments.runner.default_table_progress", Interrupting)
        answer = gossamer(*words)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.endswith("interrupted; what is done is saved; the same command goes on\n")
    before = (Path("t/first-s0/metrics.json").stat().st_mtime_ns, Path("t/second-s0").exists())
    answer = gossamer(*words)
    assert answer.code == 0
    assert answer.err.startswith("2 runs, 1 of them finished before\n[2/2] second-s0:")
    assert before == (Path("t/first-s0/metrics.json").stat().st_mtime_ns, False)


def test_a_study(gossamer: Callable[..., Any]) -> None:
    answer = gossamer("reproduce", "gossamer/look", "--seed", "3")
    assert answer.code == 0
    assert "found: 0.5" in answer.out
    assert answer.err == "at work\n"
    found = gossamer("reproduce", "gossamer/look", "--seed", "3", "--json").json
    assert found == {"study": "gossamer/look", "out": "runs/gossamer-look", "seed": 3}
    assert "repeats = 2" in gossamer("reproduce", "gossamer/look", "--repeats", "2").error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "KEY/TABLE: must be given"),
        (("nothing",), "experiment = nothing: is not known; choose one of:"),
        (("gossamer/tiny", "--scale", "huge"), "scale of gossamer/tiny = huge: is not known"),
        (("gossamer/tiny", "--repeats", "0"), "repeats = 0: must be at least 1"),
        (("gossamer/tiny", "--jobs", "-1"), "jobs = -1: must be at least 1"),
    ],
)
def test_wrong_words_are_named(
    gossamer: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in gossamer("reproduce", *words).error
    assert list(tmp_path.iterdir()) == []
