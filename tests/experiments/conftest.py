"""An experiment of four runs of a second each, a display that remembers, a tiny Fashion-MNIST."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import joblib
import numpy as np
import pytest

from gossamer.experiments import (
    Check,
    Experiment,
    RunTable,
    RunTask,
    Scope,
    Watch,
    at_least,
    repeated,
    table,
)
from gossamer.train import RunConfig


def tasks(scope: Scope) -> list[RunTask]:
    config = RunConfig(
        epochs=3 if scope.scale == "paper" else 2,
        limit_train=100,
        model_options={"hidden": [8]},
        data_dir=scope.data_dir,
        checkpoint_every=2,
    )
    settings = config.to_json()
    dense = RunConfig.from_json({**settings, "method": "sgd"})
    sparse = RunConfig.from_json({**settings, "method_options": {"sparsity": 0.5}})
    return [
        *repeated("dense", "dense net", dense, scope),
        *repeated("sparse", "sparse net", sparse, scope),
    ]


class Watcher:
    """Remembers what it was told; interrupts after so many ends."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.interrupt_after = interrupt_after
        self.started: tuple[int, int] | None = None
        self.shares: dict[str, list[float]] = {}
        self.finished: list[str] = []
        self.texts: dict[str, str] = {}
        self.closed = 0

    def start(self, total: int, done: int) -> None:
        self.started = (total, done)

    def update(self, task: str, share: float, figures: str) -> None:
        self.shares.setdefault(task, []).append(share)

    def finish(self, task: str, text: str) -> None:
        self.finished.append(task)
        self.texts[task] = text
        if len(self.finished) == self.interrupt_after:
            raise KeyboardInterrupt

    def message(self, text: str) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def experiment() -> Experiment:
    return Experiment(
        key="gossamer/tiny",
        title="a tiny table",
        tasks=tasks,
        conclude=RunTable(
            columns=("accuracy", "nll", "nnz"),
            checks=(
                at_least("sparse", "accuracy", 0.0),
                at_least("dense", "accuracy", 1.1),
                Check("always", lambda results: (True, f"{len(results)} rows")),
                Check("asks too much", lambda results: (True, results["nothing"].label)),
            ),
        ),
        scales=("small", "paper"),
        repeats={"small": 2, "paper": 2},
    )


@pytest.fixture
def blank_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report costs more than these runs; one test draws it, the others do not."""

    def write(runs: list[Path], out: Path) -> Path:
        out.write_text("", encoding="utf-8")
        return out

    monkeypatch.setattr(table, "write_report", write)


@pytest.fixture
def in_threads() -> Iterator[None]:
    """Threads instead of processes, which take seconds to start: joblib lets anyone choose."""
    with joblib.parallel_config(backend="threading"):
        yield


@pytest.fixture
def watcher() -> type[Watcher]:
    return Watcher


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """For tasks that are called by hand: nobody listens."""
    return Watch(tmp_path_factory.mktemp("news"), "task")


@pytest.fixture(scope="session")
def fashion_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder whose Fashion-MNIST is 16x16 noise with a bright row that tells the class."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "fashion-mnist").mkdir()
    rng = np.random.default_rng(5)
    for part, count in (("train", 400), ("t10k", 100)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = rng.integers(0, 100, (count, 16, 16), dtype=np.uint8)
        images[np.arange(count), 3 + labels] = 255
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            path = folder / "fashion-mnist" / f"{part}-{kind}-ubyte"
            path.write_bytes(header + array.tobytes())
    return str(folder)
