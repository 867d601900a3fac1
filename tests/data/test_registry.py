from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.data import Description, describe, load, load_ood, names, registry
from gossamer.data.build import RawData
from gossamer.data.readers.remote import REMOTES
from gossamer.errors import InvalidData

EMBEDDED = {
    *("digits", "breast_cancer", "diabetes"),
    *("cvadam_example1", "cvadam_example2", "cvadam_example3"),
}
KNOWN = {
    *EMBEDDED,
    *("mnist", "fashion_mnist", "cifar10", "cifar100"),
    *("notmnist", "svhn", "boston", "concrete", "energy", "protein", "wine_red", "yacht"),
}


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)


def test_every_name_is_described() -> None:
    assert set(names()) >= KNOWN
    for name in names():
        about = describe(name)
        assert about.name == name
        assert about.size
        assert about.text
        assert (about.origin == "download") == (name in REMOTES)
    assert {name for name in KNOWN if describe(name).origin == "embedded"} == EMBEDDED
    assert not describe("notmnist").trainable


@pytest.mark.parametrize("name", sorted(KNOWN - EMBEDDED))
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


def test_a_set_without_a_test_part_trains_and_is_no_out_of_distribution_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    about = Description("untested", "regression", "20 × 2", "a set of one part", "embedded")
    source = registry.make_source(
        about, lambda _, __: RawData("untested", x, x.sum(1), np.arange(20))
    )
    monkeypatch.setitem(registry.SOURCES, "untested", source)
    data = load("untested", validation_fraction=0.25)
    assert (data.num_train, len(data.x_val), data.test) == (15, 5, None)
    with pytest.raises(InvalidData, match="data set 'untested': has no test part"):
        load_ood("untested", None, data.preparation)
