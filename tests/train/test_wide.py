"""A run on a wide table keeps what its screening found, and its report draws it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gossamer.report import write_report
from gossamer.selection import Selection
from gossamer.train import RunConfig, load_dataset, train
from gossamer.train.wide import screened


def wide(folder: Path, columns: int) -> RunConfig:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, columns))
    y = 3 * x[:, 4] - 2 * x[:, 9] + 0.1 * draw.normal(size=120)
    names = [f"gene{place}" for place in range(columns)]
    np.savetxt(
        folder / "t.csv", np.c_[x, y], delimiter=",", header=",".join([*names, "y"]), comments=""
    )
    return RunConfig(
        data=str(folder / "t.csv"),
        target="y",
        screen=True,
        epochs=1,
        method="sgd",
        model_options={"hidden": [4]},
    )


def test_what_the_screening_found_is_kept_and_drawn(tmp_path: Path) -> None:
    config = wide(tmp_path, 70)
    train(config, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "selection.json").read_text())
    assert kept.pop("names") == [f"gene{place}" for place in range(70)]
    found = screened(load_dataset(config), config.seed)
    assert found is not None
    assert set(found.columns) >= {4, 9}
    assert Selection.from_json(kept) == found
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["facts"]["model_options"]["columns"] == list(found.inputs)
    page = write_report([tmp_path / "run"], tmp_path / "x.html").read_text(encoding="utf-8")
    card = page[page.index('id="inclusion"') :]
    card = card[: card.index("</article>")]
    assert f"{len(found.columns)} of 70 columns at a false discovery rate of 0.1" in card
    assert ">gene4<" in card
    assert ">gene9<" in card


def test_a_table_that_is_not_wide_keeps_nothing(tmp_path: Path) -> None:
    train(wide(tmp_path, 12), tmp_path / "run")
    assert not (tmp_path / "run" / "selection.json").exists()
    page = write_report([tmp_path / "run"], tmp_path / "x.html").read_text(encoding="utf-8")
    assert 'id="inclusion"' not in page
