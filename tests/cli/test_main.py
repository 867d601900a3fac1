from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

import gossamer as gs
from gossamer.bench.names import SUITES
from gossamer.bench.suite import MEASURES
from gossamer.cli import methods
from gossamer.cli.main import main
from gossamer.cli.options.train import DEFAULTS, FLAGS, QUALITIES, QUALITY
from gossamer.errors import NonFinite
from gossamer.prediction.table import LEVEL
from gossamer.train import RunConfig, quality

COMMANDS = ("train", "evaluate", "predict", "report", "compare", "data", "methods", "reproduce")


def test_the_version_is_the_package_version(gossamer: Callable[..., Any]) -> None:
    answer = gossamer("--version")
    assert (answer.code, answer.out) == (0, f"gossamer {gs.__version__}\n")


def test_help_names_every_command(gossamer: Callable[..., Any]) -> None:
    answer = gossamer("--help")
    assert answer.code == 0
    assert all(f"\n    {name}" in answer.out for name in COMMANDS)


@pytest.mark.parametrize(
    "words", [(name,) for name in COMMANDS if name != "data"] + [("data", "show"), ("data", "get")]
)
def test_every_command_has_help_and_takes_json(
    gossamer: Callable[..., Any], words: tuple[str, ...]
) -> None:
    answer = gossamer(*words, "--help")
    assert answer.code == 0
    assert "--json" in answer.out


@pytest.mark.parametrize("words", [(name,) for name in COMMANDS] + [("bench", "step")])
def test_help_waits_for_no_library(words: tuple[str, ...]) -> None:
    script = (
        "import sys\n"
        "from gossamer.cli.main import main\n"
        f"main({[*words, '--help']})\n"
        "print(sorted({'torch', 'numpy', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_help_of_train_says_what_a_run_takes() -> None:
    known = {each.name.replace("_", "-"): each.default for each in fields(RunConfig)}
    told = {flag: known.get(flag, MISSING) for flag in FLAGS}
    silent = {"method"}  # the quality decides it
    texts = {
        flag: str(default)
        for flag, default in told.items()
        if flag not in silent and default not in (None, MISSING, "default")
    }
    assert texts == DEFAULTS
    assert {name: each.about for name, each in quality.QUALITIES.items()} == QUALITIES
    assert quality.DEFAULT == QUALITY


def test_the_help_of_predict_says_the_level(gossamer: Callable[..., Any]) -> None:
    assert f"{LEVEL:.0%} interval" in gossamer("predict", "--help").out


def test_every_suite_is_named_and_measured() -> None:
    assert list(MEASURES) == list(SUITES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "required: COMMAND"),
        (("trian",), "'trian'"),
        (("train", "--epoch", "3"), "unknown option --epoch (did you mean --epochs?)"),
        (("evaluate",), "required: RUN"),
        (("reproduce", "gossamer/demo", "--seed", "x"), "invalid int value: 'x'"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    gossamer: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    error = gossamer(*words).error
    assert said in error
    assert error.endswith("--help")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(args: argparse.Namespace, output: object) -> int:
        raise error

    monkeypatch.setattr(methods, "run", run)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NonFinite("loss", 1.5, "rule", "hint"), "loss = 1.5: rule; hint"),
        (OSError(errno.ENOSPC, "No space left", "a/b"), "a/b: No space left"),
        (
            RuntimeError("two\nlines"),
            "RuntimeError: two lines; this is a bug: GOSSAMER_DEBUG=1 shows where",
        ),
    ],
)
def test_every_error_is_one_line(
    gossamer: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    line: str,
) -> None:
    failing(monkeypatch, error)
    assert gossamer("methods").error == line


def test_debug_lets_the_error_through(
    gossamer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, NonFinite("loss", 1.5, "rule"))
    monkeypatch.setenv("GOSSAMER_DEBUG", "1")
    with pytest.raises(NonFinite):
        main(["methods"])


def test_an_interrupt_is_130_and_says_how_to_go_on(
    gossamer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, KeyboardInterrupt("go on so"))
    answer = gossamer("methods")
    assert (answer.code, answer.out, answer.err) == (130, "", "gossamer: interrupted; go on so\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = "import sys; from gossamer.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "methods", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert err == b""
    assert process.returncode == 1
