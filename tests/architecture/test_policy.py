"""Policy as tests: what a reviewer would otherwise have to remember."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gossamer
from gossamer.core.removal import REMOVAL
from gossamer.inference import METHODS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DRAWERS = {"utils", "util", "helpers", "helper", "misc", "common"}


def test_no_file_is_a_drawer_or_too_long() -> None:
    assert not [p for p in SOURCES if p.stem in DRAWERS]
    lengths = {p.name: len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    assert not {name: n for name, n in lengths.items() if n > 500}


def test_no_pickle_in_the_package() -> None:
    """Checkpoints must never be able to run code; only the restricted CIFAR reader may unpickle."""
    allowed = {"unpickle.py"}
    pattern = re.compile(r"^\s*(import|from)\s+pickle|torch\.(load|save)\(|allow_pickle=True", re.M)
    users = [p.name for p in SOURCES if pattern.search(p.read_text(encoding="utf-8"))]
    assert set(users) <= allowed


def test_private_names_of_torch_stand_in_one_file() -> None:
    """Each may go with the next torch; there each has a function and a test."""
    pattern = re.compile(r"torch\._C|\b_C\b|\._version\b|_current_level")
    users = [p.name for p in SOURCES if pattern.search(p.read_text(encoding="utf-8"))]
    assert users == ["torch_private.py"]


def test_other_packages_see_only_the_face_of_ops() -> None:
    ops = ROOT / "src" / "gossamer" / "ops"
    outside = [p for p in SOURCES if ops not in p.parents]
    imports = re.compile(r"^(?:from|import) .*", re.M)
    users = {
        p.name: line
        for p in outside
        for line in imports.findall(p.read_text(encoding="utf-8"))
        if "gossamer.ops." in line
    }
    assert not users


def test_every_method_has_a_page_and_a_file() -> None:
    """The independence contract covers the folder: a method elsewhere would escape it."""
    files = {p.stem for p in (ROOT / "src/gossamer/inference/methods").glob("[a-z]*.py")}
    assert set(METHODS) == files
    for name in METHODS:
        assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()


def test_every_criterion_is_documented() -> None:
    page = (ROOT / "docs" / "criteria.md").read_text(encoding="utf-8")
    assert not [name for name in REMOVAL if f"`{name}`" not in page]


def test_public_names_are_few_and_documented() -> None:
    assert len(gossamer.__all__) <= 24
    missing = [n for n in gossamer.__all__ if not (getattr(gossamer, n).__doc__ or "").strip()]
    assert not missing


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http") and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


@pytest.mark.parametrize("module", ["gossamer.report", "gossamer.models"])
def test_package_imports_alone(module: str) -> None:
    """The report must work on a machine that only has the files."""
    code = (
        "import sys, importlib.util as u, pathlib\n"
        f"import {module}\n"
        "bad = [m for m in sys.modules if m.startswith('gossamer.train')]\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
