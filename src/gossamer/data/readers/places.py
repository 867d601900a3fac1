"""Where the files of a set are: the folders searched, and what is looked for in each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gossamer.errors import InvalidData

DATA_VARIABLE = "GOSSAMER_DATA"


def data_folders(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """The folders to search, in order: the ones given, then those of ``GOSSAMER_DATA``.

    Args:
        data_dir: A folder, or several joined by the system's path separator (``:``; ``;`` on
            Windows).
    """
    given = [os.fspath(data_dir)] if data_dir is not None else []
    texts = [*given, os.environ.get(DATA_VARIABLE, "")]
    parts = [part for text in texts for part in text.split(os.pathsep) if part]
    return [Path(part).expanduser() for part in dict.fromkeys(parts)]


def find(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    places: Sequence[str],
    next_step: str,
    suits: Callable[[Path], bool] = Path.exists,
) -> Path:
    """Finds the first place that is there.

    Args:
        name: The set's name, for messages.
        data_dir: See :func:`data_folders`.
        places: Paths below a data folder, best first.
        next_step: What to do if there is none.
        suits: Whether a path will do.

    Raises:
        InvalidData: Saying where it looked and what to do next.
    """
    folders = data_folders(data_dir)
    if not folders:
        raise InvalidData(
            f"data set {name!r}",
            None,
            f"needs a data folder: give --data-dir DIR or set {DATA_VARIABLE}",
            next_step,
        )
    for folder in folders:
        for place in places:
            if suits(folder / place):
                return folder / place
    raise InvalidData(
        f"data set {name!r}",
        None,
        f"was not found: looked for {', '.join(places)} in {', '.join(map(str, folders))}",
        next_step,
    )
