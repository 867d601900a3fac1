"""The run folder: which files a run consists of, when one may be started, and reading them back.

::

    RUN/config.json        settings, "gossamer" (version) and "facts" (what the data decided)
    RUN/environment.json   versions and machine
    RUN/preparation.json   how raw input becomes network input
    RUN/selection.json     of a wide table: what its screening found, and names of the features
    RUN/record.jsonl       epochs and swaps
    RUN/checkpoints/       see checkpoint
    RUN/posterior.safetensors   what predicts, see gossamer.prediction.archive
    RUN/curves.json        arrays for the report
    RUN/tensorboard/       event files, with log="tensorboard"
    RUN/metrics.json       test metrics; written last: a run with this file is finished
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gossamer.data import Preparation
from gossamer.errors import CheckpointError, GossamerError
from gossamer.files import (
    TEMPORARY,
    gossamer_version,
    not_written,
    read_json,
    refuse_links,
    write_json,
)
from gossamer.prediction.archive import FILE_NAME
from gossamer.selection import Selection
from gossamer.train.assembly import Facts
from gossamer.train.checkpoint import refuse_links as refuse_checkpoint_links
from gossamer.train.config import RunConfig
from gossamer.train.environment import environment

_BEFORE_CONFIG = {"lock", "environment.json", "preparation.json", "selection.json"}
"""What a run killed in its first moment may have left: config.json is written after these."""


class RunFolder:
    """Paths and files of one run.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.record = path / "record.jsonl"
        self.posterior = path / FILE_NAME
        self.config = path / "config.json"
        self.preparation = path / "preparation.json"
        self._selection = path / "selection.json"
        self._environment = path / "environment.json"
        self._metrics = path / "metrics.json"
        self._curves = path / "curves.json"
        self.tensorboard = path / "tensorboard"

    @property
    def is_started(self) -> bool:
        """Whether a run lives here."""
        return self.config.exists()

    @property
    def is_finished(self) -> bool:
        """Whether its run reached the end."""
        return self._metrics.exists()

    def check_new(self) -> None:
        """Raise unless a run may be started here: no folder, an empty one, or a stillborn run."""
        if self.is_started:
            raise CheckpointError(
                "run folder",
                str(self.path),
                "holds a run and is never overwritten",
                "continue it with --resume or choose another --out",
            )
        self.refuse_links()
        foreign = self._foreign()
        if foreign is not None:
            raise CheckpointError(
                "run folder",
                str(self.path),
                f"exists and is not a run folder{foreign}",
                "choose another --out",
            )

    def check_resumable(self) -> None:
        """Raise unless a run lives here, or one that was killed in its first moment."""
        if not self.path.is_dir():
            raise CheckpointError(
                "run folder", str(self.path), "does not exist", "start it without --resume"
            )
        self.refuse_links()
        foreign = self._foreign()
        if not self.is_started and (foreign is not None or not any(self.path.iterdir())):
            raise CheckpointError(
                "run folder",
                str(self.path),
                f"is not a run folder (no config.json{foreign or ''})",
                "start a run without --resume in an empty one",
            )

    def refuse_links(self) -> None:
        """Raise where an entry is a link: a run writes, cuts and deletes what is in its folder.

        Reading goes through links: a run that is only predicted from may be a set of them.
        """
        refuse_links(self.path)
        refuse_checkpoint_links(self.checkpoints)

    def make(self) -> None:
        """Make the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_written(self.path, error) from error

    def write_start(
        self,
        config: RunConfig,
        facts: Facts,
        preparation: Preparation,
        device: str,
        selection: Selection | None = None,
    ) -> None:
        """Write what is known at the start; config.json comes last and makes it a run."""
        write_json(self._environment, {**environment(), "device": device})
        write_json(self.preparation, preparation.to_json())
        if selection is not None:
            names = preparation.inputs.features if preparation.inputs.kind == "table" else None
            write_json(self._selection, {**selection.to_json(), "names": names})
        about = {"gossamer": gossamer_version(), "facts": asdict(facts)}
        write_json(self.config, {**config.to_json(), **about})

    def write_end(self, metrics: dict[str, Any], curves: dict[str, Any]) -> None:
        """Write the results; metrics.json comes last and makes the run finished."""
        write_json(self._curves, curves)
        write_json(self._metrics, metrics)

    def read_config(self) -> tuple[RunConfig, Facts]:
        """Settings and facts.

        Raises:
            CheckpointError: The file is missing, damaged, or of a Gossamer with other settings.
        """
        values = read_json(self.config)
        try:
            values.pop("gossamer")
            facts = Facts(**values.pop("facts"))
            return RunConfig.from_json(values), facts
        except (GossamerError, AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(
                "config.json",
                str(self.config),
                f"is damaged or of another version ({error})",
                "use the Gossamer that wrote it",
            ) from error

    def read_preparation(self) -> Preparation:
        """How raw input becomes network input."""
        values = read_json(self.preparation)
        try:
            return Preparation.from_json(values)
        except GossamerError as error:
            raise CheckpointError(
                "preparation.json",
                str(self.preparation),
                f"is damaged ({error.rule})",
                "take the file from a backup",
            ) from error

    def read_environment(self) -> dict[str, Any]:
        """Versions and machine at the start of the run."""
        values: dict[str, Any] = read_json(self._environment)
        return values

    def read_metrics(self) -> dict[str, Any]:
        """Test metrics of a finished run."""
        values: dict[str, Any] = read_json(self._metrics)
        return values

    def _foreign(self) -> str | None:
        """What shows that no run began here, for a message; ``None`` where nothing does."""
        if not self.path.exists():
            return None
        if not self.path.is_dir():
            return ""
        names = {p.name for p in self.path.iterdir() if not p.name.startswith(TEMPORARY)}
        names -= _BEFORE_CONFIG
        return f": it holds {min(names)}" if names else None
