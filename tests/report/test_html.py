from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.report import write_report
from gossamer.report.figures import PLOTS

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Ids, links, headings, and for each card its text and the drawings in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.stack: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.cards: dict[str, dict] = {}
        self.card: str | None = None
        self.text = ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags[tag] += 1
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "srcset", "data"):
                self.links.append(value)
            assert not name.startswith("on")
        if tag == "article":
            self.card = attributes["id"]
            self.cards[self.card] = {"text": "", "figures": 0, "class": attributes["class"]}
        if self.card and attributes.get("class") == "plot":
            self.cards[self.card]["figures"] += 1
            assert attributes["aria-label"]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag
        if tag == "article":
            self.card = None

    def handle_data(self, data):
        if "style" in self.stack:
            return
        self.text += data
        if self.stack and self.stack[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        if self.card:
            self.cards[self.card]["text"] += data


def page_of(paths, out) -> Page:
    return Page(write_report(paths, out).read_text(encoding="utf-8"))


def check_self_contained(page: Page) -> None:
    assert "http" not in page.source
    assert "@import" not in page.source
    assert page.tags["script"] == page.tags["link"] == page.tags["iframe"] == 0
    outside = [link for link in page.links if not link.startswith(("#", "data:image/png;base64,"))]
    assert outside == []
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    targets = {link[1:] for link in page.links if link.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert targets
    assert targets <= set(page.ids)


CLASSIFICATION = {plot.key for plot in PLOTS if plot.task in (None, "classification")}
REGRESSION = {plot.key for plot in PLOTS if plot.task in (None, "regression")}


@pytest.fixture(scope="module")
def single(finished, tmp_path_factory) -> Page:
    return page_of([finished / "ssvi-s0"], tmp_path_factory.mktemp("page") / "single.html")


@pytest.fixture
def only(monkeypatch):
    """Restricts the page to some plots: drawing is most of the time."""

    def restrict(*keys: str) -> None:
        chosen = tuple(plot for plot in PLOTS if plot.key in keys)
        assert len(chosen) == len(keys)
        monkeypatch.setattr("gossamer.report.html.PLOTS", chosen)

    return restrict


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


HOSTILE = [
    {"reliability": {"edges": [0, 1], "confidence": [0.5], "accuracy": [0.5], "count": [0]}},
    {"reliability": {"edges": [0, 1], "confidence": [0.5, 1], "accuracy": [0.5], "count": [1]}},
    {"reliability": {"edges": [0, 1, 2], "confidence": [0.5], "accuracy": [0.5], "count": [1]}},
    {"reliability": None, "entropy": [], "selective": "x", "layers": {"a": 1}, "weights": 3},
    {"entropy": {"edges": [0, 1, 2], "right": [0, 0], "wrong": [1], "ood": None}},
    {"entropy": {"edges": [0, None, 2], "right": [1, 2]}},
    {"selective": {"coverage": [], "accuracy": []}},
    {"selective": {"coverage": [True], "accuracy": ["1"]}},
    {"layers": [1, {"name": "x"}, {"name": "y", "sparsity": "high"}]},
    {"weights": {"mean_hist": {"edges": [0.0], "counts": []}, "std_hist": {"counts": [1]}}},
    {"weights": {"mean_hist": {"edges": [0, 1], "counts": [None]}}},
]


FROM_CURVES = ("reliability", "selective", "entropy", "layers", "weight-mean", "weight-std")


@pytest.mark.parametrize("curves", HOSTILE)
def test_curves_that_cannot_be_drawn_give_notes(make_run, only, tmp_path, curves):
    only(*FROM_CURVES)
    folder = make_run("run")
    (folder / "curves.json").write_text(json.dumps(curves))
    page = page_of([folder], tmp_path / "out.html")
    for key in FROM_CURVES:
        assert page.cards[key]["figures"] == 0
        assert "Not recorded by this run." in page.cards[key]["text"]


def test_odd_but_drawable_curves(make_run, only, tmp_path):
    only(*FROM_CURVES)
    folder = make_run("run")
    curves = {
        "reliability": {"edges": [0, 1], "confidence": [0.5], "accuracy": [0.5], "count": [1]},
        "entropy": {"edges": [0, 1, 2], "right": [5, None], "wrong": None},
        "selective": {"coverage": [1.0], "accuracy": [1.0]},
        "layers": [{"sparsity": 0.5}, {"name": "b", "sparsity": 1, "nnz": None, "shape": None}],
        "weights": {
            "mean_hist": {"edges": [0, 1], "counts": [3]},
            "std_hist": {"edges": [0.0, 0.1, 1.0], "counts": [1, 2]},  # no logarithm of 0
        },
    }
    (folder / "curves.json").write_text(json.dumps(curves))
    page = page_of([folder], tmp_path / "out.html")
    assert {key: card["figures"] for key, card in page.cards.items()} == dict.fromkeys(
        FROM_CURVES, 1
    )


def test_odd_records(make_run, tmp_path):
    folder = make_run("run")
    lines = [
        {"kind": "epoch", "epoch": 1, "train": None, "val": {"nll": None, "accuracy": 0.5}},
        {"kind": "swap", "step": 5, "fraction": None, "layers": {"a": {"nnz": 0, "added": 0}}},
        {"kind": "swap", "step": 9, "layers": {"a": {"nnz": 4, "added": 1}, "b": "x"}},
        {"kind": "swap", "step": 12, "layers": {"_x": {"nnz": 4, "added": 1}, "": {"nnz": 2}}},
    ]
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of([folder], tmp_path / "out.html")
    assert page.cards["accuracy"]["figures"] == page.cards["turnover"]["figures"] == 1
    assert page.cards["turnover-total"]["figures"] == 1
    for name in ("a", "b", "_x", "(root)"):
        assert name in page.cards["turnover"]["text"]
    for key in ("nll", "kl", "ece", "swap-fraction"):
        assert page.cards[key]["figures"] == 0


def test_a_deep_network(make_run, only, tmp_path):
    only("layers", "turnover")
    layers = tuple((f"stages.{index}.conv", (64, 64 * 9), 0.9) for index in range(50))
    paths = [make_run("a", "ssvi", layers=layers), make_run("b", "rigl", layers=layers)]
    page = page_of(paths, tmp_path / "out.html")
    check_self_contained(page)
    assert page.tags["image"] == 2 + 1  # a heat map a run, and the colour bar
    assert "stages.49.conv" in page.cards["layers"]["text"]
    assert len(page.source) < 400_000


def test_many_runs(make_run, only, tmp_path):
    only("nll", "entropy")
    paths = [
        make_run(f"r{index}", "ssvi", index, epochs=3, swaps=2, config={"lr": index / 10})
        for index in range(14)
    ]
    page = page_of(paths, tmp_path / "out.html")
    check_self_contained(page)
    assert "Only the first 12 of 14 runs are shown." in page.cards["entropy"]["text"]
    assert "14 settings" in page.text
    # Colours repeat after six groups; then the line pattern tells them apart.
    assert 'stroke-dasharray="8 3"' in page.source


def test_names_are_text_and_never_markup(make_run, only, tmp_path):
    only("nll", "entropy", "layers", "turnover")
    evil = "<script>alert(1)&$x^2$"
    layers = ((evil, (4, 4), 0.5),)
    paths = [
        make_run(evil, "ssvi", 0, layers=layers, metrics={evil: 1.0}, config={"note": evil}),
        make_run("plain $1", "rigl", layers=layers, config={"note": '"><b>'}),
    ]
    page = page_of(paths, tmp_path / "out.html")
    check_self_contained(page)
    assert evil in page.cards["entropy"]["text"]
    assert evil in page.cards["layers"]["text"]
    assert page.text.count(evil) >= 5


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
