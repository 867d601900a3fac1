"""``--last-layer`` and ``--temperature`` of ``gossamer train``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_the_command_line_knows_both(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    tiny = ("--epochs", "1", "--limit-train", "200", "--set", "hidden=[16]", "--no-report")
    answer = gossamer("train", *tiny, "--last-layer", "--out", str(tmp_path / "a"), "--json")
    assert {"temperature", "last_layer_scale"} <= set(answer.json)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["finish"] == "last_layer"
    answer = gossamer("train", *tiny, "--temperature", "--out", str(tmp_path / "b"), "--json")
    assert "temperature" in answer.json
    assert "last_layer_scale" not in answer.json
    again = gossamer("evaluate", str(tmp_path / "b"), "--json").json
    assert again["temperature"] == answer.json["temperature"]
    assert again["nll"] == pytest.approx(answer.json["nll"])
    both = gossamer("train", *tiny, "--temperature", "--last-layer", "--out", str(tmp_path / "c"))
    assert both.code != 0
