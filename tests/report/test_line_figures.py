"""Lines of a table as points: what is drawn where."""

from __future__ import annotations

import pytest

from gossamer.report.line_figures import draw_lines

LINES = {
    "ours": {"nll": (0.05, 0.003), "checkpoint_bytes": (1.5e5, 0.0)},
    "theirs": {"nll": (0.06, None)},
}


def test_means_and_errors_stand_at_their_lines():
    figure = draw_lines(LINES, ["nll", "checkpoint_bytes"])
    nll, size = figure.axes
    assert [text.get_text() for text in nll.get_yticklabels()] == ["ours", "theirs"]
    points = [drawn.lines[0].get_xydata()[0].tolist() for drawn in nll.containers]
    assert points == [[0.05, 0], [0.06, 1]]
    (span,) = nll.containers[0].lines[2][0].get_segments()
    assert span[:, 0].tolist() == pytest.approx([0.047, 0.053])
    assert not nll.containers[1].lines[2], "a single run has no error"
    assert nll.yaxis_inverted(), "the first line stands on top"
    assert (nll.get_xscale(), size.get_xscale()) == ("linear", "log")
    assert len(size.containers) == 1, "a line without the metric has no point"
    assert (nll.get_xlabel(), size.get_xlabel()) == ("NLL ↓", "checkpoint, bytes")
