"""Fits and runs: the loop, its observers, run folders with checkpoints and record, evaluation."""

from gossamer.train.assembly import Facts, load_dataset, load_ood_inputs
from gossamer.train.checkpoint import best, latest, load_checkpoint, save_checkpoint
from gossamer.train.config import RunConfig
from gossamer.train.device import resolve_device
from gossamer.train.evaluation import evaluate
from gossamer.train.examples import Batches, Examples, Feed
from gossamer.train.fitting import FitResult, fit
from gossamer.train.folder import RunFolder
from gossamer.train.load import LoadedRun, load_run
from gossamer.train.loop import Epoch, Fit, Observer, TimeLimit
from gossamer.train.progress import (
    PlainProgress,
    Progress,
    RichProgress,
    SilentProgress,
    default_progress,
)
from gossamer.train.record import Record, read_records
from gossamer.train.restarts import Race, Restarts
from gossamer.train.run import RunResult, train
from gossamer.train.scalars import ScalarLog, TensorBoard
from gossamer.train.stopping import Stop

__all__ = [
    "Batches",
    "Epoch",
    "Examples",
    "Facts",
    "Feed",
    "Fit",
    "FitResult",
    "LoadedRun",
    "Observer",
    "PlainProgress",
    "Progress",
    "Race",
    "Record",
    "Restarts",
    "RichProgress",
    "RunConfig",
    "RunFolder",
    "RunResult",
    "ScalarLog",
    "SilentProgress",
    "Stop",
    "TensorBoard",
    "TimeLimit",
    "best",
    "default_progress",
    "evaluate",
    "fit",
    "latest",
    "load_checkpoint",
    "load_dataset",
    "load_ood_inputs",
    "load_run",
    "read_records",
    "resolve_device",
    "save_checkpoint",
    "train",
]
