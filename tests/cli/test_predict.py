from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import predict
from gossamer.data import Preparation
from gossamer.data.prepare import NumberColumn, TableInput, ValueTarget
from gossamer.prediction import RealPrediction
from gossamer.prediction.table import answer_columns
from gossamer.train import load_run

NAMES = ("setosa", "versi color", "7")


def write_csv(path: Path, columns: dict[str, list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def flowers(rows: int, seed: int) -> dict[str, list[Any]]:
    """Three kinds that width and colour tell apart; height is noise."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, 3, rows)
    return {
        "height": draw.normal(size=rows).round(4).tolist(),
        "width": (100 * (kind == 1) + draw.normal(size=rows)).round(4).tolist(),
        "colour": [("red", "red", "blue")[k] for k in kind],
        "kind": [NAMES[k] for k in kind],
    }


@pytest.fixture(scope="module")
def flower_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gossamer.cli.main import main

    folder = tmp_path_factory.mktemp("flowers")
    data = write_csv(folder / "flowers.csv", flowers(300, seed=0))
    run = folder / "run"
    words = ["--data", str(data), "--target", "kind", "--sparsity", "0.5", "--epochs", "12"]
    words += ["--set", "hidden=[16]", "--batch-size", "32", "--no-report", "--quiet", "--json"]
    assert main(["train", *words, "--lr", "0.02", "--out", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def house_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gossamer.cli.main import main

    folder = tmp_path_factory.mktemp("houses")
    data = write_csv(folder / "houses.csv", houses(300, seed=0))
    run = folder / "run"
    words = ["--data", str(data), "--target", "price", "--sparsity", "0", "--epochs", "30"]
    words += ["--set", "hidden=[16]", "--batch-size", "32", "--no-report", "--quiet", "--json"]
    assert main(["train", *words, "--lr", "0.02", "--out", str(run)]) == 0
    return run


def houses(rows: int, seed: int) -> dict[str, list[Any]]:
    """Prices about 300,000 ± 60,000 of which 5,000 is noise."""
    draw = np.random.default_rng(seed)
    area = draw.normal(size=rows)
    garden = draw.integers(0, 2, rows)
    price = 300_000 + 50_000 * area + 60_000 * (garden - 0.5) + 5_000 * draw.normal(size=rows)
    return {
        "area": area.round(4).tolist(),
        "garden": [("no", "yes")[g] for g in garden],
        "price": price.round(2).tolist(),
    }


def test_classes_round_trip_with_shuffled_columns_and_names(
    gossamer: Callable[..., Any], flower_run: Path, tmp_path: Path
) -> None:
    new = flowers(50, seed=1)
    truth = new.pop("kind")
    shuffled = {name: new[name] for name in ("colour", "height", "width")}
    write_csv(tmp_path / "new.csv", shuffled)
    answer = gossamer("predict", flower_run, "new.csv", "--out", "sub/answers.csv", "--json")
    assert answer.code == 0
    assert answer.json["count"] == 50
    rows = read_csv(Path("sub/answers.csv"))
    assert list(rows[0]) == [
        "label",
        *(f"prob_{name}" for name in sorted(NAMES)),
        "entropy",
        "mutual_information",
        "energy",
    ]
    assert np.mean([r["label"] == t for r, t in zip(rows, truth, strict=True)]) >= 0.9
    for row in rows:
        probs = {name: float(row[f"prob_{name}"]) for name in NAMES}
        assert sum(probs.values()) == pytest.approx(1.0, abs=1e-6)  # float32 softmax
        assert max(probs, key=lambda name: probs[name]) == row["label"]
        entropy = -sum(p * np.log(p) for p in probs.values() if p > 0)
        assert float(row["entropy"]) == pytest.approx(entropy, abs=1e-5)
        assert 0 <= float(row["mutual_information"]) <= float(row["entropy"]) + 1e-6
    loaded = load_run(flower_run)
    x = loaded.preparation.prepare({name: np.array(new[name]) for name in new})
    asked = predict(loaded.posterior, x, loaded.config.num_samples, seed=loaded.config.seed)
    assert [float(row["energy"]) for row in rows] == pytest.approx(asked.energy.tolist(), rel=1e-8)


def test_the_order_of_columns_and_a_target_column_change_nothing(
    gossamer: Callable[..., Any], flower_run: Path, tmp_path: Path
) -> None:
    new = flowers(20, seed=2)
    write_csv(tmp_path / "a.csv", new)
    write_csv(tmp_path / "b.csv", {name: new[name] for name in ("width", "colour", "height")})
    a, b = (gossamer("predict", flower_run, name) for name in ("a.csv", "b.csv"))
    assert a.code == b.code == 0
    assert a.out == b.out
    assert a.out.splitlines()[0].startswith("label,prob_7,")
    assert len(a.out.splitlines()) == 21


def test_values_come_in_original_units(
    gossamer: Callable[..., Any], house_run: Path, tmp_path: Path
) -> None:
    new = houses(200, seed=1)
    price = np.array(new.pop("price"))
    write_csv(tmp_path / "new.csv", new)
    found = gossamer("predict", house_run, "new.csv", "--json", "--num-samples", "10").json["rows"]
    assert list(found[0]) == ["mean", "std", "epistemic", "aleatoric", "lower_90", "upper_90"]
    table = {key: np.array([row[key] for row in found]) for key in found[0]}
    # Prices vary by 60,000; an answer in standardised units would be off by 300,000.
    assert np.sqrt(np.mean((table["mean"] - price) ** 2)) < 20_000
    assert np.all((table["std"] > 500) & (table["std"] < 60_000))
    total = np.sqrt(table["epistemic"] ** 2 + table["aleatoric"] ** 2)
    assert table["std"] == pytest.approx(total, rel=1e-5)  # float32
    assert np.all((table["lower_90"] < table["mean"]) & (table["mean"] < table["upper_90"]))
    inside = (table["lower_90"] <= price) & (price <= table["upper_90"])
    assert inside.mean() > 0.6


def test_intervals_have_the_level_that_was_asked_for_in_their_names(
    gossamer: Callable[..., Any], house_run: Path, flower_run: Path, tmp_path: Path
) -> None:
    new = houses(20, seed=1)
    file = write_csv(tmp_path / "new.csv", new)
    usual = gossamer("predict", house_run, file, "--json").json
    asked = gossamer("predict", house_run, file, "--json", "--coverage", "0.975").json
    assert (usual["interval_level"], asked["interval_level"]) == (0.9, 0.975)
    assert list(asked["rows"][0])[4:] == ["lower_97.5", "upper_97.5"]
    loaded = load_run(house_run)
    columns = {name: np.array(values, dtype=object) for name, values in new.items()}
    found = loaded.posterior.predict_table(columns, level=0.975)
    assert [row["upper_97.5"] for row in asked["rows"]] == found["upper_97.5"]
    for one, other in zip(usual["rows"], asked["rows"], strict=True):
        assert other["lower_97.5"] < one["lower_90"] < one["upper_90"] < other["upper_97.5"]
    head = gossamer("predict", house_run, file, "--coverage", "0.5").out.splitlines()[0]
    assert head == "mean,std,epistemic,aleatoric,lower_50,upper_50"
    for level in ("0", "1", "90", "nan", "x"):
        said = gossamer("predict", house_run, file, "--coverage", level).error
        assert f"coverage = {level}: must lie between 0 and 1" in said


def test_sets_of_labels_come_where_a_level_is_asked_for(
    gossamer: Callable[..., Any], flower_run: Path, tmp_path: Path
) -> None:
    flower = write_csv(tmp_path / "flower.csv", flowers(30, seed=1))
    plain = gossamer("predict", flower_run, flower, "--json").json["rows"]
    assert not any(name.startswith("set_") for name in plain[0])
    wide, narrow = (
        gossamer("predict", flower_run, flower, "--json", "--coverage", level).json["rows"]
        for level in ("0.9", "0.5")
    )
    sizes = []
    for rows, key in ((wide, "set_90"), (narrow, "set_50")):
        for row in rows:
            names = row[key].split(" | ")
            assert row["label"] in names
            assert {f"prob_{name}" for name in names} <= set(row)
        sizes.append(sum(len(row[key].split(" | ")) for row in rows))
    assert sizes[0] >= sizes[1]


def test_columns_of_the_file_are_kept_beside_the_answers(
    gossamer: Callable[..., Any], house_run: Path, tmp_path: Path
) -> None:
    new = houses(6, seed=1)
    plain = gossamer("predict", house_run, write_csv(tmp_path / "plain.csv", new)).out
    ids = ["007", "a,b", "", "x", "NA", "1e5"]
    file = write_csv(tmp_path / "new.csv", {**new, "id": ids, "note": list("uvwxyz")})
    answer = gossamer("predict", house_run, file, "--keep", "id", "--keep", "area", "--json")
    rows = answer.json["rows"]
    assert list(rows[0])[:3] == ["id", "area", "mean"]
    assert [row["id"] for row in rows] == ids
    assert [float(row["area"]) for row in rows] == new["area"]
    assert [f"{row['mean']:.9g}" for row in rows] == [
        line.split(",")[0] for line in plain.splitlines()[1:]
    ]
    # The column that is not kept is still told of, the one that is no longer.
    (remark,) = answer.json["remarks"]
    assert "column 'note' was not there in training" in remark
    gossamer("predict", house_run, file, "--keep", "id", "--out", "answers.csv")
    assert [row["id"] for row in read_csv(tmp_path / "answers.csv")] == ids

    new["area"][1] = "wide"
    bad = write_csv(tmp_path / "bad.csv", {**new, "id": ids})
    words = ("predict", house_run, bad, "--keep", "id", "--json", "--on-bad-row")
    skipped = gossamer(*words, "skip").json["rows"]
    assert [(row["row"], row["id"]) for row in skipped] == [
        (row, ids[row]) for row in (0, 2, 3, 4, 5)
    ]
    abstained = gossamer(*words, "abstain").json["rows"]
    assert [row["id"] for row in abstained] == ids
    assert abstained[1]["mean"] is None


def test_numbers_are_kept_with_every_digit(
    gossamer: Callable[..., Any], house_run: Path, tmp_path: Path
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    ids = [12345678901.5, 0.1, 3.0]
    parquet.write_table(pa.table({**houses(3, seed=1), "id": ids}), tmp_path / "new.parquet")
    gossamer("predict", house_run, tmp_path / "new.parquet", "--keep", "id", "--out", "answers.csv")
    assert [float(row["id"]) for row in read_csv(tmp_path / "answers.csv")] == ids


def test_what_cannot_be_kept_is_refused(
    gossamer: Callable[..., Any], house_run: Path, trained: Path, tmp_path: Path
) -> None:
    new = houses(3, seed=1)
    file = write_csv(tmp_path / "new.csv", {**new, "mean": [1, 2, 3], "row": [1, 2, 3]})
    said = gossamer("predict", house_run, file, "--keep", "idd").error
    assert "idd" in said
    assert "area" in said
    for name in ("mean", "row"):
        said = gossamer("predict", house_run, file, "--keep", name, "--out", "a.csv").error
        assert f"keep = {name}: is the name of a column of the answers" in said
    assert not (tmp_path / "a.csv").exists()
    np.savez(tmp_path / "images.npz", x=np.zeros((2, 8, 8)))
    assert "is for tables" in gossamer("predict", trained, "images.npz", "--keep", "id").error


def test_answers_equal_those_of_the_library(
    gossamer: Callable[..., Any], house_run: Path, tmp_path: Path
) -> None:
    new = houses(5, seed=3)
    write_csv(tmp_path / "new.csv", new)
    rows = gossamer("predict", house_run, "new.csv", "--json", "--num-samples", "3").json["rows"]
    loaded = load_run(house_run)
    columns = {name: np.array(values, dtype=object) for name, values in new.items()}
    prediction = predict(loaded.posterior, loaded.preparation.prepare(columns), 3, seed=0)
    target = json.loads((house_run / "preparation.json").read_text())["target"]
    mean = target["mean"][0] + target["scale"][0] * prediction.mean.double()
    assert [row["mean"] for row in rows] == pytest.approx(mean.tolist(), rel=1e-12)


def test_frames_are_answered_like_their_files(house_run: Path) -> None:
    import pyarrow as pa

    new = houses(5, seed=3)
    columns = {name: np.array(values, dtype=object) for name, values in new.items()}
    posterior = load_run(house_run).posterior
    assert posterior.predict_table(pa.table(new)) == posterior.predict_table(columns)


def test_several_targets_get_a_column_each() -> None:
    target = ValueTarget("y", (10.0, 100.0), (2.0, 3.0), vector=True)
    preparation = Preparation(TableInput((NumberColumn("x", "float"),)), target)
    ones = torch.ones(4, 5, 2)
    prediction = RealPrediction(ones[0], ones[0], ones[0], ones, ones)
    columns = answer_columns(prediction, preparation)
    assert list(columns)[:4] == ["mean_0", "mean_1", "std_0", "std_1"]
    assert columns["mean_0"] == [12.0] * 5
    assert columns["mean_1"] == [103.0] * 5
    assert columns["std_1"] == pytest.approx([3 * 2**0.5] * 5, rel=1e-6)
    # The 95 % point of N(1, 1) is 2.6448536: the mixture's parts are all the same.
    assert columns["upper_90_0"] == pytest.approx([10 + 2 * 2.6448536] * 5, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("width"), "column 'width' is missing"),
        (lambda c: c.update(width=["1", "2", "inf"]), "column 'width', row 2 = inf: must be"),
        (lambda c: c.update(width=["1", "x", "2"]), "column 'width', row 1 = x: is not a number"),
    ],
)
def test_a_mismatch_is_refused_by_name_and_nothing_is_written(
    gossamer: Callable[..., Any],
    flower_run: Path,
    tmp_path: Path,
    change: Callable[[dict[str, list[Any]]], object],
    said: str,
) -> None:
    new = flowers(3, seed=4)
    new.pop("kind")
    change(new)
    write_csv(tmp_path / "new.csv", new)
    assert said in gossamer("predict", flower_run, "new.csv", "--out", "answers.csv").error
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(weight=c["width"]), "column 'weight' was not there in training and is"),
        (lambda c: c["width"].__setitem__(2, ""), "column 'width': 1 cells are missing, though"),
        (lambda c: c["colour"].__setitem__(2, "pink"), "training never saw; no level is set"),
    ],
)
def test_what_can_be_answered_is_answered_with_a_remark(
    gossamer: Callable[..., Any],
    flower_run: Path,
    tmp_path: Path,
    change: Callable[[dict[str, list[Any]]], object],
    said: str,
) -> None:
    new = flowers(3, seed=4)
    plain = gossamer("predict", flower_run, write_csv(tmp_path / "plain.csv", new), "--json")
    change(new)
    answer = gossamer("predict", flower_run, write_csv(tmp_path / "new.csv", new), "--json")
    assert answer.code == 0
    assert said in answer.err
    assert [said in one for one in answer.json["remarks"]] == [True]
    assert answer.json["rows"][0] == plain.json["rows"][0]
    assert plain.json["remarks"] == []


def test_bad_rows_stop_are_skipped_or_get_no_answer(
    gossamer: Callable[..., Any], flower_run: Path, tmp_path: Path
) -> None:
    new = flowers(6, seed=4)
    good = gossamer("predict", flower_run, write_csv(tmp_path / "good.csv", new), "--json").json
    new["width"][1], new["height"][4] = "wide", "inf"
    bad = write_csv(tmp_path / "bad.csv", new)
    words = ("predict", flower_run, bad)
    assert "column 'height', row 4 = inf: must be finite" in gossamer(*words).error
    assert "must be one of: error, skip" in gossamer(*words, "--on-bad-row", "leave").error

    skipped = gossamer(*words, "--json", "--on-bad-row", "skip")
    kept = (0, 2, 3, 5)
    assert skipped.json["rows"] == [{"row": row, **good["rows"][row]} for row in kept]
    said = "2 rows with a cell that cannot be read are left out (e.g. row 1, row 4)"
    assert said in skipped.json["remarks"]

    assert gossamer(*words, "--on-bad-row", "abstain", "--out", "answers.csv").code == 0
    rows = read_csv(tmp_path / "answers.csv")
    assert [row["reason"] for row in rows] == [
        "",
        "column 'width', row 1 = wide: is not a number",
        "",
        "",
        "column 'height', row 4 = inf: must be finite",
        "",
    ]
    assert {value for key, value in rows[1].items() if key != "reason"} == {""}
    assert [row["label"] for row in rows][5] == good["rows"][5]["label"]


def test_batches_give_the_bits_of_the_whole_file(
    gossamer: Callable[..., Any],
    flower_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write_csv(tmp_path / "new.csv", flowers(700, seed=7))
    whole = gossamer("predict", flower_run, file, "--out", "whole.csv")
    monkeypatch.setattr("gossamer.cli.predict._BATCH_ROWS", 256)
    parts = gossamer("predict", flower_run, file, "--out", "parts.csv")
    assert whole.code == parts.code == 0
    assert (tmp_path / "whole.csv").read_bytes() == (tmp_path / "parts.csv").read_bytes()
    assert gossamer("predict", flower_run, file).out == (tmp_path / "parts.csv").read_text()
    new = flowers(700, seed=7)
    new["width"][600] = "wide"
    write_csv(file, new)
    said = gossamer("predict", flower_run, file, "--out", "late.csv").error
    assert "column 'width', row 600 = wide" in said
    assert not (tmp_path / "late.csv").exists()


def test_nothing_is_overwritten_without_force(
    gossamer: Callable[..., Any], flower_run: Path, tmp_path: Path
) -> None:
    write_csv(tmp_path / "new.csv", flowers(3, seed=5))
    (tmp_path / "answers.csv").write_text("mine")
    words = ("predict", flower_run, "new.csv", "--out")
    assert "exists; give --force" in gossamer(*words, "answers.csv").error
    assert (tmp_path / "answers.csv").read_text() == "mine"
    answer = gossamer(*words, "answers.csv", "--force")
    assert (answer.code, answer.out) == (0, "3 answers: answers.csv\n")
    assert len(read_csv(tmp_path / "answers.csv")) == 3
    assert "is the file to predict for" in gossamer(*words, "new.csv", "--force").error
    assert "must end in .csv" in gossamer(*words, "answers.txt").error


def test_images_from_npz(gossamer: Callable[..., Any], trained: Path, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    np.savez(tmp_path / "new.npz", x=load_digits().images[:7])
    answer = gossamer("predict", trained, "new.npz", "--json")
    assert answer.code == 0
    assert len(answer.json["rows"]) == 7
    assert all(row["label"] in "0123456789" for row in answer.json["rows"])
    np.savez(tmp_path / "large.npz", x=np.zeros((2, 9, 9)))
    assert "9" in gossamer("predict", trained, "large.npz").error


def test_a_terminal_gets_a_table(
    gossamer: Callable[..., Any],
    flower_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_csv(tmp_path / "new.csv", flowers(30, seed=6))
    monkeypatch.setattr("gossamer.cli.predict.sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    answer = gossamer("predict", flower_run, "new.csv")
    assert answer.code == 0
    assert "mutual_information" in answer.out
    assert "energy" in answer.out
    assert "10 more rows" in answer.out
