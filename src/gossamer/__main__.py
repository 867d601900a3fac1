"""``python -m gossamer`` is the command ``gossamer``."""

import sys

from gossamer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
