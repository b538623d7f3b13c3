"""Runs one case by the TileLang lowering, and the oracle, alone: `python -m gpu.tilelang_child CASE FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu.cute_child import main
from gpu.tilelang_cases import CASES, CHANGES

if __name__ == "__main__":
    main(CASES, CHANGES, sys.argv[1], Path(sys.argv[2]))
