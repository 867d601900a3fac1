"""A posterior as one file: safetensors, with all the rest as JSON in its header.

::

    header     __metadata__ = {"gossamer": text}; text is JSON: format, version, checksum, draws,
               states (name of a tensor in the network -> its key in the file), network (what the
               conversion made of each layer), likelihood, preparation, about; in version 2 also
               finish (temperature, last layer), or members (each as above) in place of draws; in
               version 3 also output (a field of what networks give) and, among the options of the
               likelihood, class_dim; in version 4 also the calibration of finish
    tensors    "0", "1", ...: each distinct tensor once

The checksum is the SHA-256 of the whole file with the digest's own digits as zeros, so that every
byte counts. There is no optimiser and no pickle: reading a file of unknown origin runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from gossamer.data import Preparation
from gossamer.errors import CheckpointError, GossamerError, InvalidData, InvalidValue, NonFinite
from gossamer.files import gossamer_version, write_whole
from gossamer.prediction.stored import (
    PLAIN_KEYS,
    NeedsNetwork,
    Tensors,
    describe_posterior,
    posterior_from,
)

if TYPE_CHECKING:
    from gossamer.prediction.posterior import Posterior

FILE_NAME = "posterior.safetensors"
"""What a finished run calls its posterior."""

FORMAT, PLAIN, FINISHED, READ, VERSION = "gossamer-posterior", 1, 2, 3, 4
"""Version 1 knows neither mixtures nor finishing steps, version 2 no ``output`` and no class axis
but the usual one, version 3 neither a spread nor a calibration. A file has the lowest version that
knows what it holds: older readers take it."""

_DIGITS = 64
_BLANK = "sha256:" + "0" * _DIGITS


def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior atomically: the file is whole, or it is as it was before.

    Raises:
        InvalidValue: Its likelihood, draws or ``about`` cannot be kept in a file.
        CheckpointError: The file could not be written.
    """
    tensors = Tensors()
    body = describe_posterior(posterior, tensors)
    header = {
        "format": FORMAT,
        "version": _version(body),
        "checksum": _BLANK,
        "gossamer": gossamer_version(),
        **body,
        "preparation": None if posterior.preparation is None else posterior.preparation.to_json(),
        "about": posterior.about,
    }
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidValue("about", posterior.about, f"must hold JSON values: {error}") from error
    _write(Path(path), _sealed(bytes_of(tensors.found, metadata={"gossamer": text})))


def load(path: str | os.PathLike[str], *, network: nn.Module | None = None) -> Posterior:
    """Read a posterior that ``Posterior.save`` or a finished run wrote.

    Nothing is drawn or trained, and the file is read once.

    Args:
        path: The file, or the folder of a finished run.
        network: The torch architecture, as it was before its conversion. Networks of
            ``gossamer.models`` that a run trained are built by name and need none.

    Raises:
        CheckpointError: The file is missing, damaged, of another version, or not a posterior.
        InvalidValue: The file does not name its architecture, and ``network`` was not given.
        InvalidData: ``network`` is another architecture.
        NonFinite: A weight is NaN or infinite: nothing could be answered.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    header, tensors = _opened(file)
    try:
        found = posterior_from(header, tensors, network, str(file))
        stored = header["preparation"]
        found.preparation = None if stored is None else Preparation.from_json(stored)
        found.require_finite()
    except NeedsNetwork:
        raise
    except NonFinite as error:
        raise NonFinite(f"{error.name} in {file}", error.value, error.rule, error.hint) from error
    except GossamerError as error:
        if network is not None:  # which may as well be the one that does not fit
            raise InvalidData("network", type(network).__name__, f"{file}: {error}") from error
        raise _damaged(file, str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from error
    return found


def _version(body: Mapping[str, Any]) -> int:
    """The lowest version that knows all of it."""
    members = body.get("members", [body])
    finishes = [part.get("finish", {}) for part in (body, *members)]
    if any("spread" in finish or "calibration" in finish for finish in finishes):
        return VERSION
    if any("output" in m or "class_dim" in m["likelihood"]["options"] for m in members):
        return READ
    return PLAIN if set(body) == PLAIN_KEYS else FINISHED


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file, after every byte was checked."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(
            "posterior",
            str(file),
            f"cannot be read ({error.strerror})",
            "give a file that save wrote, or a finished run; gossamer.train.load_run takes any run",
        ) from error
    try:
        length = int.from_bytes(content[:8], "little")
        raw = content[8 : 8 + length]
        header = json.loads(json.loads(raw)["__metadata__"]["gossamer"])
        marker, stated = header["format"], header["checksum"]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise _damaged(file, "its header cannot be read, or it is no posterior") from error
    if marker != FORMAT or not isinstance(stated, str) or len(stated) != len(_BLANK):
        raise _damaged(file, "its header is not that of a posterior")
    place = 8 + raw.find(stated.encode())
    if place < 8 or _digest(content, place) != stated:
        raise _damaged(file, "its content does not match its checksum")
    if header["version"] not in range(PLAIN, VERSION + 1):
        raise CheckpointError(
            "posterior",
            str(file),
            f"has format version {header['version']}, this Gossamer reads {PLAIN} to {VERSION}",
            "use the Gossamer that wrote it",
        )
    try:
        return header, tensors_from(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise _damaged(file, str(error)) from error


def _sealed(content: bytes) -> bytes:
    """The file with its checksum in place."""
    length = 8 + int.from_bytes(content[:8], "little")
    place = content.find(_BLANK.encode(), 8, length)
    if content.count(_BLANK.encode(), 8, length) != 1:
        raise InvalidValue("about", None, f"must not hold the text {_BLANK}")
    return b"".join(
        (content[:place], _digest(content, place).encode(), content[place + len(_BLANK) :])
    )


def _digest(content: bytes, place: int) -> str:
    digest = hashlib.sha256()
    view = memoryview(content)
    digest.update(view[:place])
    digest.update(_BLANK.encode())
    digest.update(view[place + len(_BLANK) :])
    return f"sha256:{digest.hexdigest()}"


def _damaged(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        "posterior", str(file), f"is damaged or foreign: {why}", "take it from a backup"
    )


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise CheckpointError(
            "posterior",
            str(path),
            f"could not be written ({error.strerror})",
            "make its folder first"
            if isinstance(error, FileNotFoundError)
            else "free space or permissions; what was there before is intact",
        ) from error
