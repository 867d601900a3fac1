from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from gossamer.train.progress import (
    PlainProgress,
    Progress,
    RichProgress,
    SilentProgress,
    default_progress,
)


def drive(progress: Progress) -> None:
    progress.start(10, done=4)
    progress.update(2, 5, {"accuracy": 0.5, "nll": 1.25, "kl": None, "loss": 9.0})
    progress.message("saved in [bold]/runs/a[/bold]")
    progress.update(3, 10, {"nll": 0.75, "kl": 12.0, "sparsity": 0.95})
    progress.close()
    progress.close()


def test_the_bar_shows_figures_and_keeps_the_last_of_each() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, color_system=None)
    drive(RichProgress(console))
    shown = stream.getvalue()
    assert "saved in [bold]/runs/a[/bold]" in shown
    assert "epoch 3" in shown
    assert "10/10" in shown
    assert "acc 0.5 nll 0.75 kl 12 sparsity 0.95" in shown
    assert "left" in shown
    assert "loss" not in shown


def test_an_update_before_the_start_is_ignored() -> None:
    stream = io.StringIO()
    progress = RichProgress(Console(file=stream))
    progress.update(1, 1, {"nll": 1.0})
    progress.close()
    assert "nll" not in stream.getvalue()


def test_plain_prints_messages_only(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    drive(PlainProgress(stream))
    assert stream.getvalue() == "saved in [bold]/runs/a[/bold]\n"
    PlainProgress().message("to stderr")
    assert capsys.readouterr() == ("", "to stderr\n")


def test_silent_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    drive(SilentProgress())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("terminal", "kind"), [(True, RichProgress), (False, PlainProgress)])
def test_the_default_depends_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type[object]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert type(default_progress()) is kind
