"""Pages about runs that are damaged, deep, many or oddly named."""

from __future__ import annotations

import json

import pytest

from report.page import check_self_contained, page_of

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
