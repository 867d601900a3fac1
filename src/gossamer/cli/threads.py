"""How threads wait for each other in a process of ours."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_SPINS = "10000"


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads that wait give up their core after a moment.

    GNU's OpenMP, which torch brings, lets a thread that waits for another turn some hundred
    thousand times on the spot. Where another program has the core that the other thread needs, both
    stand still, and a small network trains many times as long. A thirtieth of the turns will do. It
    is read when torch is loaded, so this comes before; what the user has said of waiting stands.

    Args:
        environment: That of the process.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", _SPINS)
