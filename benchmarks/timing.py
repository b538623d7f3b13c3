"""Timing of a launch: bursts and sustained runs, with events, a flushed L2 and never on zeros."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

FLUSH_BYTES = 256 * 2**20  # several times the largest L2 among the devices we know
BURST_IDLE_S = 0.5
BURST_LAUNCHES = 4
WARM_LAUNCHES = 3
MOST_LAUNCHES = 2000
TURNS = 10

Launch = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one launch: sustained median, burst median, and the 10 % and 90 % quantiles.

    extra_mib: its peak memory, where it was measured on the same launches.
    """

    ms: float
    burst_ms: float
    spread: tuple[float, float]
    extra_mib: float | None = None


@cache
def _flush_buffer() -> torch.Tensor:
    return torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")


def timed(launch: Launch, launches: int, *, flush: bool, clean: bool = False) -> list[float]:
    """Time each of `launches` with its own pair of events.

    The flush is queued before the first event: it evicts the operands and hides the host's time. It leaves L2
    full of modified lines, which have to be written back when the launch reads others. clean: evict by reads,
    as weights of the layer before do in decoding.
    """
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(launches)
    ]
    for first, last in pairs:
        if flush and clean:
            _flush_buffer().sum()
        elif flush:
            _flush_buffer().fill_(1.0)
        first.record()
        launch()
        last.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in pairs]


def measure(launch: Launch, *, seconds: float = 1.0, flush: bool = True, clean: bool = False) -> Timing:
    """Time `launch` alone: a burst from an idle device, then about `seconds` of launches; clean: `timed`."""
    for _ in range(WARM_LAUNCHES):
        launch()
    torch.cuda.synchronize()
    time.sleep(BURST_IDLE_S)
    burst = statistics.median(timed(launch, BURST_LAUNCHES, flush=flush, clean=clean))
    launches = int(max(BURST_LAUNCHES, min(MOST_LAUNCHES, 1e3 * seconds / max(burst, 1e-3))))
    times = sorted(timed(launch, launches, flush=flush, clean=clean))
    tenth = len(times) // 10
    return Timing(statistics.median(times), burst, (times[tenth], times[len(times) - 1 - tenth]))


def measure_in_turns(launches: Sequence[Launch], *, seconds: float = 1.0) -> list[Timing]:
    """Time launches of like work in turns, about `seconds` each: heat, clocks and the host are alike for all.

    Every second round goes backwards. `ms` is the median over a launch's turns of their medians, `spread` the
    quantiles of these.
    """
    for launch in launches:
        for _ in range(WARM_LAUNCHES):
            launch()
    bursts = []
    for launch in launches:
        torch.cuda.synchronize()
        time.sleep(BURST_IDLE_S)
        bursts.append(statistics.median(timed(launch, BURST_LAUNCHES, flush=True)))
    each = 1e3 * seconds / TURNS / max(*bursts, 1e-3)
    number = int(max(BURST_LAUNCHES, min(MOST_LAUNCHES, each)))
    found = _turns(launches, lambda launch: statistics.median(timed(launch, number, flush=True)))
    tenth = TURNS // 10
    return [
        Timing(statistics.median(times), burst, (sorted(times)[tenth], sorted(times)[-1 - tenth]))
        for times, burst in zip(found, bursts, strict=True)
    ]


def _turns(launches: Sequence[Launch], measured: Callable[[Launch], float]) -> list[list[float]]:
    """Return what each launch measures in its turns."""
    found: list[list[float]] = [[] for _ in launches]
    order = list(zip(launches, found, strict=True))
    for _ in range(TURNS):
        for launch, times in order:
            times.append(measured(launch))
        order.reverse()
    return found


def measure_long(launch: Launch, *, seconds: float = 1.0) -> Timing:
    """Time a launch of 0.1 s to 10 s, and its memory: one to warm, then at least one, in about `seconds`."""
    launch()
    ms, extra = _watched(launch)
    times = [ms]
    while len(times) < BURST_LAUNCHES and 1e-3 * (sum(times) + times[0]) <= seconds:
        times.append(_watched(launch)[0])
    return Timing(statistics.median(times), times[0], (min(times), max(times)), extra)


def captured(call: Launch) -> Launch:
    """Return the replay of a CUDA graph of a call; without a device, where shapes alone matter, the call."""
    if not torch.cuda.is_available():
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and allocates what a capture may not
        for _ in range(WARM_LAUNCHES):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()

    def launch() -> Any:
        graph.replay()
        return results

    return launch


def measure_host(call: Launch, *, calls: int = 2000, repeats: int = 5) -> Timing:
    """Time the host's side of a call; no repeat waits for the device; `ms` is the best repeat."""
    _warm_host(call)
    times = [_host_ms(call, calls) for _ in range(repeats)]
    return Timing(min(times), statistics.median(times), (min(times), max(times)))


def measure_host_in_turns(launches: Sequence[Launch], *, calls: int = 2000) -> list[Timing]:
    """Time the host's side of calls in turns, as `measure_in_turns`; `ms` is the best turn of each."""
    for launch in launches:
        _warm_host(launch)
    found = _turns(launches, lambda launch: _host_ms(launch, calls))
    return [Timing(min(times), statistics.median(times), (min(times), max(times))) for times in found]


def _warm_host(call: Launch) -> None:
    for _ in range(50):
        call()
    torch.cuda.synchronize()


def _host_ms(call: Launch, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    ms = 1e3 * (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    return ms


def extra_mib(launch: Launch) -> float:
    """Return a warm call's peak memory beyond what was held before it and what its results hold, in MiB."""
    return _watched(launch)[1]


def _watched(launch: Launch) -> tuple[float, float]:
    """Return the milliseconds of a launch and its extra MiB."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    first.record()
    result = launch()
    last.record()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    return first.elapsed_time(last), extra / 2**20


@dataclass(frozen=True, slots=True)
class Ceilings:
    """A device's two limits, measured: bytes read plus written by a large copy, and a bf16 matrix product."""

    bytes_per_s: float
    flops_per_s: float | None

    def limit_ms(self, moved: float, flops: float) -> float:
        """Return the least time in which a device moves so many bytes and does so many operations."""
        by_flops = flops / self.flops_per_s if flops and self.flops_per_s else 0.0
        return 1e3 * max(moved / self.bytes_per_s, by_flops)


def ceilings(*, matrix: bool) -> Ceilings:
    """Measure the ceilings; the matrix product only where a family needs it."""
    found = Ceilings(_copy_rate(), _product_rate() if matrix else None)
    torch.cuda.empty_cache()
    return found


def _copy_rate() -> float:
    x = torch.randn(2**29, dtype=torch.bfloat16, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / (1e-3 * measure(lambda: y.copy_(x), seconds=0.2).ms)


def _product_rate() -> float:
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * 8192**3 / (1e-3 * measure(lambda: a @ b, flush=False).ms)
