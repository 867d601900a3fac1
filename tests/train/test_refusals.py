"""What a run refuses, in one line, without harm to what is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import CheckpointError, GossamerError, InvalidValue
from gossamer.files import TEMPORARY, FolderLock
from gossamer.train import RunConfig, train
from train.sittings import After


def test_an_existing_run_is_never_overwritten(tmp_path: Path, small: RunConfig) -> None:
    train(small, tmp_path / "run")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="holds a run and is never overwritten"):
        train(small, tmp_path / "run")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("text")
    for resume in (False, True):
        with pytest.raises(CheckpointError, match="is not a run folder"):
            train(small, tmp_path / "thesis", resume=resume)
    (tmp_path / "file").write_text("text")
    with pytest.raises(CheckpointError, match="is not a run folder"):
        train(small, tmp_path / "file")
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert {p: after[p] for p in before} == before
    assert set(after) - set(before) == {tmp_path / "thesis" / "chapter.tex", tmp_path / "file"}


def test_resume_of_nothing_is_an_error(tmp_path: Path, small: RunConfig) -> None:
    with pytest.raises(CheckpointError, match="does not exist; start it without --resume"):
        train(small, tmp_path / "missing", resume=True)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        train(small, tmp_path, resume=True)
    with pytest.raises(InvalidValue, match="is needed to start a run"):
        train(None, tmp_path)


def test_an_empty_folder_and_a_stillborn_run_can_be_started(
    tmp_path: Path, small: RunConfig
) -> None:
    assert train(small, tmp_path).status == "finished"
    for resume in (False, True):
        out = tmp_path / f"stillborn {resume}"
        out.mkdir()
        for name in ("lock", "environment.json", f"{TEMPORARY}1-preparation.json"):
            (out / name).write_text("")
        assert train(small, out, resume=resume).status == "finished"
        assert not (out / f"{TEMPORARY}1-preparation.json").exists()


@pytest.mark.parametrize("name", [".tmp-mine", ".tmp-1-preparation.json", ".hidden"])
def test_nothing_without_our_mark_is_deleted(tmp_path: Path, small: RunConfig, name: str) -> None:
    """Earlier versions took every ``.tmp-*`` for a leftover of theirs."""
    mine = tmp_path / "out" / name / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    for resume in (False, True):
        with pytest.raises(CheckpointError, match=f"is not a run folder.*it holds {name}"):
            train(small, tmp_path / "out", resume=resume)
    assert mine.read_text() == "years of work"
    assert [p.name for p in (tmp_path / "out").iterdir()] == [name]


def test_leftovers_of_earlier_versions_stay_where_a_run_goes_on(
    tmp_path: Path, small: RunConfig
) -> None:
    run = tmp_path / "run"
    assert train(small, run, stop=After(7)).status == "interrupted"
    for folder in (run, run / "checkpoints"):
        (folder / ".tmp-7-config.json").write_text("half")
        (folder / f"{TEMPORARY}7-config.json").write_text("half")
    assert train(None, run, resume=True).status == "finished"
    for folder in (run, run / "checkpoints"):
        assert (folder / ".tmp-7-config.json").read_text() == "half"
        assert not (folder / f"{TEMPORARY}7-config.json").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path, small: RunConfig) -> None:
    with FolderLock(tmp_path), pytest.raises(CheckpointError, match="is in use by process"):
        train(small, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"data": "digit"},
        {"model": "mpl"},
        {"model_options": {"width": [3]}},
        {"model_options": {"hidden": "wide"}},
        {"method": "svi"},
        {"preset": "papers"},
        {"method_options": {"sparcity": 0.5}},
        {"method_options": {"sparsity": 1.0}},
        {"method_options": {"sparsity": -0.1}},
        {"method_options": {"sparsity": 0.9999}},
        {"method_options": {"sparsity": "high"}},
        {"method_options": {"backend": "native"}},
        {"likelihood": "gauss"},
        {"likelihood": "gaussian"},
        {"likelihood": "bernoulli"},
        {"likelihood_options": {"noise_std": 1}},
        {"batch_size": 301},
        {"ood": ("notmnis",)},
        {"ood": ("digits", "energy")},
        {"shift": ("fog",)},
        {"data": "diabetes", "limit_train": None, "shift": ("rotation",)},
        {"backend": "cuda"},
        {"split": 3},
        {"target": "y"},
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_a_folder_is_made(
    tmp_path: Path, small: RunConfig, change: dict[str, Any]
) -> None:
    with pytest.raises(GossamerError) as caught:
        train(dataclasses.replace(small, **change), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
