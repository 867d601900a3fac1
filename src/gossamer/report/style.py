"""How figures look: colours that follow the page's light or dark theme, fonts, and clean SVG.

Figures are drawn once, in the light colours. Each of those few colours is then replaced in the SVG
by a CSS variable, so that the page decides what ink, grid and series look like on its background.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gossamer.report.compare import Group
from gossamer.report.reader import RunResult

Array = NDArray[np.float64]

INK, MUTED, GRID, TRACK = "#1f2328", "#656d76", "#e4e2dd", "#eceae5"
# Okabe and Ito (2008), told apart under the common colour-vision deficiencies; the yellow, too
# pale for lines on white, is left out.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", TRACK: "--track"} | {
    colour: f"--s{index}" for index, colour in enumerate(SERIES)
}
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "os^Dv*"
MOST_PANELS = 12

RC: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 9,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "text.color": INK,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.7,
    "lines.markersize": 3.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "gossamer",
}


@dataclass(frozen=True)
class Series:
    """A run as it is drawn: runs that differ only by seed look alike.

    Attributes:
        run: The run.
        label: Its group's label.
        place: Its group's place; gives the look.
    """

    run: RunResult
    label: str
    place: int

    @property
    def colour(self) -> str:
        """The colour of the group."""
        return SERIES[self.place % len(SERIES)]

    @property
    def dash(self) -> Any:
        """Solid for the first groups; another pattern each time the colours start again."""
        return _DASHES[self.place // len(SERIES) % len(_DASHES)]

    @property
    def marker(self) -> str:
        """A marker, so that groups differ without colour as well."""
        return _MARKERS[self.place % len(_MARKERS)]


def series_of(groups: Sequence[Group]) -> list[Series]:
    """The series of all runs, in the order of their groups."""
    return [
        Series(run, group.label, place) for place, group in enumerate(groups) for run in group.runs
    ]


def new_figure(width: float, height: float) -> Figure:
    """A figure of a size in inches, outside matplotlib's global state."""
    return Figure(figsize=(width, height))


def panels(count: int, *, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` equal panels, at most three in a row, sharing their axes."""
    columns = panel_columns(count)
    rows = -(-count // columns)
    figure = new_figure(11.4, 0.3 + height * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.set_visible(False)
    for index in range(max(count - columns, 0), count):
        axes[index].tick_params(labelbottom=True)
    return figure, axes[:count]


def panel_columns(count: int) -> int:
    """How many of ``count`` panels stand in a row; four make a square."""
    return 2 if count == 4 else min(count, 3)


def label_panels(axes: Sequence[Axes], x: str, y: str) -> None:
    """Labels the axes at the left and at the bottom of :func:`panels`."""
    columns = panel_columns(len(axes))
    for index, ax in enumerate(axes):
        if index >= len(axes) - columns:
            ax.set_xlabel(x)
        if index % columns == 0:
            ax.set_ylabel(y)


def line(ax: Axes, series: Series, x: Array, y: Array, **look: Any) -> None:
    """Draws one curve in the series' look; few points get markers, many are thinned."""
    x, y = thin(x), thin(y)
    marker = series.marker if len(x) <= 30 else None
    style = {"color": series.colour, "linestyle": series.dash, "marker": marker} | look
    ax.plot(x, y, markeredgewidth=0, **style)


def thin(values: Array, limit: int = 400) -> Array:
    """At most ``limit`` of the values, evenly spread, the first and the last among them."""
    if len(values) <= limit:
        return values
    chosen: Array = values[np.linspace(0, len(values) - 1, limit).round().astype(int)]
    return chosen


def plain(text: str) -> str:
    """A name as matplotlib must get it to draw it letter by letter.

    ``$`` would start a formula, and a leading ``_`` would hide the line from the legend. The root
    module has an empty name.
    """
    text = text.replace("$", r"\$") or "(root)"
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text


def to_svg(figure: Figure, *, prefix: str, label: str) -> str:
    """Writes a figure as an SVG element to stand inside a page.

    Args:
        figure: The figure.
        prefix: Put before every id, so that the figures of one page do not clash.
        label: What a screen reader says.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    size = re.search(r'viewBox="[^"]*"', text)
    body = text[text.index(">", text.index("<svg")) + 1 :]
    # Namespaces, metadata and global style are for stand-alone files; here they would leak.
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL).replace("xlink:href", "href")
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}-", body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"#[0-9a-f]{6}\b", _themed, body)
    body = re.sub(r"\n\s*", "\n", body)
    view = size.group(0) if size else ""
    return f'<svg class="plot" role="img" aria-label="{escape(label)}" {view}>{body.strip()}'


def draw(build: Any, *arguments: Any, prefix: str, label: str) -> str:
    """Builds a figure under the page's style and returns it as SVG."""
    with matplotlib.rc_context(RC):
        return to_svg(build(*arguments), prefix=prefix, label=label)


def draw_file(build: Any, *arguments: Any, title: str) -> str:
    """Builds a figure and returns it as an SVG file of its own: light, and no font is needed."""
    alone: Any = {"figure.facecolor": "white", "svg.fonttype": "path"}
    buffer = io.StringIO()
    with matplotlib.rc_context({**RC, **alone}):
        metadata = {"Date": None, "Creator": None, "Title": title}
        build(*arguments).savefig(buffer, format="svg", metadata=metadata)
    return buffer.getvalue()


def _themed(match: re.Match[str]) -> str:
    colour = match.group(0)
    variable = _VARIABLES.get(colour)
    return f"var({variable}, {colour})" if variable else colour
