"""Ranks of a test as forks of a process that has imported what all of them need.

`python -m forked_ranks MODULE BACKEND WORLD FOLDER MORE...` runs main(BACKEND, WORLD, RANK, FOLDER, MORE...)
of a module in each. Importing torch, its compiler and rlk takes 4 s of CPU time in a process, and first calls
take about a second: what a module's prepare(WORLD) calls as one rank alone is known to all of them. CUDA
allows no use after a fork.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

import torch._dynamo  # which FSDP2, DDP and torch.compile import


def main(module: str, backend: str, world: int, folder: Path, *more: str) -> int:
    """Run every rank, and return 0 if all of them do; a rank ends here, and returns only by an exception."""
    cases = import_module(module)
    if (prepare := getattr(cases, "prepare", None)) is not None:
        torch.set_num_threads(1)
        prepare(world)
    gc.collect()
    gc.freeze()  # a collection that looked at all that is imported would copy its pages for each rank
    gc.set_threshold(50_000, 20, 50)
    ranks = set()
    for rank in range(world):
        if (process := os.fork()) == 0:
            cases.main(backend, world, rank, folder, *more)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # what a rank has written is complete: taking modules apart would cost it 1 s or more
        ranks.add(process)
    while ranks:
        process, status = os.wait()
        ranks.discard(process)
        if status:  # the others would wait for it: whoever started this process ends them
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:]))
