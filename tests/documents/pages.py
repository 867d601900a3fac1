"""The code of the documentation's pages, as a reader would copy it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def snippets(page: str, under: str | None = None) -> list[str]:
    """The Python blocks of ``docs/<page>``; of the section ``under`` alone if it is given."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if under is not None:
        sections = text.split("\n## ")
        (text,) = [each for each in sections if each.splitlines()[0] == under]
    found = re.findall(r"```python\n(.*?)```", text, re.S)
    assert found, f"{page} has no code under {under}"
    return found


def run(code: list[str], names: dict[str, object], page: str) -> dict[str, object]:
    """Run blocks one after the other in one namespace, which a reader has in front of him."""
    for number, block in enumerate(code):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    return names
