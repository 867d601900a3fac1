"""The page about one saved model: what its header says, and what it cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.errors import CheckpointError, InvalidValue
from gossamer.models import mlp
from gossamer.report import read_results, write_report
from gossamer.report.saved import read_saved
from gossamer.report.selection_figures import draw_importances
from gossamer.selection import Selection
from gossamer.sklearn import SparseBayesClassifier, SparseBayesRegressor
from report.page import Page, check_self_contained, page_of

TINY: dict[str, Any] = {"hidden": (8,), "max_steps": 30, "members": 4, "random_state": 0}


def rows(count: int = 120) -> tuple[Any, np.ndarray]:
    import pandas as pd

    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": draw.normal(size=count), "<city>": draw.choice(list("abcdefg"), count)}
    )
    return frame, 3 * frame["age"].to_numpy() + 0.1 * draw.normal(size=count)


@pytest.fixture(scope="module")
def regressor() -> SparseBayesRegressor:
    return SparseBayesRegressor(**TINY, method_options={"lr": 0.01}).fit(*rows())


@pytest.fixture(scope="module")
def page(regressor: SparseBayesRegressor, tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("saved")
    regressor.save(folder / "m.gossamer")
    return page_of([folder / "m.gossamer"], folder / "m.html")


def saved_with(model: SparseBayesRegressor, path: Path, **more: Any) -> Path:
    """The file of an estimator that keeps more than it does."""
    model.save(path)
    posterior = gs.load(path)
    posterior.about["estimator"].update(more)
    posterior.save(path)
    return path


def test_a_regressor_shows_settings_size_training_and_coverage(
    page: Page, regressor: SparseBayesRegressor
) -> None:
    check_self_contained(page)
    assert {key: card["figures"] for key, card in page.cards.items()} == {
        "nll": 1,
        "rmse": 1,
        "intervals": 1,
        "importances": 1,
    }
    assert "Not recorded" not in page.text
    for heading in ("m.gossamer", "Training", "Coverage of rows left out", "Settings", "Columns"):
        assert heading in page.headings
    size = regressor.posterior_.size
    for value in (f"{size['nnz']:,}", f"{size['sparsity']:.6g}", "SparseBayesRegressor"):
        assert value in page.text
    settings = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page.source))
    asked = {"max_steps": "30", "method_options.lr": "0.01", "networks": "4", "missing": "mean"}
    assert asked.items() <= settings.items()
    assert settings["method"] == regressor.posterior_.about["method"]
    for level, share in regressor.coverage_.items():
        line = f'<tr><th scope="row">{100 * level:g} %</th><td>{100 * share:.1f} %</td></tr>'
        assert line in page.source
    assert "&lt;city&gt;" in page.source
    assert "7 levels (a, b, c, d, e…)" in page.text


def test_the_curve_is_the_history(page: Page, regressor: SparseBayesRegressor) -> None:
    card = page.source[page.source.index('id="rmse"') : page.source.index('id="section-cal')]
    path = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*var\(--s0', card)[0]
    points = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", path), dtype=float)
    known = [epoch for epoch in regressor.history_ if "val_rmse" in epoch]
    values = [epoch["val_rmse"] for epoch in known]
    assert np.corrcoef(points[:, 1], values)[0, 1] < -1 + 1e-9
    assert np.corrcoef(points[:, 0], [epoch["epoch"] for epoch in known])[0, 1] > 1 - 1e-9


def test_a_classifier_and_a_bare_posterior_leave_out_what_they_have_not(tmp_path: Path) -> None:
    x, y = rows(250)  # of fewer none is held out
    model = SparseBayesClassifier(**TINY).fit(x, np.where(y > 0, "yes", "no"))
    model.save(tmp_path / "c.gossamer")
    page = page_of([tmp_path / "c.gossamer"], tmp_path)
    check_self_contained(page)
    assert set(page.cards) == {"nll", "accuracy", "ece", "importances"}
    assert "Coverage of rows left out" not in page.headings
    model.posterior_.save(tmp_path / "p.safetensors")
    page = page_of([tmp_path / "p.safetensors"], tmp_path / "p.html")
    check_self_contained(page)
    assert page.cards == {}
    assert f"{model.posterior_.size['nnz']:,}" in page.text


def test_a_small_classifier_shows_its_sets_not_intervals(tmp_path: Path) -> None:
    x, y = rows()
    model = SparseBayesClassifier(**TINY).fit(x, np.where(y > 0, "yes", "no"))
    model.save(tmp_path / "c.gossamer")
    page = page_of([tmp_path / "c.gossamer"], tmp_path / "c.html")
    check_self_contained(page)
    assert "intervals" not in page.cards
    assert "Coverage of rows left out" in page.headings
    assert "whose target lay in its set of labels" in page.text
    assert f"{100 * model.coverage_[0.9]:.1f} %" in page.text


@pytest.mark.parametrize(
    ("method", "settings"),
    [("ssvi", {"sparsity": 0.5}), ("dense_vi", {}), ("csghmc", {}), ("em_mcmc", {"sparsity": 0.7})],
)
def test_sizes_are_those_of_the_posterior(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    network = mlp(input_shape=(3,), output_size=1, hidden=[8])
    posterior = gs.fit((x, x[:, 1]), method, network, epochs=12, **settings).method.posterior()
    posterior.save(tmp_path / "p.gossamer")
    found = read_saved(tmp_path / "p.gossamer")
    size = posterior.size
    assert found.metrics["nnz"] == size["nnz"]
    assert found.metrics["sparsity"] == pytest.approx(size["sparsity"])
    assert sum(layer["nnz"] for layer in found.curves["layers"]) == size["nnz"]
    assert found.metrics["checkpoint_bytes"] == (tmp_path / "p.gossamer").stat().st_size


def test_figures_of_the_finish_are_those_of_the_posterior(
    regressor: SparseBayesRegressor, tmp_path: Path
) -> None:
    regressor.save(tmp_path / "m.gossamer")
    found = read_saved(tmp_path / "m.gossamer")
    figures = regressor.posterior_.finish_figures
    assert set(figures) == {"temperature", "calibration_rows"}
    assert {key: found.metrics[key] for key in figures} == figures
    assert found.task == "regression"


def test_what_the_file_keeps_of_columns_is_drawn(
    regressor: SparseBayesRegressor, tmp_path: Path
) -> None:
    inclusion = (0.01, 0.97, *[0.02] * 6)
    chosen = Selection((1,), (1,), inclusion, 0.1, "spike_slab", "because", {})
    path = saved_with(
        regressor,
        tmp_path / "m.gossamer",
        importances=[0.75, 0.25],
        notes=["column '<city>': read as 7 levels"],
        selection=chosen.to_json(),
    )
    page = page_of([path], tmp_path / "m.html")
    check_self_contained(page)
    text = page.cards["importances"]["text"]
    assert text.index("75.0 %") < text.index("25.0 %")
    assert "<city>" in text
    assert "1 of 8 columns at a false discovery rate of 0.1" in page.cards["inclusion"]["text"]
    assert "<li>column &#x27;&lt;city&gt;&#x27;: read as 7 levels</li>" in page.source


def test_a_wide_table_shows_which_columns_were_found(tmp_path: Path) -> None:
    import pandas as pd

    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 70))
    frame = pd.DataFrame(x, columns=[f"gene{place}" for place in range(70)])
    y = 3 * x[:, 4] - 2 * x[:, 9] + 0.1 * draw.normal(size=120)
    model = SparseBayesRegressor(**TINY).fit(frame, y)
    assert model.selection_ is not None
    model.save(tmp_path / "w.gossamer")
    page = page_of([tmp_path / "w.gossamer"], tmp_path / "w.html")
    check_self_contained(page)
    text = page.cards["inclusion"]["text"]
    assert f"{len(model.selection_.columns)} of 70 columns" in text
    for place in model.selection_.columns:
        assert f"gene{place}" in text


def test_importances_fall_and_what_has_no_room_is_summed() -> None:
    shares = np.arange(50) / np.arange(50).sum()
    (ax,) = draw_importances([f"c{i}" for i in range(50)], shares).axes
    widths = [bar.get_width() for bar in ax.patches]
    assert sum(widths) == pytest.approx(1.0)
    assert widths[:-1] == sorted(shares, reverse=True)[:29]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert (labels[0], labels[-1]) == ("c49", "the 21 others together")


def test_what_is_no_saved_model_is_refused(
    regressor: SparseBayesRegressor, tmp_path: Path, finished: Path
) -> None:
    file = tmp_path / "m.gossamer"
    regressor.save(file)
    whole = file.read_bytes()
    foreign = {"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    text = json.dumps(foreign).encode()
    for content in (b"", b"PK\x03\x04 no", whole[:-1], whole[:300], whole + b"x", b"\xff" * 40):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="no whole file that save wrote"):
            write_report([file], tmp_path / "m.html")
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError, match="no whole file that save wrote"):
        read_saved(file)
    with pytest.raises(InvalidValue, match="a file beside others"):
        read_results([finished / "ssvi-s0", file])
    assert not (tmp_path / "m.html").exists()


def test_a_page_of_others_is_never_replaced(
    regressor: SparseBayesRegressor, tmp_path: Path
) -> None:
    file, out = tmp_path / "m.gossamer", tmp_path / "m.html"
    regressor.save(file)
    out.write_text("<html>my notes</html>")
    with pytest.raises(InvalidValue, match="is no page of gossamer report"):
        write_report([file], out)
    assert out.read_text() == "<html>my notes</html>"
    out.unlink()
    first = write_report([file], out).read_bytes()
    assert write_report([file], out).read_bytes() == first
