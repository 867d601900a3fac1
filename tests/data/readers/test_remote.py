from __future__ import annotations

import gzip
import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gossamer.data import download, load
from gossamer.data.readers.remote import REMOTES, Remote
from gossamer.errors import InvalidData, UnknownName


class Server:
    """Serves files from memory on the loopback address, and remembers what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut = False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rsplit("/", 1)[-1]
                outer.asked.append(name)
                if name not in outer.files:
                    self.send_error(404)
                    return
                content = outer.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if outer.cut else content)

            def log_message(self, *args: object) -> None:
                pass

        self.http = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    server = Server()
    rng = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 20)):
        images = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        header = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 4, 0, 0, 0, 4])
        server.files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(header + images.tobytes())
        labels = bytes([0, 0, 8, 1, 0, 0, 0, count]) + bytes(i % 10 for i in range(count))
        server.files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in server.files.items()}
    monkeypatch.setitem(REMOTES, "mnist", Remote(server.address, "mnist", md5))
    yield server
    server.close()


def test_downloaded_set_loads(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    paths = download("mnist", tmp_path / "new", progress=lambda *step: seen.append(step))
    assert [path.read_bytes() for path in paths] == [server.files[path.name] for path in paths]
    assert sorted(p.name for p in (tmp_path / "new/mnist").iterdir()) == sorted(server.files)
    assert seen[0] == (
        paths[0].name,
        len(server.files[paths[0].name]),
        len(server.files[paths[0].name]),
    )
    assert load("mnist", data_dir=tmp_path / "new").input_shape == (1, 4, 4)


def test_complete_files_are_left_alone_and_damaged_ones_replaced(
    server: Server, tmp_path: Path
) -> None:
    paths = download("mnist", tmp_path)
    paths[1].write_bytes(b"damaged")
    server.asked.clear()
    download("mnist", tmp_path)
    assert server.asked == [paths[1].name]
    assert paths[1].read_bytes() == server.files[paths[1].name]


def test_mirror(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOTES, "mnist", Remote("http://127.0.0.1:1/", "m", REMOTES["mnist"].md5))
    assert len(download("mnist", tmp_path, mirror=server.address.rstrip("/"))) == 4


def test_corrupted_download_is_removed(server: Server, tmp_path: Path) -> None:
    server.files["train-images-idx3-ubyte.gz"] += b"x"
    with pytest.raises(InvalidData, match=r"MD5 is .*not the published .*removed"):
        download("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_connection_that_breaks_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.cut = True
    with pytest.raises(InvalidData, match=r"could not be downloaded|MD5 is"):
        download("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_missing_on_the_server(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(InvalidData, match=r"could not be downloaded: Not Found.*by hand") as caught:
        download("mnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_no_internet(server: Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InvalidData, match=r"could not be downloaded: .*refused.*copy the file to"):
        download("mnist", tmp_path, mirror=f"http://127.0.0.1:{port}")
    with pytest.raises(InvalidData, match="could not be downloaded"):
        download("mnist", tmp_path, mirror="no address")
    assert list((tmp_path / "mnist").iterdir()) == []


def test_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mnist").write_text("a file in the way")
    with pytest.raises(InvalidData, match="cannot be written"):
        download("mnist", tmp_path)


def test_unknown_set(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownName, match=r"download = digits.*cifar10, cifar100, fashion_mnist, mnist"
    ):
        download("digits", tmp_path)


def test_addresses_are_secure_and_checksums_whole() -> None:
    for remote in REMOTES.values():
        assert remote.base.startswith("https://")
        assert all(len(bytes.fromhex(md5)) == 16 for md5 in remote.md5.values())
