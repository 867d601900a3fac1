"""Calibration with a guarantee: intervals and sets that hold as often as they say.

``rank`` is the one quantile that the guarantee rests on, ``real`` and ``classes`` apply it to real
targets and to labels, ``scale`` mends the standard deviation, ``cross`` is for few rows and folds,
``report`` tells what held-out rows saw, ``record`` keeps it in files, ``fit`` is what a user calls.
All but ``fit`` are functions of tensors that know no network.
"""
