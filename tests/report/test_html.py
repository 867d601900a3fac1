from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.report import write_report
from gossamer.report.figures import PLOTS
from report.page import Page, check_self_contained, page_of

CLASSIFICATION = {plot.key for plot in PLOTS if plot.task in (None, "classification")}
REGRESSION = {plot.key for plot in PLOTS if plot.task in (None, "regression")}


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
    for section in ("Results", "Training", "Calibration", "Uncertainty", "Sparsity", "Weights"):
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
        "selective": ("share of inputs answered", "accuracy on those"),
        "entropy": ("entropy (nats)", "density", "OOD ("),
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
    for value in ("53.20", "30.10", "RMSE", "CRPS"):
        assert value in page.text
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
    assert sum(card["figures"] for card in page.cards.values()) == 0
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
