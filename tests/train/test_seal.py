"""Settings, preparation and record belong to their checkpoints; a twin's are refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.cli.main import main
from gossamer.errors import CheckpointError
from gossamer.train import RunConfig, latest, load_run, read_records, train
from gossamer.train.checkpoint import is_intact, save_checkpoint
from train.sittings import After, assert_same_run, unseal

FILES = ("config.json", "preparation.json", "record.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, small: RunConfig) -> Path:
    """``whole`` and its twin of another seed; both also stopped in the middle."""
    folder = tmp_path_factory.mktemp("twins")
    twin = dataclasses.replace(small, seed=1)
    assert train(small, folder / "whole").status == "finished"
    assert train(twin, folder / "whole-twin").status == "finished"
    assert train(small, folder / "half", stop=After(9)).status == "interrupted"
    assert train(twin, folder / "half-twin", stop=After(9)).status == "interrupted"
    return folder


@pytest.fixture
def own(tmp_path: Path, runs: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        shutil.copytree(runs / name, tmp_path / name)
        return tmp_path / name

    return copy


def rescaled(run: Path) -> None:
    """A preparation that is as good as another, only not the run's."""
    path = run / "preparation.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "note": "edited"}))


def test_a_checkpoint_says_what_it_belongs_to(runs: Path) -> None:
    found = latest(runs / "half" / "checkpoints")
    assert found is not None
    stated = json.loads((found.path / "checksum.json").read_text())["run"]
    assert sorted(stated) == sorted(FILES)
    assert stated["record.jsonl"]["lines"] == len(read_records(runs / "half" / "record.jsonl"))


def test_what_is_untouched_goes_on_to_the_same_end(own: Callable[[str], Path]) -> None:
    whole, half = own("whole"), own("half")
    assert load_run(half).step == 8
    assert train(None, half, resume=True).status == "finished"
    assert_same_run(whole, half)
    assert train(None, half, resume=True).status == "already_finished"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["half", "whole"])
def test_a_twins_file_is_refused_on_resume(
    own: Callable[[str], Path], runs: Path, name: str, kind: str
) -> None:
    run = own(kind)
    if name == "preparation.json":  # that of a twin is equal
        rescaled(run)
    else:
        shutil.copy(runs / f"{kind}-twin" / name, run / name)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="is not the one that checkpoint step-") as caught:
        train(None, run, resume=True)
    assert caught.value.name == name
    assert "\n" not in str(caught.value)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", FILES[:2])
@pytest.mark.parametrize("kind", ["half", "whole"])
def test_nor_are_they_predicted_with(
    own: Callable[[str], Path],
    runs: Path,
    name: str,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = own(kind)
    if name == "preparation.json":
        rescaled(run)
    else:
        shutil.copy(runs / f"{kind}-twin" / name, run / name)
    with pytest.raises(CheckpointError, match=f"{name}.*is not the one that"):
        load_run(run)
    assert main(["evaluate", str(run)]) == 2
    assert "is not the one that" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["missing line", "edited line", "emptied", "gone"])
def test_a_hole_in_the_record_is_noticed(own: Callable[[str], Path], change: str) -> None:
    run = own("half")
    record = run / "record.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    assert len(lines) > 2
    if change == "missing line":
        record.write_text("".join(lines[:1] + lines[2:]))
    elif change == "edited line":
        record.write_text("".join([lines[0].replace("1", "2", 1), *lines[1:]]))
    elif change == "emptied":
        record.write_text("")
    else:
        record.unlink()
    with pytest.raises(CheckpointError, match="is not the one that checkpoint"):
        train(None, run, resume=True)


def test_lines_after_the_checkpoint_are_cut_off_as_ever(
    own: Callable[[str], Path],
) -> None:
    whole, half = own("whole"), own("half")
    with (half / "record.jsonl").open("a") as file:
        file.write('{"kind": "swap", "step": 10}\n{"kind": "swap", "st')
    assert train(None, half, resume=True).status == "finished"
    assert_same_run(whole, half)


def test_runs_of_earlier_versions_load_and_go_on(own: Callable[[str], Path], runs: Path) -> None:
    whole, half = own("whole"), own("half")
    unseal(half)
    assert load_run(half).step == 8
    assert train(None, half, resume=True).status == "finished"
    assert_same_run(whole, half)
    found = latest(half / "checkpoints")
    assert found is not None
    assert "run" in json.loads((found.path / "checksum.json").read_text())


def test_so_do_their_finished_ones(own: Callable[[str], Path]) -> None:
    run = own("whole")
    posterior = load_run(run).posterior
    del posterior.about["files"]
    posterior.save(run / "posterior.safetensors")
    assert load_run(run).notice is None


def test_a_renamed_checkpoint_is_not_the_newest(tmp_path: Path) -> None:
    """It would stand in the way of every later one."""
    for step in (10, 20):
        save_checkpoint(tmp_path, step, {"step": step})
    (tmp_path / "step-00000010").rename(tmp_path / "step-99999999")
    assert not is_intact(tmp_path / "step-99999999")
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 20
    assert found.notice is not None
    assert "is of step 10, not of the step in its name" in found.notice
