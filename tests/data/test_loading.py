from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.data import describe, load, load_inputs, load_ood
from gossamer.errors import InvalidData, InvalidValue, UnknownName


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)


def uci(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    order = np.arange(20)[None].repeat(2, axis=0)
    x = np.random.default_rng(0).normal(size=(20, 6))
    np.savez(path, X=x, y=x.sum(1), train_idx=order[:, :15], test_idx=order[:, 15:])


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"data set = mnits.*mnist"):
        load("mnits")
    with pytest.raises(UnknownName, match="data set = mnits"):
        describe("mnits")
    with pytest.raises(UnknownName, match="data set = mnits"):
        load_ood("mnits", None, load("digits").preparation)
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(InvalidData, match=r"must be .npz, .csv, .tsv,"):
        load(tmp_path / "a.xlsx")
    with pytest.raises(InvalidData, match=r"must be .npz, .csv, .tsv,"):
        load_inputs(tmp_path / "a.xlsx")


def test_uci_set_by_name_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uci(tmp_path / "uci/yacht.npz")
    data = load("yacht", data_dir=tmp_path)
    assert (data.name, data.task, data.input_shape) == ("yacht", "regression", (6,))
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    assert load("yacht", split=1).notes == ("split 1 of 2",)


def test_settings_that_do_not_suit(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"target = y: is for tables"):
        load("digits", target="y")
    with pytest.raises(InvalidValue, match="task = regression: digits is for classification"):
        load("digits", task="regression")
    with pytest.raises(InvalidValue, match="split = 1: digits has one split"):
        load("digits", split=1)
    uci(tmp_path / "a.npz")
    with pytest.raises(InvalidValue, match=r"target = y: is for tables"):
        load(tmp_path / "a.npz", target="y")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidValue, match="split = 2"):
        load(tmp_path / "a.csv", target="b", split=2)


def test_limits_and_fractions() -> None:
    data = load("digits", limit_train=500, validation_fraction=0.2)
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (500, 125, 359)
    with pytest.raises(InvalidValue, match="limit_train = 0"):
        load("digits", limit_train=0)


def test_named_images_as_out_of_distribution_inputs(tmp_path: Path) -> None:
    run = load("digits").preparation
    raw = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "notmnist_test.npz", x_test=raw, y_test=np.zeros(5))
    assert np.array_equal(load_ood("notmnist", tmp_path, run).numpy()[:, 0] * 16, raw)
    np.savez(tmp_path / "notmnist_test.npz", x_test=raw[:, :7], y_test=np.zeros(5))
    with pytest.raises(InvalidData, match=r"images = shape \(5, 7, 8\)"):
        load_ood("notmnist", tmp_path, run)


def test_named_table_as_out_of_distribution_inputs() -> None:
    run = load("breast_cancer")
    assert np.array_equal(load_ood("breast_cancer", None, run.preparation), run.x_test)
    with pytest.raises(InvalidData, match=r"shape \(88, 10\): must be \[N, 30\]"):
        load_ood("diabetes", None, run.preparation)
