"""Data sets: readers, the preparation of raw input, downloads, batches and augmentation."""

from __future__ import annotations

from gossamer.data.augment import crop_flip
from gossamer.data.batches import batches
from gossamer.data.dataset import DataSet
from gossamer.data.download import download
from gossamer.data.preparation import Preparation
from gossamer.data.registry import describe, load, load_inputs, load_ood, names
from gossamer.data.sources import Description

__all__ = [
    "DataSet",
    "Description",
    "Preparation",
    "batches",
    "crop_flip",
    "describe",
    "download",
    "load",
    "load_inputs",
    "load_ood",
    "names",
]
