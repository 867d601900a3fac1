"""Defaults of SSVI and dense VI as they were when tables of the docs were run.

``gossamer/posterior`` chose new ones. An experiment whose figures stand in the docs keeps the
settings that gave them until it is run anew.
"""

from __future__ import annotations

from typing import Any

EARLIER: dict[str, Any] = {"posterior_share": 0.03, "lr_factor": 1.0}
"""First noise a thirtieth of the prior's, and half of today's learning rate."""


def earlier(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a line, with these settings where the method has them.

    Example:
        >>> earlier("ssvi", {"sparsity": 0.95})
        {'posterior_share': 0.03, 'lr_factor': 1.0, 'sparsity': 0.95}
        >>> earlier("rigl", {"sparsity": 0.95})
        {'sparsity': 0.95}
    """
    return {**EARLIER, **options} if method in ("ssvi", "dense_vi") else options
