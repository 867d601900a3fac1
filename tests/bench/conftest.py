"""The command line called in this process, as the tests of ``cli`` do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.cli.main import main


@pytest.fixture
def gossamer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Calls the command line in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOSSAMER_DEBUG", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
