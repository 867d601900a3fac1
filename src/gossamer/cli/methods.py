"""``gossamer methods``: the methods, their presets and settings."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from gossamer.cli.output import Output, plain_table
from gossamer.cli.settings import settings_of
from gossamer.inference import METHODS, method_entry


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the table."""
    if args.name is None:
        output.result({name: _as_json(name) for name in METHODS}, _draw_all)
    else:
        method_entry(args.name)  # or a plain error
        output.result({args.name: _as_json(args.name)}, lambda console: _draw(args.name, console))
    return 0


def _as_json(name: str) -> dict[str, Any]:
    entry = method_entry(name)
    return {
        "about": entry.about,
        "presets": entry.presets,
        "settings": {
            setting.name: {
                "type": setting.type_name,
                "default": setting.default,
                "text": setting.text,
            }
            for setting in settings_of(name).values()
        },
    }


def _draw_all(console: Console) -> None:
    table = plain_table("method", "presets", "what it is")
    for name, entry in METHODS.items():
        table.add_row(name, ", ".join(entry.presets), entry.about)
    console.print(table, markup=False)
    console.print("\nSettings of one: gossamer methods NAME", style="dim")


def _draw(name: str, console: Console) -> None:
    entry = method_entry(name)
    others = [preset for preset in entry.presets if preset != "default"]
    table = plain_table("setting", "default", *others, "type", "what it does")
    for setting in settings_of(name).values():
        changed = [_shown(entry.presets[p].get(setting.name), absent="") for p in others]
        table.add_row(
            setting.name, _shown(setting.default), *changed, setting.type_name, setting.text
        )
    console.print(f"{name}: {entry.about}\n", style="bold", markup=False)
    console.print(table, markup=False)
    console.print(
        f"\nChange one: gossamer train --method {name} --set {next(iter(settings_of(name)))}=…",
        style="dim",
        markup=False,
    )


def _shown(value: Any, absent: str = "none") -> str:
    if value is None:
        return absent
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value).replace("'", "")
