"""The suites by name, and what each is."""

from __future__ import annotations

from typing import Final

SUITES: Final = {
    "kernels": "time one layer's forward and backward pass",
    "step": "time a whole training step",
    "transformer": "time a training step of networks of tokens",
    "memory": "count the bytes of training",
    "predict": "time posterior prediction",
    "read": "time reading a CSV file",
    "choice": "time both backends where the automatic choice is close",
}
