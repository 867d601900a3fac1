"""Runs every case on the Gossamer of ``PYTHONPATH`` and writes what came out, as JSON lines.

``compare.py`` runs it twice, in fresh processes, with the sources of two commits. So it may only
use names that both have: those of ``gossamer`` itself, and what ``places.py`` finds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

import gossamer as gs
from golden.cases import ENGINES, LOOPS, METHOD_CASES, RUNS, Case, matches
from golden.digest import STEP, flat_digests
from golden.loops import run_folder, run_loop
from golden.places import Engines, find
from golden.runs import run_method

Task = Callable[[str, Callable[[str, object], dict[str, str]]], None]
"""Runs a case on a backend, and notes values under the label of a step."""


class Recording:
    """A file of JSON lines: a header, then the values of every step of every case.

    Of a step only what it changed is written, so that a recording of thousands of steps stays
    small; ``difference.read`` puts it together again.

    Args:
        file: Open for writing.
        header: About the machine and the code.
    """

    def __init__(self, file: TextIO, header: dict[str, object]) -> None:
        self._file = file
        self._write({"header": header})

    def case(self, name: str) -> Callable[[str, object], dict[str, str]]:
        """What notes the values of a case, and returns their digests."""

        before: dict[str, str] = {}

        def note(label: str, value: object) -> dict[str, str]:
            nonlocal before
            values = flat_digests(value)
            if not label.startswith(STEP):
                self._write({"case": name, "step": label, "values": values})
                return values
            changed = {path: v for path, v in values.items() if before.get(path) != v}
            gone = [path for path in before if path not in values]
            self._write({"case": name, "step": label, "changed": changed, "gone": gone})
            before = values
            return values

        return note

    def fault(self, name: str, text: str) -> None:
        """A case that could not be run, or that contradicts itself."""
        self._write({"case": name, "fault": text})

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _of_method(case: Case) -> Task:
    return lambda backend, note: run_method(case, backend, note)


def _of_loop(option: str) -> Task:
    return lambda backend, note: run_loop(option, backend, note)


def _of_run(method: str) -> Task:
    def task(backend: str, note: Callable[[str, object], dict[str, str]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run_folder(method, backend, note, Path(folder) / "run")

    return task


def tasks(registry: set[str]) -> Iterator[tuple[str, tuple[str, ...], Task]]:
    """Name, engines and task of all cases whose method the tree has."""
    for case in METHOD_CASES:
        if case.method in registry:
            yield case.name, case.engines, _of_method(case)
    for option in LOOPS:
        yield f"loop/conv/{option}", ENGINES, _of_loop(option)
    for method in RUNS:
        yield f"run/{method}", ("masked", "native"), _of_run(method)


def record(out: Path, label: str, only: str | None) -> None:
    """Run all cases into a file."""
    engines, registry = Engines(), sorted(find("METHODS"))
    header = {
        "source": str(Path(gs.__file__).parent),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "isa": engines.best,
        "registry": registry,
    }
    with out.open("w", encoding="utf-8") as file:
        recording = Recording(file, header)
        for name, wanted, task in tasks(set(registry)):
            begin = time.perf_counter()
            taken = [
                e
                for e in wanted
                if matches(f"{name}@{e}", only) and (engines.is_native or e == "masked")
            ]
            for engine in taken:
                full = f"{name}@{engine}"
                try:
                    torch.manual_seed(0)
                    task(engines.backend(engine), recording.case(full))
                except Exception as error:
                    traceback.print_exc()
                    recording.fault(full, f"{type(error).__name__}: {error}")
            if taken:
                seconds = time.perf_counter() - begin
                print(f"{label:<9} {name} ({', '.join(taken)}) {seconds:.1f} s", flush=True)


def main(arguments: list[str] | None = None) -> Any:
    """The command line that ``compare.py`` calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="where gossamer must come from")
    parser.add_argument("--label", default="")
    parser.add_argument("--only")
    given = parser.parse_args(arguments)
    if given.source.resolve() not in Path(gs.__file__).resolve().parents:
        sys.exit(f"golden: gossamer comes from {gs.__file__}, not from {given.source}")
    warnings.simplefilter("ignore")
    os.environ.setdefault("MPLBACKEND", "Agg")
    torch.set_num_threads(1)
    record(given.out, given.label, given.only)


if __name__ == "__main__":
    main()
