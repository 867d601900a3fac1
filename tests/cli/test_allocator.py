"""Freed memory stays with a command's process, and with it alone."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from gossamer.cli import main as command

# Pages that a block of 64 MB brings in when it is allocated, used, freed and allocated again.
PROBE = """
import resource, sys
import torch
from gossamer.cli.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(24):  # the heap of a young process grows for a while before blocks fit again
    torch.zeros(2**24)
before = faults()
for _ in range(4):
    torch.zeros(2**24)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="speaks of glibc's malloc")
def test_a_freed_block_is_taken_again_without_page_faults():
    found = {}
    for way in ("keep", "plain"):
        done = subprocess.run(
            [sys.executable, "-c", PROBE, way], capture_output=True, text=True, check=True
        )
        found[way] = int(done.stdout)
    assert found["keep"] * 20 < found["plain"]


def test_only_a_process_of_its_own_is_changed(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(command, "keep_freed_memory", lambda: called.append(True))
    assert command.main(["--version"]) == 0
    assert called == []
    monkeypatch.setattr(sys, "argv", ["gossamer", "--version"])
    assert command.main() == 0
    assert called == [True]
    capsys.readouterr()
