"""The native engine in tests: whether it is there, and under which instruction sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gossamer.errors import InvalidValue
from gossamer.ops import library

needs_native = pytest.mark.skipif(not library.is_available(), reason=library.reason())


def _isas() -> list[str]:
    if not library.is_available():
        return []
    usual, found = library.isa(), []
    for name in ("generic", "avx2", "avx512", "neon"):
        try:
            library.use_isa(name)
        except InvalidValue:
            continue
        found.append(name)
    library.use_isa(usual)
    return found


ISAS = _isas()
"""What this processor runs."""


@contextmanager
def using(isa: str) -> Iterator[None]:
    """Another instruction set for a while."""
    before = library.isa()
    library.use_isa(isa)
    try:
        yield
    finally:
        library.use_isa(before)
