from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.report import write_report
from gossamer.report.figures import PLOTS
from report.page import Page, check_self_contained, page_of

# Few runs know which columns matter.
USUAL = [plot for plot in PLOTS if plot.section != "Columns"]
CLASSIFICATION = {plot.key for plot in USUAL if plot.task in (None, "classification")}
REGRESSION = {plot.key for plot in USUAL if plot.task in (None, "regression")}


@pytest.fixture(scope="module")
def single(finished, tmp_path_factory) -> Page:
    return page_of([finished / "ssvi-s0"], tmp_path_factory.mktemp("page") / "single.html")


def test_one_classification_run(single):
    page = single
    check_self_contained(page)
    assert set(page.cards) == CLASSIFICATION
    assert {key: card["figures"] for key, card in page.cards.items()} == dict.fromkeys(
        CLASSIFICATION, 1
    )
    sections = ("Results", "Training", "Calibration", "Uncertainty", "Shift", "Sparsity", "Weights")
    for section in sections:
        assert section in page.headings
    for section in ("All metrics", "Setup", "Settings", "Environment", "ssvi-s0"):
        assert section in page.headings
    for value in ("0.9700", "0.2100", "0.0300", "4,224", "101 kB", "12.5 s"):  # metrics.json
        assert value in page.text
    for setting in ("method_options.sparsity", "model_options.hidden", "256, 256", "2.13.0"):
        assert setting in page.text
    for plot in PLOTS:
        if plot.key in CLASSIFICATION:
            assert plot.caption.replace(" %", "\u00a0%") in page.cards[plot.key]["text"]


def test_axes_are_labelled(single):
    page = single
    expected = {
        "nll": ("epoch", "negative log-likelihood (nats)"),
        "kl": ("epoch", "KL (nats)", "KL weight"),
        "accuracy": ("epoch", "accuracy"),
        "ece": ("epoch", "expected calibration error"),
        "reliability": ("confidence", "accuracy", "share", "ECE 0.0300"),
        "selective": (
            "share of inputs answered",
            "error rate on those",
            "AURC 0.00123, excess 0.00045",
            "the best order of these answers",
        ),
        "entropy": ("entropy (nats)", "density", "OOD ("),
        "shift": ("rotation", "noise", "severity", "clean", "accuracy ↑", "NLL ↓", "ECE ↓"),
        "layers": ("share of the weights removed", "93 % · 1,147 of 256×64"),
        "swap-fraction": ("optimiser step", "swap fraction"),
        "turnover-total": ("optimiser step", "fresh weights / nnz"),
        "turnover": ("optimiser step", "fresh weights / nnz", "layer"),
        "weight-mean": ("weight mean", "density"),
        "weight-std": ("weight standard deviation", "share of weights per decade"),
    }
    assert set(expected) == CLASSIFICATION
    for key, words in expected.items():
        for word in words:
            assert word in page.cards[key]["text"]


def test_several_runs_are_overlaid(finished, tmp_path):
    paths = [finished / name for name in ("ssvi-s0", "ssvi-s1", "dense", "sgd")]
    page = page_of(paths, tmp_path / "out.html")
    check_self_contained(page)
    assert set(page.cards) == CLASSIFICATION
    assert all(card["figures"] == 1 for card in page.cards.values())
    assert "4 runs on digits" in page.headings
    for key in ("nll", "accuracy", "ece", "reliability", "selective", "weight-mean"):
        for label in ("ssvi 95 %", "dense_vi", "sgd"):
            assert label in page.cards[key]["text"]
    # Methods that lack something are told apart from broken runs.
    assert "Not recorded by sgd. Methods without a posterior" in page.cards["kl"]["text"]
    assert "Not recorded by dense, sgd. Methods with a fixed" in page.cards["turnover"]["text"]
    # Each run has its own panel where runs cannot be overlaid.
    for name in ("ssvi-s0", "ssvi-s1", "dense", "sgd"):
        assert name in page.cards["entropy"]["text"]
    # The mean over the two seeds: accuracy 0.970 and 0.974, standard error 0.002.
    assert "0.9720 ± 0.0020" in page.text
    assert "2 runs, seeds 0, 1" in page.text


def test_curves_are_where_the_values_are(single, finished):
    """The swap fraction falls in the record, so its line must fall on the page."""
    folder, source = finished / "ssvi-s0", single.source
    card = source[source.index('id="swap-fraction"') : source.index('id="turnover-total"')]
    lines = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*var\(--s0', card)
    points = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", lines[0]), dtype=float)
    record = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    swaps = [(line["step"], line["fraction"]) for line in record if line["kind"] == "swap"]
    x, y = np.array(swaps).T
    # Pixels are an affine map of the values, written with six decimals; y grows downwards.
    assert np.corrcoef(points[:, 0], x)[0, 1] > 1 - 1e-9
    assert np.corrcoef(points[:, 1], y)[0, 1] < -1 + 1e-9


def test_regression_run(finished, tmp_path):
    page = page_of([finished / "table"], tmp_path / "out.html")
    check_self_contained(page)
    assert set(page.cards) == REGRESSION
    assert all(card["figures"] == 1 for card in page.cards.values())
    assert "nominal coverage" in page.cards["intervals"]["text"]
    for value in ("53.20", "30.10", "RMSE", "CRPS", "epistemic std", "12.50"):
        assert value in page.text
    for word in ("mean squared error on those", "AURC 1,512.25, excess 500.50"):
        assert word in page.cards["selective-values"]["text"]
    for word in ("RMSE ↓", "NLL ↓", "coverage", "severity", "noise"):
        assert word in page.cards["shift-values"]["text"]


def test_a_card_without_a_neighbour_gets_the_row(finished, only, tmp_path):
    only("intervals")
    page = page_of([finished / "table"], tmp_path / "out.html")
    assert "lone" in page.cards["intervals"]["class"]


def test_both_tasks_on_one_page(finished, only, tmp_path):
    only("accuracy", "rmse", "reliability", "intervals")
    page = page_of([finished / "ssvi-s0", finished / "table"], tmp_path / "out.html")
    check_self_contained(page)
    assert set(page.cards) == {"accuracy", "rmse", "reliability", "intervals"}
    assert all(card["figures"] == 1 for card in page.cards.values())
    # A classifier is not blamed for having no intervals, nor the other way round.
    assert "Not recorded" not in page.cards["intervals"]["text"]
    assert "Not recorded" not in page.cards["reliability"]["text"]
    assert "2 runs" in page.headings


def lines_of(page, section: str) -> list[list[str]]:
    """The cells of every table line in a section of the page."""
    start = page.source.index(f'<section id="section-{section}"')
    html = page.source[start : page.source.index("</section>", start)]
    cells = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>")
    return [
        [" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in cells.findall(line)]
        for line in re.findall(r"<tr>(.*?)</tr>", html)
    ]


def test_foreign_sets_have_a_column_for_every_score(finished, only, tmp_path):
    only("entropy")
    page = page_of([finished / "ssvi-s0", finished / "sgd"], tmp_path / "out.html")
    head, *lines = lines_of(page, "uncertainty")
    scores = ["by entropy ↑", "by mutual information ↑", "by energy ↑", "AUPR ↑", "FPR95 ↓"]
    assert head == ["set", *scores]
    assert [line[1:] for line in lines] == [
        ["0.9300", "0.9450", "0.9150", "0.9100", "0.2200"],
        ["0.9300", "–", "0.9150", "0.9100", "0.2200"],
    ]
    assert [line[0].split() for line in lines] == [
        ["notmnist.npz", "ssvi", "95", "%"],
        ["notmnist.npz", "sgd"],
    ]


def test_every_severity_stands_in_a_table(single):
    lines = lines_of(single, "shift")
    assert ["", "clean", "1", "2", "3", "4", "5"] in lines
    assert ["rotation", "0.9700", "0.6600", "0.7200", "0.7800", "0.8400", "0.9000"] in lines
    assert ["noise", "0.0300", "0.0330", "0.0360", "0.0390", "0.0420", "0.0450"] in lines
    names = [line[0] for line in lines_of(single, "all-metrics")]
    assert "accuracy under shift ↑" in names
    assert not [name for name in names if "rotation" in name], "not once more"


def test_the_lines_of_a_shift_are_where_its_values_are(single):
    """Accuracy is 0.97, then 0.66 to 0.90: a fall, and a straight line up."""
    start = single.source.index('id="shift"')
    card = single.source[start : single.source.index("</article>", start)]
    paths = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*var\(--s0', card)
    points = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", paths[0]), dtype=float)
    values = np.array([0.97, 0.66, 0.72, 0.78, 0.84, 0.9])
    assert np.corrcoef(points[:, 0], np.arange(6))[0, 1] > 1 - 1e-9
    assert np.corrcoef(points[:, 1], values)[0, 1] < -1 + 1e-9


def test_a_run_without_foreign_sets_and_shifts_has_no_empty_cards(make_run, only, tmp_path):
    only("nll", "shift", "shift-values")
    folder = make_run("run")
    measured = json.loads((folder / "metrics.json").read_text())
    few = {key: measured[key] for key in ("accuracy", "nll", "nnz")}
    (folder / "metrics.json").write_text(json.dumps(few))
    page = page_of([folder], tmp_path / "out.html")
    assert set(page.cards) == {"nll"}
    assert "Shift" not in page.headings
    assert "Uncertainty" not in page.headings


def test_a_run_that_measured_no_shift_is_named_beside_those_that_did(make_run, only, tmp_path):
    only("shift")
    with_shift, without = make_run("moved"), make_run("still", "rigl")
    measured = json.loads((without / "metrics.json").read_text())
    kept = {k: v for k, v in measured.items() if not k.startswith("shift")}
    (without / "metrics.json").write_text(json.dumps(kept))
    page = page_of([with_shift, without], tmp_path / "out.html")
    assert "Not recorded by still." in page.cards["shift"]["text"]


def test_areas_of_several_runs_stand_in_their_colours(make_run, only, tmp_path):
    only("selective")
    paths = [
        make_run("a", "ssvi", 0, metrics={"aurc": 0.002}),
        make_run("b", "ssvi", 1, metrics={"aurc": 0.004}),
        make_run("c", "sgd", metrics={"aurc": 0.5}),
    ]
    text = page_of(paths, tmp_path / "out.html").cards["selective"]["text"]
    assert "AURC 0.003" in text  # the mean over the two seeds
    assert "AURC 0.5000" in text
    assert "best order" not in text.partition("share of inputs")[0]


def test_a_run_of_the_first_version_has_its_curve(make_run, only, tmp_path):
    """It wrote accuracies, and neither areas nor the best order."""
    only("selective")
    folder = make_run("old")
    curves = json.loads((folder / "curves.json").read_text())
    accuracy = [1.0, 1.0, 0.9, 0.7]
    curves["selective"] = {"coverage": [0.25, 0.5, 0.75, 1.0], "accuracy": accuracy}
    (folder / "curves.json").write_text(json.dumps(curves))
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["aurc"], metrics["eaurc"]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    page = page_of([folder], tmp_path / "out.html")
    assert page.cards["selective"]["figures"] == 1
    assert "AURC 0" not in page.cards["selective"]["text"]
    paths = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*var\(--s0', page.source)
    points = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", paths[0]), dtype=float)
    assert np.corrcoef(points[:, 1], accuracy)[0, 1] > 1 - 1e-9, "risk is drawn upwards"


def test_missing_files_give_notes(make_run, tmp_path):
    folder = make_run("half")
    for name in ("curves.json", "metrics.json", "environment.json"):
        (folder / name).unlink()
    page = page_of([folder], tmp_path / "out.html")
    check_self_contained(page)
    for key in ("reliability", "selective", "entropy", "layers", "weight-mean", "weight-std"):
        assert page.cards[key]["figures"] == 0
        assert "Not recorded by this run." in page.cards[key]["text"]
    for key in ("nll", "kl", "accuracy", "swap-fraction"):
        assert page.cards[key]["figures"] == 1
    assert "did the run finish?" in page.text
    assert "curves.json is missing" in page.text


def test_only_metrics(make_run, tmp_path):
    folder = make_run("bare")
    for path in folder.iterdir():
        if path.name != "metrics.json":
            path.unlink()
    page = page_of([folder], tmp_path / "out.html")
    check_self_contained(page)
    # The figure under corruption is drawn from the metrics themselves.
    assert {key for key, card in page.cards.items() if card["figures"]} == {"shift"}
    assert "0.9700" in page.text


def test_the_page_follows_light_dark_and_paper(single):
    source = single.source
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source
    body = source[source.index("</style>") :]
    # Every colour in the drawings can be changed by the theme.
    fixed = set(re.findall(r"(?<!, )#[0-9a-f]{6}\b", body))
    assert fixed <= {"#000000"}


def test_same_runs_same_page(single, finished, tmp_path):
    again = write_report([finished / "ssvi-s0"], tmp_path / "b.html")
    assert again.read_text(encoding="utf-8") == single.source


def test_where_it_is_written(make_run, only, tmp_path):
    only("nll")
    run = make_run("run")
    assert write_report([run], tmp_path) == tmp_path / "report.html"
    assert write_report([str(run)], str(tmp_path / "new" / "folder")).name == "report.html"
    target = tmp_path / "deep" / "down" / "x.html"
    assert write_report([run], target) == target
    before = target.read_text()
    target.write_text("old")
    write_report([run], target)
    assert target.read_text() == before
    assert [path.name for path in target.parent.iterdir()] == ["x.html"]


def test_bad_arguments(make_run, only, tmp_path):
    only("nll")
    run = make_run("run")
    with pytest.raises(InvalidValue, match="at least one run"):
        write_report([], tmp_path / "x.html")
    config = (run / "config.json").read_bytes()
    with pytest.raises(InvalidValue, match=r"out = .*must end in \.html"):
        write_report([run], run / "config.json")
    assert (run / "config.json").read_bytes() == config
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="could not be written"):
        write_report([run], tmp_path / "file" / "x.html")
    with pytest.raises(CheckpointError, match="is not a folder"):
        write_report([run, tmp_path / "nowhere"], tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_the_columns_of_a_wide_table_are_drawn(make_run, only, tmp_path):
    only("inclusion")
    folders = [make_run("one", seed=0), make_run("two", seed=1)]
    inclusion = [0.0] * 60
    inclusion[7] = 0.96
    found = {"inclusion": inclusion, "columns": [7], "level": 0.1, "by": "spike_slab"}
    names = [f"gene {place}" for place in range(60)]
    (folders[0] / "selection.json").write_text(json.dumps({**found, "names": names}))
    page = page_of(folders, tmp_path / "x.html")
    check_self_contained(page)
    text = page.cards["inclusion"]["text"]
    assert page.cards["inclusion"]["figures"] == 1
    assert "1 of 60 columns at a false discovery rate of 0.1" in text
    assert "gene 7" in text
    assert "gene 8" not in text
    assert "Not recorded by two." in text
    for damaged in ({"inclusion": inclusion}, {**found, "columns": [60]}, {**found, "columns": 7}):
        (folders[0] / "selection.json").write_text(json.dumps(damaged))
        assert page_of(folders, tmp_path / "x.html").cards == {}


def test_what_was_done_to_columns_is_said_once_and_escaped(make_run, only, tmp_path):
    only("nll")
    folders = [make_run("one", seed=0), make_run("two", seed=1)]
    for folder in folders:
        notes = ["column '<b>': dates as YYYY-MM-DD", f"only in {folder.name}"]
        (folder / "preparation.json").write_text(json.dumps({"notes": notes}))
    html = write_report(folders, tmp_path / "x.html").read_text(encoding="utf-8")
    assert html.count("column &#x27;&lt;b&gt;&#x27;: dates as YYYY-MM-DD") == 1
    assert all(html.count(f"<li>only in {name}</li>") == 1 for name in ("one", "two"))
