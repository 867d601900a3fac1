"""A table as people have them, from file to answers: what was refused before is read and said."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.data import Findings, Preparation, load_inputs

COLUMNS = "id;area;city;sold;share;price"
WORDS = ("--method", "sgd", "--epochs", "2", "--set", "hidden=[8]", "--batch-size", "16")


def messy(rows: int = 120) -> list[str]:
    """Semicolons, decimal commas, money, per cent, dates, gaps, rare levels and an index."""
    draw = np.random.default_rng(3)
    lines = [";" + COLUMNS]
    for i in range(rows):
        area = f"{draw.normal(80, 20):.1f}".replace(".", ",") if i % 17 else ""
        city = ["Zürich", "Bern", "Basel"][i % 3] if i % 13 else f"village {i}"
        sold = f"{1 + i % 28:02d}/{1 + i % 12:02d}/{2015 + i % 7}"
        price = f"${draw.integers(200, 900)},{draw.integers(100, 999)}" if i != 40 else ""
        lines.append(f"{i};{1000 + i};{area};{city};{sold};{i % 90} %;{price}")
    return lines


@pytest.fixture(scope="module")
def messy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gossamer.cli.main import main

    folder = tmp_path_factory.mktemp("messy")
    data = folder / "t.csv.gz"
    data.write_bytes(gzip.compress("\n".join(messy()).encode("cp1252")))
    words = ["--data", str(data), "--target", "price", "--quiet", "--json", *WORDS]
    assert main(["train", *words, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_what_was_done_is_said_in_the_preparation_and_the_report(messy_run: Path) -> None:
    stored = json.loads((messy_run / "preparation.json").read_text())
    notes = "\n".join(stored["notes"])
    for said in (
        "t.csv.gz is not in UTF-8 and is read as Windows-1252 (Latin-1)",
        "the first column has no name and counts the rows; it is left out",
        "1 of 120 rows have no target 'price' and are left out",
        "target 'price': numbers are read as $1,234.5",
        "column 'area': numbers are read as 1234,5",
        "training rows): missing cells are read as the mean, with a feature that says so",
        "levels of fewer than 3 training rows are read as one level, other",
        "column 'sold': dates as DD/MM/YYYY, read as year, month, weekday, elapsed days",
        "column 'share': numbers are read as 1234.5 %",
        "warning: column 'id': a different whole number in every training row, as an id has",
    ):
        assert said in notes
    page = (messy_run / "report.html").read_text(encoding="utf-8")
    assert "<h3>Data</h3>" in page
    assert "dates as DD/MM/YYYY" in page
    features = Preparation.from_json(stored).inputs
    assert [column["dtype"] for column in stored["inputs"]["columns"]] == [
        *("int", "float", "str", "date", "int"),
    ]
    assert features.input_shape == (1 + 2 + 4 + 6 + 1,)


def test_the_answers_to_new_rows(
    gossamer: Callable[..., Any], messy_run: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    new.write_text(f"{COLUMNS}\n1;80,5;Lugano;2024-04-10;5 %;\n2;;Bern;10/04/2024;1.5 %;?\n")
    answer = gossamer("predict", messy_run, new, "--json")
    assert answer.code == 0
    assert answer.json["count"] == 2
    (remark,) = answer.json["remarks"]
    assert remark.startswith("column 'city': 1 cells hold a level of fewer than 3 training rows")
    assert remark.endswith("(e.g. Lugano)")
    stored = json.loads((messy_run / "preparation.json").read_text())
    raw = load_inputs(messy_run.parent / "t.csv.gz")
    assert Preparation.from_json(stored).prepare(raw, Findings()).isfinite().all()
    # Of prices about 550,000 ± 200,000; standardised ones would be within a few units of 0.
    assert answer.json["rows"][0]["std"] > 10_000


def test_the_rules_of_a_run(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(messy()))
    words = ("train", "--data", "t.csv", "--target", "price", "--quiet", "--no-report", *WORDS)
    said = gossamer(*words, "--missing", "error", "--out", "a").error
    assert "column 'area', row 0: is missing; fill it or remove the row" in said
    assert "must be 'mean' or" in gossamer(*words, "--missing", "never", "--out", "a").error
    assert "is a category that" in gossamer(*words, "--unknown", "error", "--out", "a").error
    assert not (tmp_path / "a").exists()
    assert gossamer(*words, "--missing", "drop", "--out", "b").code == 0
    notes = json.loads((tmp_path / "b/preparation.json").read_text())["notes"]
    assert "8 of 119 rows have missing cells and are left out" in notes
    assert json.loads((tmp_path / "b/config.json").read_text())["missing"] == "drop"
    (tmp_path / "new.csv").write_text(f"{COLUMNS}\n1;;Bern;10/04/2024;5 %;\n")
    said = gossamer("predict", "b", "new.csv").error
    assert "column 'area', row 0: is missing; fill it or remove the row: in training" in said


def test_dates_that_may_be_two_are_asked_for(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    rows = [f"{1 + i % 12:02d}/{1 + i % 9:02d}/2024,{i}.5" for i in range(60)]
    (tmp_path / "t.csv").write_text("d,y\n" + "\n".join(rows))
    words = ("train", "--data", "t.csv", "--target", "y", "--quiet", "--no-report", *WORDS)
    assert "say day_first=true or day_first=false" in gossamer(*words, "--out", "a").error
    assert gossamer(*words, "--set", "day_first=true", "--out", "a").code == 0
    notes = json.loads((tmp_path / "a/preparation.json").read_text())["notes"]
    assert any("dates as DD/MM/YYYY" in note for note in notes)
