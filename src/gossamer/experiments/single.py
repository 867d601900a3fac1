"""One run of a table: start it or go on with it, and say how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gossamer.errors import GossamerError, NonFinite
from gossamer.train import Progress, RunConfig, RunFolder, train
from gossamer.train.loop import Stop

Status = Literal["finished", "interrupted", "diverged", "failed"]


@dataclass(frozen=True)
class Job:
    """A run to be done.

    Attributes:
        run: Name of its folder.
        path: Its folder.
        config: Its settings.
    """

    run: str
    path: Path
    config: RunConfig


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        job: The run.
        status: ``"diverged"`` is a result like another; ``"failed"`` is an error that other runs
            are likely to meet too.
        text: The main figures, or what went wrong.
    """

    job: Job
    status: Status
    text: str


def execute(job: Job, progress: Progress, stop: Stop | None = None) -> Ended:
    """Do a run, from its beginning or from where it was interrupted."""
    folder = RunFolder(job.path)
    try:
        # A folder that was only just begun holds no settings yet; train knows what to do with it.
        begun = job.path.is_dir() and any(job.path.iterdir())
        config = None if folder.is_started else job.config
        result = train(config, job.path, resume=begun, progress=progress, stop=stop)
    except NonFinite as error:
        return Ended(job, "diverged", str(error))
    except (GossamerError, OSError) as error:
        return Ended(job, "failed", str(error))
    if result.metrics is None:
        return Ended(job, "interrupted", result.message)
    return Ended(job, "finished", result.message.partition(";")[0])
