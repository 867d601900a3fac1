"""Downloads sets from their publishers and checks every file against its published MD5."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gossamer.errors import InvalidData, UnknownName

_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 20

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Remote:
    """Files of one set.

    Attributes:
        base: Address that each file's name is added to.
        folder: Folder below the data folder.
        md5: Published MD5 of each file as it is downloaded. It guards against damage, not against
            malice; the readers do not trust the content.
    """

    base: str
    folder: str
    md5: dict[str, str]


REMOTES: dict[str, Remote] = {
    "mnist": Remote(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": Remote(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "fashion-mnist",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        "cifar10",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "cifar100": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        "cifar100",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    ),
}


def download(
    name: str,
    data_dir: str | os.PathLike[str],
    *,
    mirror: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Downloads a set into a data folder, where ``load`` finds it.

    A file that is there with the right checksum is left alone. A new one is written beside its
    place, checked, and moved in one step, so that a file under its final name is always complete.

    Args:
        name: A set of :data:`REMOTES`.
        data_dir: The data folder; made if needed.
        mirror: Another address with the same files, instead of the publisher's.
        progress: Called with the file's name, bytes so far and bytes in all (``None`` if the server
            does not say).

    Returns:
        The files.

    Raises:
        InvalidData: Where the server cannot be reached, a checksum differs, or the folder cannot be
            written to.
    """
    if name not in REMOTES:
        raise UnknownName("data set to download", name, list(REMOTES))
    remote = REMOTES[name]
    folder = Path(data_dir).expanduser() / remote.folder
    base = remote.base if mirror is None else mirror.rstrip("/") + "/"
    paths = []
    for file, md5 in remote.md5.items():
        path = folder / file
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (path.is_file() and _md5_of(path) == md5):
                _fetch(base + file, path, md5, progress)
        except OSError as error:
            raise InvalidData(
                "file",
                str(path),
                f"cannot be written: {error.strerror or error}",
                "free or change DIR",
            ) from error
        paths.append(path)
    return paths


def _fetch(url: str, path: Path, md5: str, progress: Progress | None) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            got = _stream(url, path, out.write, progress)
            out.flush()
            os.fsync(out.fileno())
        if got != md5:
            raise InvalidData(
                url, None, f"MD5 is {got}, not the published {md5}; removed", "try again later"
            )
        # A temporary file is readable by its owner alone; data folders are often shared.
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _stream(url: str, path: Path, write: Callable[[bytes], int], progress: Progress | None) -> str:
    """Passes a response on chunk by chunk and returns its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    response = _open(url, path)
    with response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        done = 0
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _unreachable(url, path, error) from error
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)
            write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(path.name, done, total)


def _open(url: str, path: Path) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS)
    # ValueError: an address that is none, given as the mirror.
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unreachable(url, path, error) from error
    return response


def _unreachable(url: str, path: Path, error: Exception) -> InvalidData:
    if isinstance(error, urllib.error.HTTPError):
        error.close()  # it is the response as well, and holds its connection
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return InvalidData(
        url,
        None,
        f"could not be downloaded: {' '.join(str(reason).split()) or type(error).__name__}",
        f"without internet, copy the file to {path} by hand",
    )


def _md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
