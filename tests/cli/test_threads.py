"""Threads of a command wait briefly; what the user said of waiting stands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gossamer.cli.threads import wait_briefly

SCRIPT = """
import sys
from gossamer.cli.main import main
sys.argv = ["gossamer", "--version"]
main()
import torch
torch.ones(10_000, 100).sum()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="speaks of GNU's OpenMP")
def test_the_runtime_of_a_command_is_told_before_it_is_loaded() -> None:
    environment = {name: text for name, text in os.environ.items() if "OMP" not in name}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch has another OpenMP here")
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr


def test_what_the_user_said_stands() -> None:
    told = {"OMP_WAIT_POLICY": "active"}
    wait_briefly(told)
    assert told == {"OMP_WAIT_POLICY": "active"}
    told = {"GOMP_SPINCOUNT": "7"}
    wait_briefly(told)
    assert told == {"GOMP_SPINCOUNT": "7"}
