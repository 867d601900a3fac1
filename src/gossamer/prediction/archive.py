"""A posterior as one file: safetensors, with all the rest as JSON in its header.

::

    header     __metadata__ = {"gossamer": text}; text is JSON: format, version, checksum, draws,
               states (name of a tensor in the network -> its key in the file), network (what the
               conversion made of each layer), likelihood, preparation, about; in version 2 also
               finish (temperature, last layer), or members (each as above) in place of draws
    tensors    "0", "1", ...: each distinct tensor once

The checksum is the SHA-256 of the whole file with the digest's own digits as zeros, so that every
byte counts. There is no optimiser and no pickle: reading a file of unknown origin runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from gossamer.data import Preparation
from gossamer.errors import CheckpointError, GossamerError, InvalidData, InvalidValue
from gossamer.files import gossamer_version, write_whole
<<<<<<< HEAD
from gossamer.prediction.stored import (
    PLAIN_KEYS,
    NeedsNetwork,
    Tensors,
    describe_posterior,
    posterior_from,
)
=======
from gossamer.likelihoods import LIKELIHOODS, Likelihood, make_likelihood
from gossamer.models import build_model
from gossamer.nn import restore_backends
from gossamer.nn.replica import replicate
from gossamer.nn.skeleton import backends, describe, skeleton
from gossamer.prediction.draws import Centre, Draws, GaussianDraws, NoiseDraws, StoredDraws
from gossamer.prediction.low_rank import LowRankDraws
>>>>>>> wt-rivals

if TYPE_CHECKING:
    from gossamer.prediction.posterior import Posterior

FILE_NAME = "posterior.safetensors"
"""What a finished run calls its posterior."""

FORMAT, PLAIN, VERSION = "gossamer-posterior", 1, 2
"""Version 1 knows neither mixtures nor finishing steps; files without them stay readable to it."""

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
        "version": PLAIN if set(body) == PLAIN_KEYS else VERSION,
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
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    header, tensors = _opened(file)
    try:
        found = posterior_from(header, tensors, network, str(file))
        stored = header["preparation"]
        found.preparation = None if stored is None else Preparation.from_json(stored)
    except NeedsNetwork:
        raise
    except GossamerError as error:
        if network is not None:  # which may as well be the one that does not fit
            raise InvalidData("network", type(network).__name__, f"{file}: {error}") from error
        raise _damaged(file, str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from error
<<<<<<< HEAD
    return found
=======
    return Posterior(draws, likelihood, preparation, about)


class _NeedsNetwork(InvalidValue):
    """The caller has to bring the architecture."""


class _Tensors:
    """Tensors of a file, each distinct one once, whatever it is called."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    def key_of(self, tensor: Tensor) -> str:
        """The key of a tensor in the file."""
        held = tensor.detach().cpu().contiguous()
        content = held.view(-1).view(torch.uint8).numpy().data if held.numel() else b""
        mark = (held.dtype, held.shape, hashlib.sha256(content).digest())
        if mark not in self._keys:
            self._keys[mark] = str(len(self.found))
            self.found[self._keys[mark]] = held.clone()  # safetensors refuses shared memory
        return self._keys[mark]

    def keys_of(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """The keys of a state."""
        return {name: self.key_of(tensor) for name, tensor in state.items()}


def _describe_draws(draws: Draws, tensors: _Tensors) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What kind they are, and the states of their networks, the latest last."""
    if isinstance(draws, NoiseDraws):
        return {"kind": "noise"}, [tensors.keys_of(draws.network.state_dict())]
    if isinstance(draws, StoredDraws):
        indices = reversed(range(draws.max_samples))
        return {"kind": "stored"}, [tensors.keys_of(draws.state(index)) for index in indices]
    if isinstance(draws, GaussianDraws):
        centres = [
            {"name": c.name, "mean": tensors.key_of(c.mean), "rho": tensors.key_of(c.rho)}
            for c in draws.centres
        ]
        # At the means: the parameters themselves hold the draw of the last training step.
        state = {**draws.network.state_dict(), **{c.name: c.mean for c in draws.centres}}
        about = {"kind": "gaussian", "alpha": draws.alpha, "centres": centres}
        return about, [tensors.keys_of(state)]
    if isinstance(draws, LowRankDraws):
        return draws.described(tensors.key_of), [tensors.keys_of(draws.state())]
    raise InvalidValue(
        "draws", type(draws).__name__, "cannot be kept in a file", "save their networks instead"
    )


def _draws_of(
    about: Mapping[str, Any],
    network: nn.Module,
    states: list[dict[str, Tensor]],
    tensors: Mapping[str, Tensor],
) -> Draws:
    makers: dict[str, Callable[[], Draws]] = {
        "noise": lambda: NoiseDraws(network),
        "stored": lambda: StoredDraws(network, states),
        "low_rank": lambda: LowRankDraws.of(about, network, tensors),
        "gaussian": lambda: GaussianDraws(
            network,
            [
                Centre(str(c["name"]), tensors[c["mean"]], tensors[c["rho"]])
                for c in about["centres"]
            ],
            float(about["alpha"]),
        ),
    }
    return makers[about["kind"]]()


def _likelihood_of(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Likelihood:
    likelihood = make_likelihood(str(about["name"]), **about["options"])
    likelihood.load_state_dict({name: tensors[key] for name, key in about["state"].items()})
    return likelihood


def _architecture(file: Path, model: Mapping[str, Any] | None) -> nn.Module:
    """The torch network that a file names, without values."""
    if model is None:
        raise _NeedsNetwork(
            "network",
            str(file),
            "holds a network that Gossamer cannot build by itself",
            "give the torch architecture: load(path, network=...)",
        )
    with torch.device("meta"):
        return build_model(
            str(model["name"]),
            input_shape=model["input_shape"],
            output_size=model["output_size"],
            **model["options"],
        )


def _require_whole(network: nn.Module) -> None:
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if tensor.is_meta:
            raise InvalidData(name, None, "is not in the file")
>>>>>>> wt-rivals


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file, after every byte was checked."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(
            "posterior",
            str(file),
            f"cannot be read ({error.strerror})",
            "a run has one when it is finished; gossamer.train.load_run takes any run folder",
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
    if header["version"] not in (PLAIN, VERSION):
        raise CheckpointError(
            "posterior",
            str(file),
            f"has format version {header['version']}, this Gossamer reads {PLAIN} and {VERSION}",
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
            "free space or permissions; what was there before is intact",
        ) from error
