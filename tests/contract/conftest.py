"""Methods that a test wrote are known while the contract runs, and forgotten afterwards."""

from __future__ import annotations

import pytest

from contract.throwaway import THROWAWAY
from contract.variants import VARIANTS
from gossamer.inference import METHODS, register_method


@pytest.fixture(autouse=True)
def _throwaway_methods():
    for name, entry in {**THROWAWAY, **VARIANTS}.items():
        register_method(name, entry)
    yield
    for name in {**THROWAWAY, **VARIANTS}:
        del METHODS[name]
