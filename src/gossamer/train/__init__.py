"""Runs: settings, the training loop, checkpoints, the record, evaluation."""

from gossamer.train.assembly import Facts, load_dataset, load_ood_inputs
from gossamer.train.checkpoint import best, latest, load_checkpoint, save_checkpoint
from gossamer.train.config import RunConfig
from gossamer.train.evaluate import evaluate
from gossamer.train.folder import RunFolder
from gossamer.train.load import LoadedRun, load_run
from gossamer.train.loop import RunResult, train
from gossamer.train.progress import (
    PlainProgress,
    Progress,
    RichProgress,
    SilentProgress,
    default_progress,
)
from gossamer.train.record import Record, read_records

__all__ = [
    "Facts",
    "LoadedRun",
    "PlainProgress",
    "Progress",
    "Record",
    "RichProgress",
    "RunConfig",
    "RunFolder",
    "RunResult",
    "SilentProgress",
    "best",
    "default_progress",
    "evaluate",
    "latest",
    "load_checkpoint",
    "load_dataset",
    "load_ood_inputs",
    "load_run",
    "read_records",
    "save_checkpoint",
    "train",
]
