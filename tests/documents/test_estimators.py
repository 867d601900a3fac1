"""The examples of docs/estimators.md run, and say what they claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from documents.pages import run, snippets


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = run(snippets("estimators.md"), {}, "estimators.md")
    price = names["price"].to_numpy()
    assert np.abs(names["mean"] - price).mean() < 0.5 * price.std()
    assert (names["deciles"][:, 0] < names["deciles"][:, 1]).all()
    assert names["chooser"].score(names["houses"], names["dear"]) > 0.8
    np.testing.assert_allclose(names["answers"]["mean"], names["mean"], rtol=1e-5)
