from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.data import describe, load, load_ood, names
from gossamer.data.readers.remote import REMOTES
from gossamer.errors import InvalidData

EMBEDDED = {
    *("digits", "breast_cancer", "diabetes"),
    *("cvadam_example1", "cvadam_example2", "cvadam_example3"),
}
EXPECTED = {
    *EMBEDDED,
    *("mnist", "fashion_mnist", "cifar10", "cifar100"),
    *("notmnist", "svhn", "boston", "concrete", "energy", "protein", "wine_red", "yacht"),
}


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)


def test_every_name_is_described() -> None:
    assert set(names()) == EXPECTED
    for name in names():
        about = describe(name)
        assert about.name == name
        assert about.size
        assert about.text
        assert (about.origin == "download") == (name in REMOTES)
        assert (about.origin == "embedded") == (name in EMBEDDED)
    assert not describe("notmnist").trainable


@pytest.mark.parametrize("name", sorted(EXPECTED - EMBEDDED))
def test_not_found_says_where_and_what_next(tmp_path: Path, name: str) -> None:
    run = load("digits").preparation
    if describe(name).trainable:
        with pytest.raises(InvalidData, match=r"needs a data folder.*GOSSAMER_DATA"):
            load(name)
        with pytest.raises(InvalidData) as caught:
            load(name, data_dir=tmp_path)
    else:
        with pytest.raises(InvalidData, match="has no training part"):
            load(name, data_dir=tmp_path)
        with pytest.raises(InvalidData) as caught:
            load_ood(name, tmp_path, run)
    said = str(caught.value)
    assert str(tmp_path) in said
    step = f"gossamer data get {name} --data-dir DIR" if name in REMOTES else ".npz (X, y"
    assert step in said or "_test" in said
    assert "\n" not in said
