"""Ranks of a test as forks of a process that has imported what all of them need.

`python -m forked_ranks MODULE BACKEND WORLD FOLDER MORE...` runs main(BACKEND, WORLD, RANK, FOLDER, MORE...)
of a module in each. Importing torch, its compiler and rlk takes 4 s of CPU time in a process. CUDA allows no
use after a fork.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import torch._dynamo  # noqa: F401 - which FSDP2, DDP and torch.compile import


def main(module: str, backend: str, world: int, folder: Path, *more: str) -> int:
    """Run every rank, and return 0 if all of them do; a rank returns here, too, when it has ended."""
    cases = import_module(module)
    ranks = set()
    for rank in range(world):
        if (process := os.fork()) == 0:
            cases.main(backend, world, rank, folder, *more)
            return 0
        ranks.add(process)
    while ranks:
        process, status = os.wait()
        ranks.discard(process)
        if status:  # the others would wait for it: whoever started this process ends them
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:]))
