"""Versions and machine: what a result may depend on."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy
import safetensors
import torch

from gossamer.files import gossamer_version


def environment() -> dict[str, Any]:
    """Versions and machine: what a result, or bit-for-bit continuation, may depend on."""
    return {
        "gossamer": gossamer_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
