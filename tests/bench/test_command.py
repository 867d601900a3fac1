"""``gossamer bench``: every suite runs, its JSON is sane, nothing small is judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer.bench import targets
from gossamer.bench.names import SUITES
from gossamer.bench.result import Entry, Finding, Measured, timed_rows
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.suite import MEASURES
from gossamer.bench.timing import Timing
from gossamer.ops import library

Call = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.skipif(not library.is_available(), reason="needs the native engine")

WANTED = {
    "kernels": {"dense VI", "deterministic", "masked", "native", "torch CSR"},
    "step": {"dense VI", "deterministic", "masked uniform_dense_first", "gossamer erk"}
    | {"rigl", "ngvi", "ngvi, ivon", "ssvi"},
    "transformer": {"dense VI", "deterministic", "gossamer erk"},
    "memory": {"dense VI", "deterministic", "masked", "gossamer"}
    | {"rigl", "ngvi", "ngvi, ivon", "ssvi"},
    "predict": {
        "dense VI, a pass per sample",
        "dense VI, local noise, a pass per sample",
        "dense VI, rows repeated",
        "gossamer",
    },
    "read": {"pandas.read_csv", "gossamer, cells", "gossamer, numbers", "gossamer, load"},
    "choice": {"masked", "native", "auto"},
}
TARGETS = {"kernels": 8, "step": 10, "transformer": 0, "memory": 5, "predict": 4}
TARGETS |= {"read": 4, "choice": 0}


@pytest.mark.parametrize("suite", list(SUITES))
def test_a_quick_run_writes_sane_json(suite: str, gossamer: Call, tmp_path: Path) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    code, out, err = gossamer("bench", suite, "--quick", "--threads", 1, "--json", "found.json")
    assert code == 0, err
    assert torch.equal(torch.random.get_rng_state(), state)  # the caller's generator is his own
    assert torch.get_num_threads() == threads
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["suite"], found["quick"], found["threads"]) == (suite, True, [1])
    assert found["machine"]["isa"] == library.isa()
    assert {"torch", "processor", "cores", "load", "rivals"} <= set(found["machine"])
    for row in found["rows"]:
        assert row["value"] > 0, row
        assert row["ratio"] > 0, row
        assert row["contender"] in out
    assert WANTED[suite] <= {row["contender"] for row in found["rows"]}
    _check_ratios(found["rows"])
    judged = [finding for finding in found["findings"] if finding["target"] is not None]
    assert len(judged) == TARGETS[suite]
    assert {finding["verdict"] for finding in judged} <= {"not judged", "not measured"}
    assert "--quick" in out
    assert "median ms" in out or suite == "memory"


def _check_ratios(rows: list[dict[str, Any]]) -> None:
    """Every ratio is that of two values of the same case."""
    for row in rows:
        (baseline,) = [
            other["value"]
            for other in rows
            if other["case"] == row["case"]
            and other["contender"] == row["baseline"]
            and other["sparsity"] in (None, row["sparsity"])
        ]
        assert row["ratio"] == pytest.approx(baseline / row["value"], rel=1e-9)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite whose figures are known: three times as fast as the baseline on every machine."""

    def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
        tell("measuring [nothing]")
        dense, sparse = Entry("dense"), Entry("sparse", 0.95)
        times = {dense: Timing((0.006, 0.006)), sparse: Timing((0.002, 0.002))}
        findings = (
            Finding("good", threads, 3.0, target=targets.at_least(3.0)),
            Finding("bad", threads, 3.0, "%", targets.at_most(0.5)),
            Finding("absent", threads, math.nan, target=targets.at_least(2.0), note="why"),
        )
        return Measured(tuple(timed_rows("case", times, dense, threads)), findings)

    monkeypatch.setitem(MEASURES, "kernels", measure)


@pytest.mark.usefixtures("fixed")
def test_what_is_printed_is_what_was_found(gossamer: Call) -> None:
    code, out, err = gossamer("bench", "kernels", "--threads", "1,2")
    assert code == 0
    assert err.count("measuring [nothing]") == 2
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "kernels, threads: 1" in lines
    assert "kernels, threads: 2" in lines
    assert lines.count("95 % sparse 2.00 3.00x dense") == 2
    assert "good 1 3.00x ≥ 3.00x met" in lines
    assert "bad 2 300.0 % ≤ 50.0 % MISSED" in lines
    assert "absent 1 – ≥ 2.00x not measured why" in lines


@pytest.mark.usefixtures("fixed")
def test_json_on_stdout_is_alone_there(gossamer: Call) -> None:
    code, out, _ = gossamer("bench", "kernels", "--threads", "1,2", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["threads"] == [1, 2]
    assert [row["ratio"] for row in found["rows"]] == pytest.approx([1.0, 3.0, 1.0, 3.0])
    verdicts = [finding["verdict"] for finding in found["findings"]]
    assert verdicts == ["met", "MISSED", "not measured"] * 2
    assert found["findings"][2]["value"] is None  # JSON has no NaN


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "required"),
        (("speed",), "invalid choice"),
        (("kernels", "--threads", "two"), "threads = two: must be whole numbers"),
        (("kernels", "--threads", "0"), "must be at least 1"),
        (("step", "--rounds", "0"), "rounds = 0: must lie in"),
        (("step", "--rounds", "x"), "invalid int value"),
        (("memory", "--json", "."), "is a folder"),
        (("predict", "--json", "no/such/file.json"), "does not exist"),
        (("predict", "--quik"), "did you mean --quick?"),
    ],
)
def test_bad_arguments_are_one_line(words: tuple[str, ...], message: str, gossamer: Call) -> None:
    code, out, err = gossamer("bench", *words)
    assert (code, out) == (2, "")
    assert err.startswith("gossamer: error: ")
    assert len(err.splitlines()) == 1
    assert message in err


def test_without_the_engine_there_is_nothing_to_measure(
    gossamer: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_load", lambda: (None, "it was not built"))
    code, out, err = gossamer("bench", "kernels", "--quick")
    assert (code, out) == (2, "")
    assert "it was not built" in err
    assert len(err.splitlines()) == 1


def test_a_verdict_is_never_kinder_than_the_figure() -> None:
    def verdict(value: float, *, quick: bool = False) -> str:
        finding = Finding("x", 1, value, target=targets.at_least(2.0))
        return finding.verdict(quick=quick)

    assert verdict(2.0) == "met"
    assert verdict(1.999) == "MISSED"
    assert verdict(math.nan) == "not measured"
    assert verdict(3.0, quick=True) == "not judged"
    assert Finding("x", 1, 0.5, "%", targets.at_most(0.5)).verdict(quick=False) == "met"
    assert Finding("x", 1, 0.51, "%", targets.at_most(0.5)).verdict(quick=False) == "MISSED"
    assert Finding("x", 1, 9.9).verdict(quick=False) == ""
    assert not targets.at_most(0.5).holds(math.nan)
