"""What an experiment came to: values, tables and sentences, verdicts, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TextTable:
    """A table of texts.

    Attributes:
        headings: One for every column.
        rows: As many texts each.
        words: So many columns from the left hold words, the others numbers.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def to_markdown(self) -> str:
        """For a document."""
        rules = ["---"] * self.words + ["---:"] * (len(self.headings) - self.words)
        lines = [self.headings, rules, *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Verdict:
    """How a check came out.

    Attributes:
        name: What must hold.
        ok: Whether it does.
        text: The figures that decided it.
    """

    name: str
    ok: bool
    text: str

    def __str__(self) -> str:
        return f"{'✓' if self.ok else '✗'} {self.name}: {self.text}"


@dataclass(frozen=True)
class Outcome:
    """What an experiment came to.

    Attributes:
        values: JSON values.
        parts: The same for a reader: tables, and paragraphs in Markdown.
        verdicts: How the checks came out.
        figures: Files to lie beside it, by name: SVG.
        report: An HTML page about its runs.
        about: Which experiment it was, at what scale, by which Gossamer; from whoever ran it.
    """

    values: Mapping[str, Any]
    parts: tuple[TextTable | str, ...]
    verdicts: tuple[Verdict, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    report: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(verdict.ok for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            **self.about,
            **self.values,
            "checks": [{"name": v.name, "ok": v.ok, "text": v.text} for v in self.verdicts],
            "ok": self.ok,
            "report": None if self.report is None else str(self.report),
        }

    def to_markdown(self) -> str:
        """For a document."""
        about = self.about
        texts = [f"# {about['experiment']}: {about['title']}"]
        texts += [p.strip() if isinstance(p, str) else p.to_markdown() for p in self.parts]
        texts += ["\n".join(f"- {verdict}" for verdict in self.verdicts)] * bool(self.verdicts)
        scale = f"Scale {about['scale']}; " if about["scale"] else ""
        return "\n\n".join([*texts, f"{scale}Gossamer {about['gossamer']}."]) + "\n"
