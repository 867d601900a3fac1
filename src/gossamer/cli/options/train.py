"""The options of ``gossamer train``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, set_run

FLAGS: dict[str, tuple[str, str]] = {
    "data": ("NAME|FILE", "a name of gossamer data list, a .npz file or a table (docs/tables.md)"),
    "target": ("COLUMN", "the column to predict, of a table"),
    "task": ("TASK", "classification or regression; the data decide if not given"),
    "missing": ("RULE", "of a table's missing cells: mean, error or drop"),
    "unknown": ("RULE", "of levels that training never saw: other or error"),
    "data-dir": ("DIR", "folder where data sets lie that are not embedded"),
    "model": ("NAME", "the network"),
    "method": ("NAME", "see gossamer methods; decided by --quality if not given"),
    "preset": ("NAME", "named settings of the method, such as paper"),
    "sparsity": ("SHARE", "share of the weights removed, exact (a setting of the method)"),
    "members": ("M", "networks that share those weights, train and predict together"),
    "likelihood": (
        "NAME",
        "categorical, bernoulli; gaussian, heteroscedastic, student_t; of counts poisson, "
        "negative_binomial; the task decides if not given",
    ),
    "epochs": ("N", "passes over the training part; by its size if not given"),
    "steps": ("N", "optimiser steps, as whole epochs, in place of epochs"),
    "batch-size": ("N", "examples per step"),
    "lr": ("RATE", "learning rate; the method's own if not given"),
    "seed": ("N", "of everything: split, weights, support, data order, noise"),
    "backend": ("NAME", "how the sparse products are computed"),
    "device": ("NAME", "auto, cpu, cuda, cuda:N or mps; auto is cuda where there is one"),
    "limit-train": ("N", "use only so many training examples"),
    "validation-fraction": ("SHARE", "share of the training examples kept for validation"),
    "test": ("FILE", "a table whose rows are the test part"),
    "test-fraction": ("SHARE", "share of a table's rows that tests; 0: no test part, no metrics"),
    "time-limit": ("SECONDS", "stop training after so long and evaluate what there is"),
    "num-samples": ("N", "posterior samples per prediction in the test"),
    "noise": ("MODE", "weight, local or both: the noise of the test"),
    "keep-checkpoints": ("N", "how many of the newest stay"),
    "log": ("NAME", "tensorboard: write curves into RUN/tensorboard"),
}
"""Options that are one setting each: placeholder and help."""

DEFAULTS = {
    "data": "digits",
    "missing": "mean",
    "unknown": "other",
    "model": "mlp",
    "batch-size": "64",
    "seed": "0",
    "backend": "auto",
    "device": "auto",
    "validation-fraction": "0.1",
    "test-fraction": "0.2",
    "num-samples": "5",
    "noise": "weight",
    "keep-checkpoints": "2",
    "log": "none",
}
"""What a run takes that is told nothing: the defaults of ``RunConfig``, in words."""

QUALITY = "fast"
QUALITIES = {
    "fast": "one sparse network, its weights averaged, with a Gaussian last layer, under noise "
    "where that helps; for numbers in a table 20 side by side, which leave rows out",
    "good": "two of them, or twice the steps",
    "best": "three of them, or three times the steps",
}
"""The presets of ``gossamer.train.quality``, in words."""

_FINISHES = {
    "last-layer": "put a Gaussian on the last layer, chosen by the validation part",
    "temperature": "divide logits by a temperature, chosen by the validation part",
}
"""Finishing steps, one at most."""

SHIFT_HELP = (
    "measure the test inputs under this corruption too, in five severities: "
    "rotation, noise, blur, contrast, or all that fit; may be repeated"
)

_EPILOG = """\
Any setting can be given as --set key=value: one of the run (epochs=20, select=best), of the method
(kl_weight=0.3, see gossamer methods NAME) or of the model (hidden=[64,64]).
Ctrl-C saves; the same command with --resume goes on, bit for bit. --resume --out RUN is enough.
"""


def add_train(parser: Parser) -> None:
    """Give the command its options."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--config", metavar="FILE.toml", help="settings from a file; options win over it"
    )
    qualities = "; ".join(f"{name}: {about}" for name, about in QUALITIES.items())
    parser.add_argument(
        "--quality", metavar="NAME", help=f"what we recommend: {qualities} (default {QUALITY})"
    )
    for flag, (placeholder, text) in FLAGS.items():
        told = f" (default {DEFAULTS[flag]})" if flag in DEFAULTS else ""
        parser.add_argument(f"--{flag}", metavar=placeholder, help=text + told)
    parser.add_argument(
        "--ood",
        metavar="NAME",
        action="append",
        default=[],
        help="score this data set as out of distribution at the end; may be repeated",
    )
    parser.add_argument("--shift", metavar="NAME", action="append", default=[], help=SHIFT_HELP)
    finish = parser.add_mutually_exclusive_group()
    for flag, text in _FINISHES.items():
        finish.add_argument(
            f"--{flag}",
            dest="finish",
            action="store_const",
            const=flag.replace("-", "_"),
            help=text,
        )
    parser.add_argument(
        "--refit",
        action="store_const",
        const="true",
        help="train anew on all rows, also those that validated, for as long as they advised",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="assignments",
        action="append",
        default=[],
        help="any other setting; may be repeated",
    )
    parser.add_argument(
        "--out", metavar="RUN", help="run folder (default runs/DATA-MODEL-METHOD-SPARSITY-sSEED)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--quiet", action="store_true", help="no progress, no remarks")
    parser.add_argument("--no-report", action="store_true", help="write no RUN/report.html")
    set_run(parser, "train")
