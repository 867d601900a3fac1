"""Benchmarks of the native engine: what is measured, against whom, and the verdicts.

``kernels``, ``step``, ``memory`` and ``predict`` hold one suite each, ``suite`` runs them. Nothing
is imported here: the processes whose memory is measured load this package too.
"""
