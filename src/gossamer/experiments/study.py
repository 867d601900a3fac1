"""What a study is: an experiment whose outcome is not a table of runs but figures of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gossamer.errors import CheckpointError
from gossamer.train.atomic import read_json, write_json

_JSON, _MARKDOWN = "study.json", "study.md"


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        values: JSON values.
        markdown: The same for a reader.
        figures: Files to lie beside them, by name: SVG.
    """

    values: dict[str, Any]
    markdown: str
    figures: Mapping[str, str] = field(default_factory=dict)


class Carry(Protocol):
    """A function that carries a study out."""

    def __call__(
        self, *, seed: int, data_dir: str | None, notice: Callable[[str], None]
    ) -> Findings:
        """Compute; ``notice`` takes lines of progress."""
        ...


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        key: ``PAPER/NAME``.
        title: One line.
        carry_out: Computes the findings.
    """

    key: str
    title: str
    carry_out: Carry


def run_study(
    study: Study,
    *,
    out: str | os.PathLike[str],
    seed: int = 0,
    data_dir: str | None = None,
    notice: Callable[[str], None],
) -> Findings:
    """Carry a study out; a finished one is read again.

    Its folder gets ``study.json``, ``study.md`` and the figures.

    Raises:
        CheckpointError: ``out`` holds something else.
    """
    folder = Path(out)
    stored = folder / _JSON
    if stored.exists():
        about = read_json(stored)
        found = (about.get("study"), about.get("seed")) if isinstance(about, dict) else None
        if found != (study.key, seed):
            raise CheckpointError(
                "study folder", str(folder), f"holds another study, {found}", "choose another --out"
            )
        notice(f"already done: {stored}")
        figures = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}
        markdown = (folder / _MARKDOWN).read_text(encoding="utf-8")
        return Findings(about["values"], markdown, figures)
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError("study folder", str(folder), "is not empty", "choose another --out")
    findings = study.carry_out(seed=seed, data_dir=data_dir, notice=notice)
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in findings.figures.items():
        (folder / name).write_text(svg, encoding="utf-8")
    (folder / _MARKDOWN).write_text(findings.markdown, encoding="utf-8")
    write_json(stored, {"study": study.key, "seed": seed, "values": findings.values})
    return findings
