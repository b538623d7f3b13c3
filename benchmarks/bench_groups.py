"""Time and memory of a GRPO step from hidden states as its groups grow, with Llama-3-8B's head."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks import heads
from benchmarks.harness import Case, Checked, Room, main
from benchmarks.heads import Step
from benchmarks.steps import check, differing_when_turned, stepped
from benchmarks.timing import Launch, Timing, measure_long

HIDDEN, VOCABULARY = 4096, 128256
LENGTH = 512
GROUPS = (64, 128, 256)
ROOM = Room(768.0)
SECONDS = 1.5  # of the fast variants; one launch of those that take longer


def few(launch: Launch) -> Timing:
    """Time some launches, or one."""
    return measure_long(launch, seconds=SECONDS)


def turned(s: Step) -> Checked:
    """Compare gradients with those of the opposite order: float64 and the oracle saw the smallest group."""
    return Checked(None, differing_when_turned(s))


def cases() -> Iterator[Case]:
    """Yield a row for each size of the group; its inputs live alone."""
    for completions in GROUPS:
        shape: dict[str, int | str] = {"G": completions, "L": LENGTH}
        drawn = heads.step(completions, LENGTH, VOCABULARY, HIDDEN)
        yield stepped(drawn, shape, None, ROOM, few, check if completions == GROUPS[0] else turned)
        del drawn
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main("groups", cases, matrix=True)
