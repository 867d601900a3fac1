"""The command line called in this process, and one small trained run for all who only read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gossamer.cli.main import main

TINY = ("--epochs", "2", "--limit-train", "200", "--set", "hidden=[16]", "--no-report")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error; asserts that it is one and that nothing else was printed."""
        assert self.code == 2
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("gossamer: error: ")
        return lines[0].removeprefix("gossamer: error: ")


@pytest.fixture
def gossamer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOSSAMER_DEBUG", raising=False)
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # a worker may inherit a narrow one

    def call(*words: object) -> Answer:
        capsys.readouterr()
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits; tests read it and never change it."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", *TINY, "--quiet", "--json", "--out", str(path)]) == 0
    return path
