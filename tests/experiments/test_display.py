from __future__ import annotations

import io

import pytest
from rich.console import Console

from gossamer.experiments import RichDisplay, default_display
from gossamer.experiments.display import PlainDisplay


def test_bars_on_a_terminal() -> None:
    screen = io.StringIO()
    display = RichDisplay(Console(file=screen, force_terminal=True, width=100))
    display.start(3, 1)
    display.update("a-s0", 0.5, "acc 0.9")
    display.update("a-s1", 0.25, "acc [0.8]")
    display.finish("a-s0", "accuracy [0.95]")
    display.close()
    display.close()
    shown = screen.getvalue()
    assert "2/3 tasks" in shown
    assert "a-s0: accuracy [0.95]" in shown
    assert "a-s1" in shown


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    display = default_display()
    assert isinstance(display, PlainDisplay)
    display.start(3, 1)
    display.update("a-s0", 0.5, "acc 0.9")
    display.finish("a-s0", "accuracy 0.95")
    display.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "3 tasks, 1 of them finished before\n[2/3] a-s0: accuracy 0.95\n"
