"""The options of ``gossamer predict``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, add_device, set_run

_EPILOG = """\
The file is prepared as the run's training data were; its columns are matched by name, in any order.
Classes: label, prob_<name>, entropy, mutual_information and energy (nats). Numbers, in the target's
own units: mean, std, epistemic, aleatoric, and the ends of the 90% interval, lower_90 and upper_90;
with --coverage 0.95 they are lower_95 and upper_95. Of classes it adds set_95: the labels among
which the true one is.
Without --out the answers are shown on a terminal, or written as csv where stdout is none.
A row is bad where a cell cannot be read: a text in a column of numbers, say. --on-bad-row error
stops there, skip leaves the row out and adds a column row (from 0), abstain answers with empty
cells and adds a column reason.
"""


def add_predict(parser: Parser) -> None:
    """Give the command its options."""
    parser.epilog = _EPILOG
    parser.add_argument("path", metavar="RUN", help="run folder")
    parser.add_argument(
        "file", metavar="FILE", help="a table (docs/tables.md), or .npz with x_test, x or X"
    )
    parser.add_argument("--out", metavar="FILE.csv", help="write the answers here")
    parser.add_argument("--force", action="store_true", help="replace --out if it exists")
    parser.add_argument(
        "--num-samples", metavar="N", help="posterior samples (default: as the run was told)"
    )
    parser.add_argument(
        "--coverage",
        metavar="LEVEL",
        help="share of the targets that intervals (default 0.9) or sets of labels are to hold",
    )
    parser.add_argument(
        "--keep",
        metavar="COLUMN",
        action="append",
        default=[],
        help="column of FILE, an id say, to put beside the answers as it is; may be repeated",
    )
    parser.add_argument(
        "--on-bad-row",
        metavar="RULE",
        default="error",
        help="error, skip or abstain: a row with a cell that cannot be read (default error)",
    )
    add_device(parser)
    set_run(parser, "predict")
