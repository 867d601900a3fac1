"""What held-out rows add to a trained posterior: a temperature, a Gaussian last layer.

``finish`` applies them, ``heads`` are the two kinds of last layer, ``layer`` finds the features
that they read, ``curvature`` and ``regression`` are their closed forms, ``gather`` looks at the
held-out rows, ``loss`` and ``choice`` choose what those decide, ``fit`` is what a user calls.
"""
