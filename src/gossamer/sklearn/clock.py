"""``Clock``: one deadline for several fits."""

from __future__ import annotations

import time

from gossamer.errors import InvalidValue

_MOMENT = 1e-9


class Clock:
    """One deadline for all that is trained.

    Args:
        limit: Seconds from now on; ``None`` for none.
    """

    def __init__(self, limit: float | None) -> None:
        if limit is not None and not limit > 0.0:
            raise InvalidValue("time_limit", limit, "must be a number of seconds > 0")
        self._end = None if limit is None else time.perf_counter() + limit

    @property
    def left(self) -> float | None:
        """Seconds that are left, more than 0 at any time: a fit then takes one step."""
        return None if self._end is None else max(self._end - time.perf_counter(), _MOMENT)

    def share(self, fits: int) -> float | None:
        """Seconds for the first of so many fits that share what is left."""
        return None if self.left is None else self.left / fits

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self._end is not None and time.perf_counter() >= self._end
