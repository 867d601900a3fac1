"""Rows that no memory could hold with their answers: all is done in parts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

ROWS, BLOCK = 10_000_000, 250_000
MOST_MB = 600

_PEAK = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


def write_rows(path: Path) -> None:
    """Two columns of numbers; row i of the second is i modulo 7."""
    draw = np.random.default_rng(0)
    schema = pa.schema([("a", pa.float64()), ("b", pa.int64())])
    with arrow_csv.CSVWriter(path, schema) as writer:
        for start in range(0, ROWS, BLOCK):
            a = draw.normal(size=BLOCK).round(4)
            b = np.arange(start, start + BLOCK) % 7
            writer.write_table(pa.table({"a": a, "b": b}, schema=schema))


def lines_in(path: Path) -> int:
    with path.open("rb") as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_ten_million_rows_are_answered_in_600_mb(
    gossamer: Callable[..., Any], tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=300), draw.integers(0, 7, 300)
    y = a + b + 0.1 * draw.normal(size=300)
    np.savetxt("small.csv", np.c_[a, b, y], delimiter=",", header="a,b,y", comments="")
    words = ("train", "--data", "small.csv", "--target", "y", "--method", "sgd", "--epochs", "20")
    words += ("--set", "hidden=[4]", "--no-report", "--quiet", "--json", "--out", "run")
    assert gossamer(*words).code == 0
    write_rows(tmp_path / "big.csv")
    call = [sys.executable, "-c", _PEAK, sys.executable, "-m", "gossamer", "predict", "run"]
    call += ["big.csv", "--out", "answers.csv", "--num-samples", "1"]
    # One thread: two that wait for each other on a busy machine take many times as long.
    done = subprocess.run(
        call,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told, peak = done.stdout.splitlines()
    assert told == f"{ROWS} answers: answers.csv"
    print(f"peak {int(peak) / 1024:.0f} MB")
    assert int(peak) / 1024 <= MOST_MB
    assert lines_in(tmp_path / "answers.csv") == ROWS + 1
