"""Readers: whoever reads or makes raw data and returns a ``RawData``, or raw inputs as arrays.

A reader checks what only it can know (a header, a truncated file, a shape) and leaves the meaning
of values to ``gossamer.data.prepare``.
"""
