"""Data sets: loading by name, file or array; the preparation of raw input; batches.

``readers/`` reads or makes raw data, ``prepare/`` turns raw values into tensors. ``registry`` is
the table of known sets, ``split`` cuts the parts, and ``build`` makes a :class:`DataSet`. ``shift``
corrupts prepared inputs for the test.
"""

from __future__ import annotations

from gossamer.data.batching import batches, row_batches
from gossamer.data.dataset import DataSet, Rows
from gossamer.data.loading import (
    Outline,
    from_arrays,
    input_batches,
    load,
    load_inputs,
    load_labelled,
    load_ood,
    outline_of,
)
from gossamer.data.prepare.augment import crop_flip
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.preparation import Preparation
from gossamer.data.prepare.rules import TableRules
from gossamer.data.readers import synthetic
from gossamer.data.readers.frames import columns_of
from gossamer.data.readers.remote import download
from gossamer.data.registry import Description, describe, names
from gossamer.data.shift import SEVERITIES, SHIFTS, InputScale, choose_shifts, shifted

__all__ = [
    "SEVERITIES",
    "SHIFTS",
    "DataSet",
    "Description",
    "Findings",
    "InputScale",
    "Outline",
    "Preparation",
    "Rows",
    "TableRules",
    "batches",
    "choose_shifts",
    "columns_of",
    "crop_flip",
    "describe",
    "download",
    "from_arrays",
    "input_batches",
    "load",
    "load_inputs",
    "load_labelled",
    "load_ood",
    "names",
    "outline_of",
    "row_batches",
    "shifted",
    "synthetic",
]
