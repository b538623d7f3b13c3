"""`python -m rlk`, the same as `rlk`."""

from __future__ import annotations

import sys

from rlk.cli import main

if __name__ == "__main__":
    sys.exit(main())
