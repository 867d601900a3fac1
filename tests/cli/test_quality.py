"""``gossamer train --quality``: what is trained where no method is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.test_train import TINY
from gossamer.train.quality import METHODS, NORMALISED

Call = Callable[..., Any]


def config_of(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(run) / "config.json").read_text())
    return found


def test_without_a_method_the_fast_preset_is_trained(gossamer: Call) -> None:
    found = gossamer("train", *TINY, "--json").json
    config = config_of(found["run"])
    assert (config["method"], config["finish"], config["members"]) == ("ngvi", "last_layer", None)
    assert config["method_options"] == METHODS["classification"][1]
    assert {"temperature", "last_layer_scale"} <= found.keys()


def test_real_targets_have_a_method_of_their_own(gossamer: Call) -> None:
    words = ("--data", "diabetes", "--set", "hidden=[16]", "--epochs", "1", "--set", "lr_floor=0.5")
    found = gossamer("train", *words, "--json").json
    config = config_of(found["run"])
    assert config["method"] == METHODS["regression"][0] == "rigl"
    assert config["method_options"] == {**METHODS["regression"][1], "lr_floor": 0.5}


def test_batch_normalisation_has_the_method_of_its_own(gossamer: Call) -> None:
    words = ("--data", "digits", "--model", "resnet20", "--epochs", "1", "--set", "limit_train=150")
    gossamer("train", *words, "--out", "it")
    config = config_of("it")
    assert (config["method"], config["method_options"]) == NORMALISED


def test_settings_change_a_quality_and_members_follow(gossamer: Call) -> None:
    words = ("--quality", "good", "--sparsity", "0.8", "--set", "average=0.2", "--out", "it")
    found = gossamer("train", *TINY, *words, "--json").json
    config = config_of("it")
    assert (config["members"], config["member_sparsity"]) == (2, 0.8)
    assert config["method_options"]["average"] == 0.2
    assert found["nnz"] == 2 * round(0.2 * (64 * 16 + 16 * 10))


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "ssvi"),
        ("--preset", "default"),
        ("--set", "method=ssvi"),
        ("--set", "preset=default"),
    ],
)
def test_a_method_that_is_told_is_trained_as_it_is(gossamer: Call, words: tuple[str, ...]) -> None:
    found = gossamer("train", *TINY, *words, "--json").json
    config = config_of(found["run"])
    assert (config["method"], config["finish"], config["method_options"]) == ("ssvi", "none", {})


def test_members_that_are_told_are_taken(gossamer: Call) -> None:
    words = ("--quality", "good", "--set", "member_sparsity=0.9", "--out", "a")
    found = gossamer("train", *TINY, *words, "--json").json
    assert found["nnz"] == 2 * round(0.1 * (64 * 16 + 16 * 10))
    assert gossamer("train", *TINY, *words, "--resume").code == 0
    gossamer("train", *TINY, "--quality", "good", "--members", "1", "--out", "b", "--json")
    assert (config_of("b")["members"], config_of("b")["member_sparsity"]) == (1, None)


def test_a_quality_and_a_method_are_refused_together(gossamer: Call) -> None:
    error = gossamer("train", *TINY, "--quality", "good", "--method", "ssvi").error
    assert error == "--quality = good: decides the method; leave out --method and --preset"
    assert "quality" in gossamer("train", *TINY, "--quality", "superb").error


def test_a_run_goes_on_with_its_own_settings(gossamer: Call) -> None:
    first = gossamer("train", *TINY, "--quality", "good", "--out", "it", "--json").json
    again = gossamer("train", "--resume", "--out", "it", "--json").json
    assert again["nll"] == first["nll"]
    assert gossamer("train", *TINY, "--quality", "good", "--resume", "--out", "it").code == 0
    assert "members" in gossamer("train", "--quality", "best", "--resume", "--out", "it").error
