"""Timing of one schedule: launch after launch, on weights that are in no cache."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlk.runtime.binding.invocation import Run, geometry_of
from rlk.runtime.call.dispatch import bind_lowered
from rlk.target.facts import Target
from rlk.tune.problem import BARE, SHIPPED, Problem, Schedules

ROUND_MS = 20.0  # of launches that are timed together
FEWEST_LAUNCHES, MOST_LAUNCHES = 2, 100
FEWEST_ROUNDS = 4
CYCLES_PER_MS = 2e6
LONGEST_WAIT_MS = 50.0  # for launches to be queued

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of a launch: the median of the later half of the rounds, and the range of that half.

    host_ms: what the host needs to queue one.
    """

    ms: float
    spread: tuple[float, float]
    host_ms: float


def alone(launch: Callable[[int], object], copies: int, seconds: float) -> Timing:
    """Time launches that follow each other for about so many seconds, on each copy of the tensors in turn.

    Places in a round-robin move a kernel by 5 %, so nothing else runs meanwhile. The first half warms the
    chip: a large product is limited by power.
    """
    turn = itertools.cycle(range(copies))
    launch(next(turn))
    torch.cuda.synchronize()
    launches, host_ms = _launches(launch, turn)
    rounds: list[float] = []
    end = time.perf_counter() + seconds
    while len(rounds) < FEWEST_ROUNDS or time.perf_counter() < end:
        ms, host_ms = _round(launch, turn, launches, host_ms)
        rounds.append(ms)
    later = rounds[len(rounds) // 2 :]
    return Timing(statistics.median(later), (min(later), max(later)), host_ms)


def _launches(launch: Callable[[int], object], turn: Iterator[int]) -> tuple[int, float]:
    """Return how many launches a round has, and the host's time for one."""
    first, last = _event(), _event()
    begin = time.perf_counter()
    first.record()
    for _ in range(FEWEST_LAUNCHES):
        launch(next(turn))
    last.record()
    host_ms = 1e3 * (time.perf_counter() - begin) / FEWEST_LAUNCHES
    last.synchronize()
    ms = max(first.elapsed_time(last) / FEWEST_LAUNCHES, 1e-3)
    return max(FEWEST_LAUNCHES, min(MOST_LAUNCHES, round(ROUND_MS / ms))), host_ms


def _round(
    launch: Callable[[int], object], turn: Iterator[int], launches: int, host_ms: float
) -> tuple[float, float]:
    """Time launches without a pause between them: the device waits until all are queued."""
    for _ in range(3):
        first, last = _event(), _event()
        torch.cuda.synchronize()
        torch.cuda._sleep(int(CYCLES_PER_MS * min(LONGEST_WAIT_MS, 0.1 + 1.5 * host_ms * launches)))
        first.record()
        begin = time.perf_counter()
        for _ in range(launches):
            launch(next(turn))
        host = 1e3 * (time.perf_counter() - begin)
        late = first.query()
        last.record()
        last.synchronize()
        host_ms = host / launches
        if not late:
            break
    return first.elapsed_time(last) / launches, host_ms


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


# --- a shape ------------------------------------------------------------------------------------------------


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """Return the outputs whose bits are not the same, compared as integers."""
    return [n for n in a if not torch.equal(a[n].view(torch.uint8), b[n].view(torch.uint8))]


def reports(
    call: Problem, schedules: Mapping[str, Schedules], backend: str, on: Target, seconds: float
) -> Iterator[Report]:
    """Measure schedules of a shape, the shipped one first, between two timings of the bare products.

    Yields {"at": name} before each launch of something new, then what became of it. What differs from the
    shipped bits is not timed.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    geometry = geometry_of(call.invocation, call.tensors[0])
    copies = len(call.tensors)
    yield {"at": BARE}
    yield _timed(BARE, alone(call.bare, copies, seconds))
    expected: Mapping[str, Tensor] | None = None
    for name, chosen in schedules.items():
        yield {"at": name}
        try:
            run = bind_lowered(
                call.invocation, on.softmax, geometry, call.tensors[0], on, device, chosen, backend
            )
            got = run(call.tensors[0], call.scalars)
            torch.cuda.synchronize()
        except Exception as error:  # a schedule that does not fit is a result
            torch.cuda.synchronize()  # unless it took the device with it: then the process ends here
            yield {"name": name, "error": f"{type(error).__name__}: {error}"[:300]}
            if name == SHIPPED:
                return
            continue
        expected = got if expected is None else expected
        wrong = differing(expected, got)
        del got
        if wrong:
            yield {"name": name, "differing": wrong}
        else:
            yield _timed(name, alone(partial(_launch, run, call), copies, seconds))
    yield {"at": BARE}
    yield _timed(BARE, alone(call.bare, copies, seconds))


def _launch(run: Run, call: Problem, copy: int) -> None:
    run(call.tensors[copy], call.scalars)


def _timed(name: str, timing: Timing) -> Report:
    spread = [round(t, 5) for t in timing.spread]
    return {"name": name, "ms": round(timing.ms, 5), "spread": spread, "host_ms": round(timing.host_ms, 5)}
