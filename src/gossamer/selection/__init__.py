"""Which columns of a table matter: inclusion probabilities, false discovery control, importances.

``screen`` chooses columns before training, ``importances`` reads what a trained network uses.
"""

from __future__ import annotations

from gossamer.selection.importance import importances
from gossamer.selection.knockoffs import select_by_knockoffs
from gossamer.selection.screening import Selection, is_wide, on_selected, screen
from gossamer.selection.spike_slab import posterior_inclusion

__all__ = [
    "Selection",
    "importances",
    "is_wide",
    "on_selected",
    "posterior_inclusion",
    "screen",
    "select_by_knockoffs",
]
