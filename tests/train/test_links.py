"""A run folder from elsewhere may hold links: nothing is written, cut or deleted through one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from gossamer.errors import CheckpointError
from gossamer.files import (
    TEMPORARY,
    FolderLock,
    refuse_links,
    write_json,
    write_synced,
    write_whole,
)
from gossamer.report import write_report
from gossamer.train import RunConfig, load_run, train
from gossamer.train.checkpoint import save_checkpoint
from gossamer.train.record import Record
from train.sittings import After

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")

TEXT = "years of work, and no newline at the end"


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, small: RunConfig) -> Path:
    run = tmp_path_factory.mktemp("foreign") / "run"
    assert train(small, run, stop=After(7)).status == "interrupted"
    return run


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    path = tmp_path / "thesis.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "lock",
        "record.jsonl",
        "config.json",
        "environment.json",
        "preparation.json",
        "curves.json",
        "posterior.safetensors",
        "metrics.json",
        "report.html",
        "checkpoints/best.json",
        "checkpoints/step-00000005/tensors.safetensors",
        f"{TEMPORARY}PID-curves.json",
        "notes",
    ],
)
def test_a_run_with_a_linked_file_does_not_go_on(
    tmp_path: Path, interrupted: Path, thesis: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    place = run / name.replace("PID", str(os.getpid()))
    place.unlink(missing_ok=True)
    place.symlink_to(thesis)
    with pytest.raises(CheckpointError, match="is a symbolic link") as caught:
        train(None, run, resume=True)
    assert caught.value.name == place.name
    assert "\n" not in str(caught.value)
    assert thesis.read_text() == TEXT
    assert place.is_symlink()


def test_nor_one_with_a_linked_folder(tmp_path: Path, interrupted: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(interrupted, run)
    for name in ("checkpoints", "checkpoints/step-00000005"):
        (run / name).rename(elsewhere)
        (run / name).symlink_to(elsewhere)
        before = sorted(elsewhere.rglob("*"))
        with pytest.raises(CheckpointError, match="is a symbolic link"):
            train(None, run, resume=True)
        assert sorted(elsewhere.rglob("*")) == before
        (run / name).unlink()
        elsewhere.rename(run / name)
    assert train(None, run, resume=True).status == "finished"


def test_a_new_run_refuses_a_linked_lock(tmp_path: Path, small: RunConfig, thesis: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(thesis)
    with pytest.raises(CheckpointError, match=r"lock.*is a symbolic link"):
        train(small, tmp_path / "run")
    assert thesis.read_text() == TEXT


def test_a_link_to_the_run_folder_itself_is_the_callers_own(
    tmp_path: Path, small: RunConfig
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    assert train(small, tmp_path / "run").status == "finished"


def test_reading_goes_through_links(tmp_path: Path, small: RunConfig) -> None:
    """Caches of downloaded files are folders of links."""
    train(small, tmp_path / "run")
    (tmp_path / "view").mkdir()
    for path in (tmp_path / "run").iterdir():
        (tmp_path / "view" / path.name).symlink_to(path)
    assert load_run(tmp_path / "view").step == load_run(tmp_path / "run").step


def test_every_writer_refuses_by_itself(tmp_path: Path, thesis: Path) -> None:
    """Whoever calls it, and whatever appeared after a folder was looked at."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("lock", "record.jsonl", "any.json", "step-00000001"):
        (folder / name).symlink_to(thesis)
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        FolderLock(folder).__enter__()
    for step in (None, 0):
        with pytest.raises(CheckpointError, match="is a symbolic link"):
            Record(folder / "record.jsonl", resume_step=step)
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        write_json(folder / "any.json", {})
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        write_synced(folder / "any.json", b"")
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        save_checkpoint(folder, 1, {})
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        refuse_links(tmp_path / "missing", folder)
    assert thesis.read_text() == TEXT


def test_a_link_in_the_place_of_a_temporary_file_loses_itself_alone(
    tmp_path: Path, thesis: Path
) -> None:
    (tmp_path / f"{TEMPORARY}{os.getpid()}-any.json").symlink_to(thesis)
    write_whole(tmp_path / "any.json", b"{}")
    assert thesis.read_text() == TEXT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["any.json", "thesis.txt"]


def test_reports_and_posterior_files_replace_no_link(
    tmp_path: Path, small: RunConfig, thesis: Path
) -> None:
    train(small, tmp_path / "run")
    for name in ("report.html", "mine.safetensors"):
        (tmp_path / name).symlink_to(thesis)
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        write_report([tmp_path / "run"], tmp_path / "report.html")
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        load_run(tmp_path / "run").posterior.save(tmp_path / "mine.safetensors")
    assert thesis.read_text() == TEXT
