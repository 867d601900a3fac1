from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import gossamer.report
from gossamer import files
from gossamer.report.compare import Group
from gossamer.report.figures import PLOTS
from gossamer.report.plots import columns, histogram, numbers
from gossamer.report.reader import RunResult
from gossamer.report.style import panel_columns, panels, series_of, thin

SOURCES = sorted(Path(gossamer.report.__file__).parent.glob("*.py"))
FREE = ("gossamer.report", "gossamer.errors", "gossamer.estimates", "gossamer.files")
"""What a report may import of the house: none of them needs torch."""


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", [*SOURCES, Path(files.__file__)], ids=lambda path: path.name)
def test_files_only_no_torch_and_no_global_plot_state(path):
    names = imported(path)
    inside = {name for name in names if name.startswith("gossamer.")}
    assert all(name.startswith(FREE) for name in inside)
    assert not any(name.split(".")[0] == "torch" or "pyplot" in name for name in names)


def test_groups_look_different_and_their_runs_alike():
    def run(name: str) -> RunResult:
        return RunResult(name, Path(name))

    groups = [Group(f"g{i}", (run(f"{i}a"), run(f"{i}b"))) for i in range(20)]
    series = series_of(groups)
    looks = [(one.colour, one.marker, str(one.dash)) for one in series]
    assert len(set(looks)) == 20
    assert all(looks[2 * i] == looks[2 * i + 1] for i in range(20))


def relative_luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_on_the_cards(theme):
    """WCAG 2: text at least 4.5 to 1 on its card, the lines of plots at least 2 to 1."""
    import re

    from gossamer.report.theme import CSS

    block = CSS.split("prefers-color-scheme: dark")[theme == "dark"]
    colours = {}
    for name, value in re.findall(r"--(\w+): (#[0-9a-f]{6})", block):
        colours.setdefault(name, value)

    def contrast(name: str) -> float:
        pair = sorted([relative_luminance(colours[name]), relative_luminance(colours["card"])])
        return (pair[1] + 0.05) / (pair[0] + 0.05)

    assert contrast("ink") > 7
    assert contrast("muted") > 4.5
    assert contrast("accent") > 4.5
    assert all(contrast(f"s{index}") > 2 for index in range(6))


@pytest.mark.parametrize(
    ("values", "scale"),
    [([2000.0, 90.0, 4.0], "log"), ([2.0, 1.0, 0.5], "linear"), ([200.0, 1.0, -1.0], "linear")],
)
def test_values_over_decades_get_a_logarithmic_axis(values, scale):
    epochs = [{"epoch": epoch, "val": {"nll": value}} for epoch, value in enumerate(values)]
    run = RunResult("run", Path("run"), epochs=epochs)
    plot = next(plot for plot in PLOTS if plot.key == "nll")
    (series,) = series_of([Group("g", (run,))])
    figure = plot.draw([(series, plot.read(run))])
    assert figure.axes[0].get_yscale() == scale


@pytest.mark.parametrize(
    ("count", "across"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3), (7, 3), (12, 3)]
)
def test_panels(count, across):
    assert panel_columns(count) == across
    figure, axes = panels(count)
    assert len(axes) == count
    assert sum(ax.get_visible() for ax in figure.axes) == count


def test_thin_keeps_the_ends():
    values = np.arange(10_001, dtype=np.float64)
    few = thin(values, 400)
    assert len(few) == 400
    assert (few[0], few[-1]) == (0, 10_000)
    assert np.all(np.diff(few) > 0)
    assert thin(values[:400]) is not None
    assert len(thin(values[:400], 400)) == 400


def test_numbers_from_json():
    assert numbers([1, 2.5]).tolist() == [1.0, 2.5]
    assert np.isnan(numbers([None, 1])[0])
    for bad in (None, [], "ab", [True], ["1"], {"a": 1}, [[1]]):
        assert numbers(bad) is None
    assert numbers([1, 2], length=3) is None


def test_columns_and_histogram_from_json():
    assert [c.tolist() for c in columns({"a": [1], "b": [2]}, ("a", "b"))] == [[1.0], [2.0]]
    assert columns({"a": [1], "b": [2, 3]}, ("a", "b")) is None
    assert columns({"b": [2, 3]}, ("a", "b")) is None
    edges, counts = histogram({"edges": [0, 1, 3], "counts": [2, None]})
    assert (edges.tolist(), counts.tolist()) == ([0, 1, 3], [2, 0])
    assert histogram({"edges": [0, 1], "counts": [0]}) is None
    assert histogram({"edges": [0, 1], "counts": [1, 2]}) is None
