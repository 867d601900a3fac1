"""Runs that are watched, and what two runs must have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gossamer.train import SilentProgress, latest, load_checkpoint, read_records
from train.bits import same

WALL_CLOCK = ("seconds", "epoch_seconds", "checkpoint_bytes", "predict_seconds")
"""What may differ: times, and the bytes that their digits take."""


class Watch(SilentProgress):
    """Keeps messages, and does something at one step."""

    def __init__(self, at: int = -1, act: Callable[[], object] = lambda: None) -> None:
        self.at, self.act = at, act
        self.messages: list[str] = []

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        if step == self.at:
            self.act()

    def message(self, text: str) -> None:
        self.messages.append(text)


def outcome(path: Path) -> dict[str, Any]:
    """All that must be equal: newest state, record, metrics, curves."""
    found = latest(path / "checkpoints")
    assert found is not None
    return {
        "step": found.step,
        "state": timeless(load_checkpoint(found.path)),
        "record": [timeless(r) for r in read_records(path / "record.jsonl")],
        "metrics": timeless(json.loads((path / "metrics.json").read_text())),
        "curves": json.loads((path / "curves.json").read_text()),
    }


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in WALL_CLOCK}


def assert_same_run(a: Path, b: Path) -> None:
    left, right = outcome(a), outcome(b)
    different = [key for key in left if not same(left[key], right[key])]
    assert different == []


class After:
    """Asks for a stop after some steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


def unseal(run: Path) -> None:
    """Make the checkpoints of a run those of an earlier version, which knew only themselves."""
    for path in run.glob("checkpoints/*/checksum.json"):
        stated = json.loads(path.read_text())
        del stated["run"]
        path.write_text(json.dumps(stated))
