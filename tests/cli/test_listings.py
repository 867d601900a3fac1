"""``methods``, ``data``, ``report`` and ``compare``: what is printed is what there is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.data import names
from gossamer.inference import METHODS, resolve_config
from gossamer.sklearn import SparseBayesRegressor


def test_methods_as_json_hold_every_default(gossamer: Callable[..., Any]) -> None:
    found = gossamer("methods", "--json").json
    assert list(found) == list(METHODS)
    for name, about in found.items():
        config = resolve_config(name)
        defaults = json.loads(json.dumps(vars(config)))  # a pair is a list there
        assert {k: v["default"] for k, v in about["settings"].items()} == defaults
        assert "default" in about["presets"]
    assert found["ssvi"]["settings"]["sparsity"]["type"] == "number"


def test_methods_for_people(gossamer: Callable[..., Any]) -> None:
    assert all(name in gossamer("methods").out for name in METHODS)
    shown = gossamer("methods", "ssvi").out
    assert "kl_weight" in shown
    assert "[number, number]" in shown
    assert list(gossamer("methods", "rigl", "--json").json) == ["rigl"]
    assert "method = x: is not known" in gossamer("methods", "x").error


def test_data_list(gossamer: Callable[..., Any]) -> None:
    assert [row["name"] for row in gossamer("data", "list", "--json").json] == names()
    assert all(name in gossamer("data", "list").out for name in names())


def test_data_show(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    digits = gossamer("data", "show", "digits", "--json").json
    assert (digits["task"], digits["input_shape"]) == ("classification", [1, 8, 8])
    assert digits["train"] + digits["validation"] + digits["test"] == 1797
    assert sum(digits["classes"].values()) == digits["train"]
    diabetes = gossamer("data", "show", "diabetes", "--json").json
    assert 100 < diabetes["target_mean"] < 200  # original units
    assert diabetes["columns"]["bmi"] == "float"
    assert "progression" in gossamer("data", "show", "diabetes").out
    assert "is not known" in gossamer("data", "show", "nothing").error
    rows = "a,b,y\n" + "".join(f"{i},{'uv'[i % 2]},{'no' if i % 3 else 'yes'}\n" for i in range(40))
    (tmp_path / "own.csv").write_text(rows)
    own = gossamer("data", "show", "own.csv", "--target", "y", "--json").json
    assert own["columns"] == {"a": "int", "b": "str"}
    assert set(own["classes"]) == {"no", "yes"}
    assert "must name a column" in gossamer("data", "show", "own.csv").error


def test_data_get_says_what_it_cannot_get(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    assert gossamer("data", "get", "digits").out == "digits is embedded: nothing to get\n"
    assert "give --data-dir DIR" in gossamer("data", "get", "mnist").error
    words = ("--data-dir", "here")
    assert "no public address" in gossamer("data", "get", "notmnist", *words).error
    assert "is not known" in gossamer("data", "get", "nothing", *words).error
    mirror = (tmp_path / "nowhere").as_uri()
    error = gossamer("data", "get", "cifar10", *words, "--mirror", mirror).error
    assert "could not be downloaded" in error


def test_data_get_checks_what_it_gets(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "cifar-10-binary.tar.gz").write_bytes(b"not it")
    mirror = (tmp_path / "mirror").as_uri()
    answer = gossamer("data", "get", "cifar10", "--data-dir", "here", "--mirror", mirror)
    assert "MD5" in answer.error or "checksum" in answer.error
    assert not (tmp_path / "here" / "cifar10" / "cifar-10-binary.tar.gz").exists()


@pytest.fixture
def two(trained: Path, tmp_path: Path) -> tuple[str, str]:
    """The trained run and a copy that says it has another seed."""
    for name, seed in (("a", 0), ("b", 1)):
        shutil.copytree(trained, tmp_path / "runs" / name)
        config = tmp_path / "runs" / name / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "seed": seed}))
    return "runs/a", "runs/b"


def test_compare(gossamer: Callable[..., Any], two: tuple[str, str]) -> None:
    (row,) = gossamer("compare", *two, "--json").json
    assert (row["method"], row["seeds"], row["n"]) == ("ngvi", [0, 1], 2)
    metrics = json.loads(Path("runs/a/metrics.json").read_text())
    assert row["accuracy"] == metrics["accuracy"]
    assert "ngvi" in gossamer("compare", *two).out
    assert "is not a folder" in gossamer("compare", "runs/a", "runs/c").error


def test_a_folder_of_runs_stands_for_them_and_our_report_is_no_run(
    gossamer: Callable[..., Any], two: tuple[str, str]
) -> None:
    Path("runs/report.html").write_text("written by an earlier call")
    told = [gossamer("compare", *two, "--json"), gossamer("compare", "runs", "--json")]
    told.append(gossamer("compare", *sorted(map(str, Path("runs").iterdir())), "--json"))
    assert told[0].code == 0
    assert told[0].json == told[1].json == told[2].json
    assert "at least one run folder" in gossamer("compare", "runs/report.html").error


def test_report_goes_into_the_folder_that_holds_the_runs(
    gossamer: Callable[..., Any], two: tuple[str, str], tmp_path: Path
) -> None:
    assert gossamer("report", *two, "--json").json["report"] == "runs/report.html"
    answer = gossamer("report", "runs/a", "--out", "sub/page.html")
    assert (answer.code, answer.out) == (0, "report: sub/page.html\n")
    for path in ("runs/report.html", "sub/page.html"):
        assert Path(path).read_text().startswith("<!DOCTYPE html>")
    np.savez(tmp_path / "own.npz", x=np.zeros(3))
    assert "is not a folder and no whole file that save" in gossamer("report", "own.npz").error
    assert "is not a folder" in gossamer("report", "nowhere").error
    assert "must end in .html" in gossamer("report", "runs/a", "--out", "page.pdf").error


def test_report_of_a_saved_model_stands_beside_it(
    gossamer: Callable[..., Any], two: tuple[str, str], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = SparseBayesRegressor(hidden=(4,), max_steps=8, members=2, random_state=0)
    Path("models").mkdir()
    model.fit(x, x[:, 0] + x[:, 1]).save("models/m.v1.gossamer")
    answer = gossamer("report", "models/m.v1.gossamer")
    assert (answer.code, answer.out) == (0, "report: models/m.v1.html\n")
    assert "SparseBayesRegressor" in Path("models/m.v1.html").read_text()
    assert gossamer("report", "models/m.v1.gossamer").code == 0, "its own page is replaced"
    Path("models/m.v1.html").write_text("mine")
    said = gossamer("report", "models/m.v1.gossamer").error
    assert "models/m.v1.html: exists and is no page of gossamer report" in said
    assert Path("models/m.v1.html").read_text() == "mine"
    answer = gossamer("report", "models/m.v1.gossamer", "--out", "page.html", "--json")
    assert answer.json == {"report": "page.html", "runs": ["models/m.v1.gossamer"]}
    said = gossamer("report", "runs/a", "models/m.v1.gossamer").error
    assert "a page is about run folders or about one saved model" in said
    posterior = Path("runs/a/posterior.safetensors")
    assert gossamer("report", posterior, "--json").json["report"] == "runs/a/posterior.html"
