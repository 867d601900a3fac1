"""The examples run as they stand."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_custom_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "custom_loop.py"))["main"]
    assert main(epochs=6) > 0.85
    assert "sparsity 0.95" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["outcome.json", "table.json"])
def test_demo_figure_reads_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    row = {"checkpoint_bytes": 1e5, "accuracy": 0.98, "ece": 0.02, "standard_error": {}}
    rows = [{**row, "label": label} for label in ("a", "b", "c", "d")]
    (tmp_path / name).write_text(json.dumps({"rows": rows}), encoding="utf-8")
    out = tmp_path / "figure.svg"
    monkeypatch.setattr(sys, "argv", ["demo_figure.py", str(tmp_path), str(out)])
    runpy.run_path(str(EXAMPLES / "demo_figure.py"), run_name="__main__")
    assert out.read_text(encoding="utf-8").count("<svg") == 1
