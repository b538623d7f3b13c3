"""`python -m examples.grpo`."""

from __future__ import annotations

import sys

from examples.grpo.cli import main

if __name__ == "__main__":
    sys.exit(main())
