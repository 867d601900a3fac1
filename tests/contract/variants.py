"""Methods of the package with an option on that changes their posterior.

Each runs through the whole contract under a name of its own.
"""

from __future__ import annotations

from typing import Any

from gossamer.inference import METHODS, MethodEntry


def variant(method: str, name: str, **settings: Any) -> MethodEntry:
    """The entry of ``method`` with other defaults, under another name."""
    entry = METHODS[method]

    def build(*args: Any, **kwargs: Any) -> Any:
        built = entry.build(*args, **kwargs)
        built.name = name
        return built

    return MethodEntry(entry.config, build, {"default": settings}, f"{method} with {settings}")


VARIANTS: dict[str, MethodEntry] = {
    name: variant(method, name, **settings)
    for method, name, settings in (
        ("ssvi", "ssvi_empirical", {"prior_std": "empirical"}),
        ("dense_vi", "dense_vi_empirical", {"prior_std": "empirical"}),
        ("ssvi", "ssvi_absent", {"absent_variance": "all"}),
    )
}
