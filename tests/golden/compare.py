"""``make golden BASE=<commit>``: the numbers of BASE and of the present code, on one machine.

BASE is checked out as a git worktree in ``build/golden``, its engine compiled there, both kept for
the next run. ``record.py`` runs in a fresh process for each of the two sources; then the
recordings must be equal to the last bit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from golden.cases import METHOD_CASES
from golden.difference import Report, compare, read

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "golden"
SHOWN = 20
"""Names of differing cases that are printed."""


def main(arguments: list[str] | None = None) -> int:
    """0 if all is equal, 1 at a difference, 2 if nothing could be compared."""
    parser = argparse.ArgumentParser(prog="make golden", description=__doc__)
    parser.add_argument("base", nargs="?", help="the commit whose numbers are the truth")
    parser.add_argument("--only", help="part of a case's name, or a pattern with *")
    parser.add_argument("--in-turn", action="store_true", help="one tree after the other")
    given = parser.parse_args(arguments)
    if not given.base:
        print("golden: no BASE; give the commit to compare with: make golden BASE=<commit>")
        return 2
    begin = time.perf_counter()
    try:
        tree = _worktree(given.base)
        files = _record(tree, given.only, in_turn=given.in_turn)
        return judge(*files, only=given.only, seconds=time.perf_counter() - begin)
    except subprocess.CalledProcessError as error:
        print(f"golden: {' '.join(map(str, error.cmd))} failed with {error.returncode}")
        return 2


def _worktree(base: str) -> Path:
    """The checked out commit with its engine compiled."""
    commit = _git("rev-parse", "--verify", f"{base}^{{commit}}")
    tree = PLACE / commit[:12]
    if not (tree / "setup.py").is_file():
        _git("worktree", "prune")  # `make clean` may have removed one
        _git("worktree", "add", "--detach", "--force", str(tree), commit)
    compiled = tree / ".compiled"
    if not compiled.exists():
        print(f"golden: compiling the engine of {commit[:7]}", flush=True)
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        with (tree / "build.log").open("w") as log:
            subprocess.run(command, cwd=tree, check=True, stdout=log, stderr=log)
        compiled.touch()
    return tree


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _record(tree: Path, only: str | None, *, in_turn: bool) -> tuple[Path, Path]:
    """Recordings of both, by two processes of one thread each."""
    running, files = [], []
    for label, source in (("base", tree / "src"), ("present", ROOT / "src")):
        files.append(PLACE / f"{label}.jsonl")
        command = [sys.executable, "-m", "golden.record", str(files[-1])]
        command += ["--source", str(source), "--label", label]
        command += ["--only", only] if only else []
        environment = {
            **os.environ,
            "PYTHONPATH": f"{source}{os.pathsep}{ROOT / 'tests'}",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        running.append(subprocess.Popen(command, cwd=PLACE, env=environment))
        if in_turn:
            running[-1].wait()
    for process in running:
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return files[0], files[1]


def judge(base: Path, present: Path, *, only: str | None, seconds: float) -> int:
    """Compare two recordings and say what came out; the exit code."""
    (header, theirs), (mine_header, mine) = read(base), read(present)
    for key in ("torch", "threads", "isa"):
        if header[key] != mine_header[key]:
            found = f"base {header[key]}, present {mine_header[key]}"
            print(f"golden: {key} differs, {found}: nothing to compare; is `make setup` done?")
            return 2
    if header["isa"] is None:
        print("golden: no native engine in either tree, so only the masked one was compared")
    both = set(header["registry"]) & set(mine_header["registry"])
    uncovered = sorted(both - {case.method for case in METHOD_CASES})
    if uncovered:
        print(f"golden: no case for {', '.join(uncovered)}: add it to tests/golden/cases.py")
        return 2
    gone = sorted(set(header["registry"]) ^ set(mine_header["registry"]))
    if gone:
        print(f"golden: not compared, since only one tree has them: {', '.join(gone)}")
        theirs = [s for s in theirs if s.case.split("/")[0] not in gone]
        mine = [s for s in mine if s.case.split("/")[0] not in gone]
    report = compare(theirs, mine)
    if report.cases == 0:
        print(f"golden: no case matches {only!r}")
        return 2
    return _tell(report, seconds)


def _tell(report: Report, seconds: float) -> int:
    if not report.differences:
        total = f"golden: {report.cases} cases, {report.values} tensors equal"
        print(f"{total} ({seconds:.0f} s)")
        return 0
    print(f"golden: first difference: {report.differences[0]}")
    names = [difference.case for difference in report.differences]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    print(f"golden: differing: {', '.join(names[:SHOWN])}{more}")
    total = f"golden: {len(names)} of {report.cases} cases differ, {report.values} tensors equal"
    print(f"{total} ({seconds:.0f} s)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
