from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.files import TEMPORARY
from gossamer.train import checkpoint
from gossamer.train.checkpoint import (
    best,
    is_intact,
    latest,
    load_checkpoint,
    mark_best,
    save_checkpoint,
)


def state_at(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {"step": step, "w": torch.randn(50, generator=generator), 3: (1.5, None)}


def save(folder: Path, *steps: int, **options: Any) -> None:
    for step in steps:
        save_checkpoint(folder, step, state_at(step), **options)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def assert_is_state(path: Path, step: int) -> None:
    state = load_checkpoint(path)
    assert state["w"].equal(state_at(step)["w"])
    assert {k: v for k, v in state.items() if k != "w"} == {"step": step, 3: (1.5, None)}


def test_round_trip_and_layout(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", 330, state_at(330))
    assert path == tmp_path / "c" / "step-00000330"
    assert names(path) == ["checksum.json", "state.json", "tensors.safetensors"]
    assert_is_state(path, 330)
    assert checkpoint.size_in_bytes(path) == sum(p.stat().st_size for p in path.iterdir())


def test_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    save(tmp_path, 10, best=True)
    save(tmp_path, 20, 30, 40)
    assert names(tmp_path) == ["best.json", "step-00000010", "step-00000030", "step-00000040"]
    save(tmp_path, 50, best=True, keep=1)
    assert names(tmp_path) == ["best.json", "step-00000050"]
    found = best(tmp_path)
    assert found is not None
    assert (found.path.name, found.step) == ("step-00000050", 50)


def test_steps_sort_as_numbers_beyond_eight_digits(tmp_path: Path) -> None:
    save(tmp_path, 99999999, 100000000)
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 100000000


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path / "missing") is None
    assert latest(tmp_path) is None
    assert best(tmp_path) is None


def test_an_intact_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(CheckpointError, match="never overwritten"):
        save_checkpoint(tmp_path, 10, {"other": 1})
    assert_is_state(tmp_path / "step-00000010", 10)


@pytest.mark.parametrize(("step", "keep"), [(-1, 2), (1, 0)])
def test_bad_numbers_are_refused(tmp_path: Path, step: int, keep: int) -> None:
    with pytest.raises(InvalidValue, match=r"must (not )?be"):
        save_checkpoint(tmp_path, step, {}, keep=keep)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "checksum.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit in tensors": (lambda p: flip(p / "tensors.safetensors"), "tensors.safetensors does not"),
    "bit in state": (lambda p: flip(p / "state.json"), "state.json does not match its checksum"),
    "truncated": (lambda p: os.truncate(p / "tensors.safetensors", 20), "does not match"),
    "empty state": (lambda p: os.truncate(p / "state.json", 0), "does not match"),
    "no tensors": (lambda p: (p / "tensors.safetensors").unlink(), "No such file"),
    "torn checksum": (lambda p: os.truncate(p / "checksum.json", 9), "checksum.json is not JSON"),
    "binary checksum": (lambda p: (p / "checksum.json").write_bytes(b"\xff\xfe"), "is damaged"),
    "no checksum": (lambda p: (p / "checksum.json").unlink(), "not a Gossamer checkpoint"),
    "no marker": (rewrite(format="other"), "not a Gossamer checkpoint (no marker)"),
    "a list": (lambda p: (p / "checksum.json").write_text("[]"), "not a Gossamer checkpoint"),
    "newer format": (rewrite(version=2), "has format version 2, this Gossamer reads 1"),
    "no sums": (rewrite(sha256=None), "does not match its checksum"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_named_and_passed_over(tmp_path: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    save(tmp_path, 10, 20)
    newest = tmp_path / "step-00000020"
    damage(newest)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(newest)
    assert message in str(caught.value)
    assert str(newest) in str(caught.value.value)
    assert caught.value.hint == "use step-00000010 beside it"
    assert "\n" not in str(caught.value)
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 10
    assert found.notice is not None
    assert "step-00000020" in found.notice
    assert "going on from step-00000010" in found.notice
    assert_is_state(found.path, 10)


def test_an_intact_newest_needs_no_notice(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    assert latest(tmp_path) == (tmp_path / "step-00000020", 20, None)


def test_only_damaged_ones_are_an_error(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    for step in (10, 20):
        flip(tmp_path / f"step-{step:08d}" / "state.json")
    with pytest.raises(CheckpointError, match="hold no intact one: step-00000020 is damaged"):
        latest(tmp_path)
    with pytest.raises(CheckpointError, match="there is no intact one beside it"):
        load_checkpoint(tmp_path / "step-00000020")


def test_a_right_checksum_of_a_wrong_content_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = tmp_path / "step-00000010"
    (path / "state.json").write_text('{"state": {"$tensor": "77"}}')
    (path / "checksum.json").write_text(checkpoint._checksums(path, 10))
    with pytest.raises(CheckpointError, match=r"is damaged \(state tree"):
        load_checkpoint(path)
    (path / "tensors.safetensors").write_bytes(b"\x00" * 4)
    (path / "checksum.json").write_text(checkpoint._checksums(path, 10))
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(path)


def test_a_missing_folder_and_a_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("missing", "file"):
        with pytest.raises(CheckpointError, match="does not exist"):
            load_checkpoint(tmp_path / name)


def test_a_damaged_newer_one_never_pushes_out_the_last_good_one(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    flip(tmp_path / "step-00000030" / "state.json")
    save(tmp_path, 25)
    assert names(tmp_path) == ["step-00000020", "step-00000025"]
    save(tmp_path, 30)
    assert_is_state(tmp_path / "step-00000030", 30)


def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 10)
    flip(tmp_path / "step-00000010" / "state.json")
    save(tmp_path, 10)
    assert_is_state(tmp_path / "step-00000010", 10)


@pytest.mark.parametrize("content", ["", "{}", '{"name": "../x"}', '{"name": 3}', "[]"])
def test_a_damaged_pointer_is_an_error_but_deletes_nothing_newest(
    tmp_path: Path, content: str
) -> None:
    save(tmp_path, 10, best=True)
    (tmp_path / "best.json").write_text(content)
    with pytest.raises(CheckpointError, match="names no checkpoint"):
        best(tmp_path)
    save(tmp_path, 20)
    assert is_intact(tmp_path / "step-00000010")


def test_a_pointer_to_nothing_is_an_error(tmp_path: Path) -> None:
    mark_best(tmp_path, "step-00000077")
    with pytest.raises(CheckpointError, match="does not exist"):
        best(tmp_path)


def test_leftovers_of_killed_writes_are_ignored_and_cleaned(tmp_path: Path) -> None:
    save(tmp_path, 10)
    leftover = tmp_path / f"{TEMPORARY}99-step-00000020"
    leftover.mkdir()
    (leftover / "state.json").write_text("half")
    (tmp_path / f"{TEMPORARY}99-best.json").write_text("half")
    found = latest(tmp_path)
    assert found is not None
    assert (found.step, found.notice) == (10, None)
    save(tmp_path, 30)
    assert names(tmp_path) == ["step-00000010", "step-00000030"]
    assert not list(tmp_path.glob(f"{TEMPORARY}*"))
