"""What each command may be told: one page per command.

Nothing here waits for torch, numpy or rich, so that ``--help`` and a mistyped option answer at
once; what a command does is imported when it runs.
"""
