"""``--config FILE.toml``: the settings of a run from a file, under the options of the command."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from gossamer.errors import InvalidData

_LISTS = ("ood", "shift")
_WORDS = ("quality", "out")
_TABLES = ("method_options", "model_options", "likelihood_options")


def take_config(args: argparse.Namespace) -> None:
    """Put what a file says where no option says otherwise.

    Its keys are those of ``--set`` and the names of the options (``batch-size`` or
    ``batch_size``), lists for ``ood`` and ``shift``; ``[method_options]``, ``[model_options]`` and
    ``[likelihood_options]`` are tables. ``args.filed`` holds them as ``key=value`` texts, which
    options follow.

    Raises:
        InvalidData: The file cannot be read, or holds what is no setting.
    """
    args.filed = []
    path = Path(args.config)
    for given, value in _read(path).items():
        key = given.replace("-", "_")
        if key in _LISTS:
            if not isinstance(value, list):
                raise InvalidData(f"{given} in {path.name}", value, "must be a list of names")
            setattr(args, key, getattr(args, key) or [str(each) for each in value])
        elif key in _WORDS:
            if getattr(args, key) is None:
                setattr(args, key, str(value))
        elif key in _TABLES and isinstance(value, dict):
            args.filed += [f"{key}.{name}={_text(each)}" for name, each in value.items()]
        elif isinstance(value, dict):
            known = ", ".join(f"[{name}]" for name in _TABLES)
            raise InvalidData(
                f"[{given}] in {path.name}", None, "is no table of settings", f"there are {known}"
            )
        else:
            args.filed.append(f"{key}={_text(value)}")


def _read(path: Path) -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        found: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidData("config", str(path), f"cannot be read: {error.strerror}") from error
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidData(
            "config", str(path), f"is no TOML: {error}", "see docs/runs.md"
        ) from error
    return found


def _text(value: Any) -> str:
    """As ``--set`` reads it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
