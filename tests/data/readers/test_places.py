from __future__ import annotations

import os
from pathlib import Path

import pytest

from gossamer.data.readers.places import data_folders


def test_data_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "c"))
    joined = os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    assert data_folders(joined) == [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    assert data_folders(None) == [tmp_path / "c"]
    assert data_folders(tmp_path / "c") == [tmp_path / "c"]
