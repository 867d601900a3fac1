"""Where the recorder finds what is not in ``gossamer`` itself, in old code and in new.

Whatever may move is listed here with all the places where it was; the first that exists is taken.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

PLACES: dict[str, tuple[str, ...]] = {
    "METHODS": ("gossamer.inference", "gossamer.inference.registry", "gossamer.inference.methods"),
    "RunConfig": ("gossamer.train", "gossamer.train.config"),
    "load_run": ("gossamer.train", "gossamer.train.load"),
    "train": ("gossamer.train", "gossamer.train.loop", "gossamer.train.run"),
    "isa": ("gossamer.ops.library", "gossamer.ops.native.library"),
    "use_isa": ("gossamer.ops.library", "gossamer.ops.native.library"),
    "is_available": ("gossamer.ops.library", "gossamer.ops.native.library"),
}


def find(name: str) -> Any:
    """The object of that name; what belongs to the engine is looked for in all of ``ops``."""
    places = list(PLACES[name])
    if places[0].startswith("gossamer.ops"):
        ops = importlib.import_module("gossamer.ops")
        places += [m.name for m in pkgutil.walk_packages(ops.__path__, "gossamer.ops.")]
    for place in places:
        try:
            found = getattr(importlib.import_module(place), name, None)
        except ModuleNotFoundError:
            continue
        if callable(found) or isinstance(found, dict):
            return found
    raise ImportError(f"golden: {name} is in none of {', '.join(PLACES[name])}: add its place")


class Engines:
    """The engine's instruction sets; no native library is told apart from a broken one."""

    def __init__(self) -> None:
        self.is_native = bool(find("is_available")())
        self.best: str | None = find("isa")() if self.is_native else None

    def backend(self, engine: str) -> str:
        """Choose the instruction set of an engine of ``cases.ENGINES``; what ``backend=`` takes."""
        if self.is_native:
            find("use_isa")("generic" if engine == "native-generic" else self.best)
        return "native" if engine.startswith("native") else engine


def predictor_of(loaded: Any) -> Any:
    """What ``gs.predict`` takes of a loaded run: its method, or a posterior that stands alone."""
    for name in ("method", "posterior"):
        if hasattr(loaded, name):
            return getattr(loaded, name)
    return loaded
