"""CPU time of the host's side of eager calls, measured without a device: kernels are bound and not launched.

`python -m benchmarks.host_time` prints microseconds of a call of small operators, without autograd, with a
graph recorded, and with the backward: everything that Python does for a call on a Hopper, the packing of
arguments included, up to a driver that does nothing. `--profile OP` prints where a call spends it. Then
a decode step of a layer, whose calls are looked up one by one, or replayed.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import rlk
from benchmarks import layers
from rlk.lower.common.emitted import KernelBuild
from rlk.nn import replay
from rlk.ops import attention
from rlk.runtime.binding.invocation import Invocation, Run, Tensors, geometry_of, model_of
from rlk.runtime.call import dispatch
from rlk.runtime.kernels import loader
from rlk.runtime.launch.driver import Cuda, Function
from rlk.runtime.launch.launcher import Services, make_launcher
from rlk.runtime.launch.record import LaunchRecord
from rlk.target.facts import HOPPER, target

ROWS, WIDTH = 8, 256
CALLS, REPEATS = 2000, 15


class NoDriver:
    """A driver whose launches do nothing."""

    header, overlapping, warp_size = Cuda.header, Cuda.overlapping, Cuda.warp_size

    def launch(self, configuration: int, function: int, parameters: int, extra: None) -> int:
        return 0

    def parameter_offsets(self, function: Function, count: int) -> None:
        return None


def launcher(kernel: KernelBuild) -> Callable[..., None]:
    """Return the launch of a kernel that is not there."""
    types = tuple(arg.type for arg in kernel.args if arg.type != "constexpr")
    record = LaunchRecord(
        kernel.name, f"{kernel.name}.cubin", types, kernel.num_warps, 0, 0, overlaps=kernel.overlaps
    )
    services = Services(lambda device: 0, lambda: 0, lambda device: nullcontext())
    driver: Any = NoDriver()
    return make_launcher(record, Function(0, 0, 0), driver, services, torch.empty)


def bound(invocation: Invocation, tensors: Tensors) -> Run:
    """Return the call that a Hopper would run, its launches left out."""
    geometry, device = geometry_of(invocation, tensors), torch.device("cpu")
    model, on = model_of(invocation, device), target(HOPPER)
    call = (invocation, model, geometry, tensors, on)
    program, _, _, emitted = dispatch.lowered(*call, backend="triton")
    launches = {kernel.name: launcher(kernel) for kernel in emitted.kernels}
    host = loader.bind(emitted.source, emitted.file, SimpleNamespace(**launches))
    parts = invocation, program, emitted.call, emitted.checks, geometry, tensors, device, host
    return dispatch._caller(*parts, addressed=True)


@contextmanager
def unlaunched() -> Iterator[None]:
    """Bind calls on CPU tensors as on a Hopper, and launch nothing: results are what memory held."""
    dispatch.dispatch.forget()
    try:
        with patch.object(dispatch, "bind", bound):
            yield
    finally:
        dispatch.dispatch.forget()


def calls() -> dict[str, tuple[Callable[[], Any], tuple[torch.Tensor, ...]]]:
    """Return small calls by name, with the tensors that may require a gradient."""
    draw = torch.Generator().manual_seed(0)
    x, up = (torch.randn(ROWS, WIDTH, generator=draw).bfloat16() for _ in range(2))
    weight = torch.ones(WIDTH, dtype=torch.bfloat16)
    logits = torch.randn(ROWS, 4 * WIDTH, generator=draw).bfloat16()
    ids = torch.arange(ROWS)
    who = {"seed": ids + 7, "request_id": ids, "position": ids}
    return {
        "swiglu": (lambda: rlk.ops.swiglu(x, up), (x, up)),
        "rms_norm": (lambda: rlk.ops.rms_norm(x, weight, eps=1e-6), (x, weight)),
        "logp": (lambda: rlk.ops.logp(logits, ids).logp, (logits,)),
        "sample": (lambda: rlk.ops.sample(logits, **who, top_k=50, top_p=0.9).token, ()),
    }


@contextmanager
def decoding(replayed: bool) -> Iterator[Callable[[], Any]]:
    """Yield a decode step of a small layer, as on a device: no offset and no page is looked at."""
    config = layers.config_of("qwen3", WIDTH, 8, 2, 2 * WIDTH, positions=1024)
    layer, at = layers.layer_of(config, "cpu"), layers.pages(config, 1, 512, "cpu")
    given = layers.states(1, WIDTH, "cpu")
    with (
        patch.object(replay, "on_a_device", lambda x: replayed),
        patch.object(attention, "on_the_host", lambda x: False),
        torch.no_grad(),
    ):
        yield lambda: layer(*given, at)


def microseconds(call: Callable[[], Any], number: int = CALLS, repeats: int = REPEATS) -> float:
    """Return the median CPU time of one call in us, over repeats."""
    for _ in range(50):
        call()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(number):
            call()
        times.append(1e6 * (time.thread_time() - start) / number)
    return statistics.median(times)


def forms(
    call: Callable[[], Any], inputs: tuple[torch.Tensor, ...]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a call without autograd, with a graph recorded, and with the backward."""
    with torch.no_grad():
        yield "no grad", call
    if not inputs:
        return
    for t in inputs:
        t.requires_grad_(True)
    yield "grad", call
    seed = torch.ones_like(call())
    yield "backward", lambda: torch.autograd.grad(call(), inputs, seed)
    for t in inputs:
        t.requires_grad_(False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--profile", metavar="OP", help="print the functions of a call of OP by their own time"
    )
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with unlaunched():
        for name, (call, inputs) in calls().items():
            if options.profile not in (None, name):
                continue
            for form, each in forms(call, inputs):
                print(
                    f"{name:10s} {form:10s} {microseconds(each, options.calls, options.repeats):6.2f} us",
                    flush=True,
                )
                if options.profile:
                    profiler = cProfile.Profile()
                    profiler.enable()
                    for _ in range(options.calls):
                        each()
                    profiler.disable()
                    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
        for form, replayed in (("looked up", False), ("replayed", True)):
            with decoding(replayed) as step:
                us = microseconds(step, options.calls // 10, options.repeats)
                print(f"{'layer':10s} {form:10s} {us:6.2f} us", flush=True)


if __name__ == "__main__":
    main()
