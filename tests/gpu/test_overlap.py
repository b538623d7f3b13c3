"""On Hopper a kernel starts while the one before it ends: chains of kernels have the same bits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_cute_runtime
import torch

from rlk import ops
from rlk.backends import binaries, cute, triton
from rlk.env import Env
from rlk.lower.common.emitted import Emitted, KernelArg, KernelBuild
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.launch.driver import may_overlap
from rlk.runtime.launch.record import ModuleRecord

ROUNDS, ROWS, WIDTH, VOCABULARY = 200, 5, 1024, 5000
TURNS = 200_000  # some milliseconds
ELEMENTS = 1024
SLOW = """
import triton
import triton.language as tl


@triton.jit
def slow(x_ptr, turns):
    # Let the next kernel start at once, and write at last.
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    x = at.to(tl.float32)
    for _ in range(turns):
        x = tl.sqrt_rn(x + 2.0)
    tl.store(x_ptr + at, x.to(tl.bfloat16))


@triton.jit
def take(x_ptr, y_ptr):
    # WAIT
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y_ptr + at, tl.load(x_ptr + at).to(tl.float32))


def call(kernels):
    pass
"""
POINTERS = KernelArg("x_ptr", "*bf16", divisible=True), KernelArg("y_ptr", "*fp32", divisible=True)
KERNELS = KernelBuild("slow", (POINTERS[0], KernelArg("turns", "i32"))), KernelBuild("take", POINTERS)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or getattr(target_of(torch.device("cuda", 0)), "name", "") != "sm_90a",
    reason="no Hopper",
)


# --- an access before the wait is seen, so that the launches do overlap ---


def loaded(by: Any, emitted: Emitted, folder: Path, *, overlaps: bool) -> dict[str, Any]:
    """Return the launchers of kernels that are launched early, whatever their compiler would say."""
    folder.mkdir()
    by(emitted, "sm_90a", folder)
    records = tuple(replace(each, overlaps=overlaps) for each in ModuleRecord.read(folder).kernels)
    load = binaries.load_binaries if by is triton.compile_triton else cute._load
    return load(folder, records, "cuda", 0)


def of_triton(folder: Path, *, waits: bool, overlaps: bool) -> Callable[..., None]:
    source = SLOW.replace("# WAIT", "tl.extra.cuda.gdc_wait()") if waits else SLOW
    emitted = Emitted(source, KERNELS, (), (), "rlk/early.py")
    launch = loaded(triton.compile_triton, emitted, folder, overlaps=overlaps)["take"]
    return lambda x, y: launch((ELEMENTS // 128,), x, y)


def of_cute(folder: Path, *, waits: bool, overlaps: bool) -> Callable[..., None]:
    emitted = test_cute_runtime.EMITTED
    if waits:
        head = "    i = block * 128 + thread\n"
        source = emitted.source.replace(head, f"    cute.arch.griddepcontrol_wait()\n{head}")
        emitted = replace(emitted, source=source)
    launch = loaded(cute.compile_cute, emitted, folder, overlaps=overlaps)["scale"]
    kept = torch.zeros(ELEMENTS, dtype=torch.bool, device="cuda")
    return lambda x, y: launch((ELEMENTS // 128,), x, y, kept, ELEMENTS, 1, 1.0, 0, 7)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("made", [of_triton, of_cute])
def test_a_kernel_that_does_not_wait_reads_too_early(
    made: Callable[..., Any], captured: bool, tmp_path: Path
) -> None:
    if made is of_cute and not importlib.util.find_spec("nvidia_cutlass_dsl"):
        pytest.skip("no cutlass-dsl")
    assert may_overlap()
    first = Emitted(SLOW, KERNELS, (), (), "rlk/early.py")
    slow = loaded(triton.compile_triton, first, tmp_path / "slow", overlaps=False)["slow"]
    x = torch.zeros(ELEMENTS, dtype=torch.bfloat16, device="cuda")
    y = torch.full((ELEMENTS,), -1.0, device="cuda")
    early = {}
    for waits in (True, False):
        for overlaps in (True, False):
            take = made(tmp_path / f"{waits} {overlaps}", waits=waits, overlaps=overlaps)
            slow((ELEMENTS // 128,), x, 1)  # both are loaded
            take(x, y)
            torch.cuda.synchronize()

            def both(take: Callable[..., None] = take) -> None:
                slow((ELEMENTS // 128,), x, TURNS)
                take(x, y)

            run = both
            if captured:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    both()
                run = graph.replay
            for _ in range(3):
                x.zero_()
                y.fill_(-1.0)
                torch.cuda.synchronize()
                run()
                torch.cuda.synchronize()
                early[waits, overlaps] = not torch.equal(y, x.float()) or early.get((waits, overlaps), False)
    assert early == {(True, True): False, (True, False): False, (False, True): True, (False, False): False}


# --- chains of operators ---


def chain(start: torch.Tensor, weights: dict[str, torch.Tensor], ids: torch.Tensor) -> list[torch.Tensor]:
    """Return what layers make of rows: each reads the last one's memory, which the next allocation reuses."""
    x = start
    for _ in range(6):
        normed = ops.rms_norm(x, weights["norm"])
        up = ops.matmul(normed, weights["up"])
        gate = ops.matmul(normed, weights["gate"])
        x = ops.matmul(ops.swiglu(gate, up), weights["down"], residual=x)
    x = ops.rms_norm(x, weights["norm"])
    made = ops.logp(ops.matmul(x, weights["head"]), ids).logp
    assert made is not None
    return [x, made]


def on_or_off(monkeypatch: pytest.MonkeyPatch, backend: str, overlap: bool) -> None:
    env = replace(Env.current(), backend=backend, overlap=overlap)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))
    dispatch.forget()


def assert_the_bits_in_order(
    made: Callable[[torch.Tensor], list[torch.Tensor]],
    starts: list[torch.Tensor],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare what kernels make that start early, eagerly and in a graph, with what they make in order."""
    if backend == "cute" and not importlib.util.find_spec("nvidia_cutlass_dsl"):
        pytest.skip("no cutlass-dsl")
    on_or_off(monkeypatch, backend, False)
    want = [[t.clone() for t in made(start)] for start in starts]
    torch.cuda.synchronize()
    on_or_off(monkeypatch, backend, True)
    eager = [made(start) for start in starts]
    torch.cuda.synchronize()
    given, graph = starts[0].clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = made(given)
    of_graph = []
    for start in starts:
        given.copy_(start)
        graph.replay()
        of_graph.append([t.clone() for t in replayed])
    torch.cuda.synchronize()
    words = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
    for found in (eager, of_graph):
        for got, expected in zip(found, want, strict=True):
            for a, b in zip(got, expected, strict=True):
                assert torch.equal(a.view(words[a.dtype]), b.view(words[b.dtype]))


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_chains_of_kernels_have_the_bits_of_kernels_that_end_first(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    new = partial(torch.randn, generator=draw, device="cuda")
    sizes = {"up": (4 * WIDTH, WIDTH), "gate": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH)}
    sizes["head"] = VOCABULARY, WIDTH
    weights = {name: (new(size) / 32).bfloat16() for name, size in sizes.items()}
    weights["norm"] = new(WIDTH).bfloat16()
    starts = [new(ROWS, WIDTH).bfloat16() for _ in range(ROUNDS)]
    ids = torch.randint(0, VOCABULARY, (ROWS,), device="cuda", generator=draw)
    assert_the_bits_in_order(partial(chain, weights=weights, ids=ids), starts, backend, monkeypatch)


def forked(start: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    """Return what kernels make beside a fill, a copy, a kernel of torch and those of a second stream."""
    x = torch.zeros_like(start)
    x.copy_(start)
    first = ops.rms_norm(x, scale)
    second = ops.rms_norm(first + first, scale)
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        there = ops.matmul(second, weight)
        there = ops.rms_norm(there, scale)
    third = ops.matmul(ops.rms_norm(second, scale), weight)
    here.wait_stream(beside)
    last = ops.matmul(third, weight, residual=there)
    return [first, second, there, third, last]


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_fills_copies_and_two_streams_leave_the_bits(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator("cuda").manual_seed(1)
    new = partial(torch.randn, generator=draw, device="cuda")
    weight, scale = (new(WIDTH, WIDTH) / 32).bfloat16(), new(WIDTH).bfloat16()
    starts = [new(ROWS, WIDTH).bfloat16() for _ in range(ROUNDS)]
    assert_the_bits_in_order(partial(forked, weight=weight, scale=scale), starts, backend, monkeypatch)
