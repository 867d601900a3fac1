"""Policy as tests: what a reviewer would otherwise have to remember."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import gossamer
from gossamer.core.removal import REMOVAL
from gossamer.data import SHIFTS
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


def test_every_shift_is_documented() -> None:
    page = (ROOT / "docs" / "uncertainty.md").read_text(encoding="utf-8")
    assert not [name for name in SHIFTS if f"| `{name}` |" not in page]


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


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("gossamer", ("torch", "sklearn", "matplotlib", "gossamer.nn")),
        # torch's compiler alone takes longer to import than all of torch.
        ("gossamer.train", ("torch._dynamo", "lightning", "transformers", "tensorboard")),
        ("gossamer.train", ("gossamer.sklearn",)),
        ("gossamer.report", ("torch", "gossamer.train")),
        ("gossamer.models", ("gossamer.train", "gossamer.nn")),
        ("gossamer.optim", ("gossamer.inference", "gossamer.nn")),
    ],
)
def test_package_imports_alone(module: str, absent: tuple[str, ...]) -> None:
    """The report must work on a machine that only has the files, and without waiting for torch."""
    code = (
        "import sys\n"
        f"import {module}\n"
        f"bad = [m for m in sys.modules for a in {absent} if m == a or m.startswith(a + '.')]\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_load_from_their_homes() -> None:
    for name in gossamer.__all__:
        assert getattr(gossamer, name) is not None
    assert set(gossamer.__all__) <= set(dir(gossamer))
    with pytest.raises(AttributeError, match="has no attribute 'banana'"):
        _ = gossamer.banana


def test_no_function_hides_the_module_it_lives_in() -> None:
    """`import gossamer.x.y as m` must give the module: a package must not export y as a name."""
    hidden = []
    for source in SOURCES:
        if source.stem.startswith("__"):
            continue
        parts = source.relative_to(ROOT / "src").with_suffix("").parts
        package = importlib.import_module(".".join(parts[:-1]))
        importlib.import_module(".".join(parts))
        if not isinstance(getattr(package, parts[-1]), types.ModuleType):
            hidden.append(".".join(parts))
    assert not hidden


def test_nobody_hooks_into_every_optimiser_at_import() -> None:
    code = (
        "import gossamer.inference, torch.optim.optimizer as o\n"
        "assert not o._global_optimizer_pre_hooks\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_parameter_names_are_spelt_in_nn_alone() -> None:
    """A layer names its vectors; whoever spells them would miss those of another layer."""
    pattern = re.compile(r"""["'.]weight_(mean|raw_std|values)\b""")
    nn = ROOT / "src" / "gossamer" / "nn"
    users = [
        p.name
        for p in SOURCES
        if nn not in p.parents and pattern.search(p.read_text(encoding="utf-8"))
    ]
    assert not users


def test_nobody_asks_for_the_class_of_a_layer() -> None:
    """What a layer can do is asked of it: a class check leaves out what a user wrote."""
    pattern = re.compile(r"isinstance\([^)]*(Bayesian|Deterministic)Layer")
    allowed = {"skeleton.py"}  # says which of the two classes a file is to build again
    users = {p.name for p in SOURCES if pattern.search(p.read_text(encoding="utf-8"))}
    assert users <= allowed
