"""Sums by symmetric memory on devices: `python -m gpu.symmetric_ranks nccl WORLD RANK FOLDER [dies]`."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rank_cases import LIMIT, Found, member, wide

from rlk.lower.triton.ranks import BLOCK
from rlk.ops import ordered_all_reduce, ordered_gather_sum, ordered_reduce_scatter
from rlk.runtime.call.collective import part_by_backend, sum_by_backend
from rlk.runtime.call.symmetric import Transport, transport

COUNTS = (8, 2048, 4096 + 24, 1 << 16, 1 << 17, (1 << 17) + 8, 1 << 20, (1 << 20) + 40, 5 << 20, 1 << 23)
"""Elements: of words and of chunks, of one round and many, whole vectors and not."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SOON = timedelta(seconds=5)
"""The timeout of the group one of whose ranks dies."""


def given(count: int, dtype: torch.dtype, rank: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(100 * count + rank)
    x = torch.randn(count, generator=generator, device=device)
    scale = torch.randint(-9, 5, (count,), generator=generator, device=device)
    return (x * 2.0**scale).to(dtype)


def main(backend: str, world: int, rank: int, folder: Path, mode: str = "bits") -> None:
    """Run as one rank, and write what it found."""
    if mode == "dies":
        with member(backend, world, rank, folder, SOON) as device:
            dies(rank, device, folder / f"{rank}.pt")
    with member(backend, world, rank, folder, LIMIT) as device:
        torch.save(everything(rank, device), folder / f"{rank}.pt")


def unlike(a: torch.Tensor, b: torch.Tensor) -> int:
    """Return the number of values with other bits, which the device counts."""
    kind = torch.int32 if a.element_size() == 4 else torch.int16
    return int((a.view(kind) != b.view(kind)).sum())


def everything(rank: int, device: torch.device) -> Found:
    group = dist.group.WORLD
    assert group is not None
    on = transport((group,), torch.ones(1, device=device), "a test")
    assert isinstance(on, Transport)
    found: Found = {"differing": {}}
    for dtype in DTYPES:
        for count in COUNTS[:-2] if dtype is torch.float16 else COUNTS:
            x = given(count + 1, dtype, rank, device)
            for name, each in (("", x[:-1]), ("unaligned ", x[1:])):
                whole, part = (by(each, (group,), dtype) for by in (sum_by_backend, part_by_backend))
                made = {
                    "all": unlike(ordered_all_reduce(each, None), whole),
                    "gathered": unlike(ordered_gather_sum(each, None), whole),
                    "part": unlike(ordered_reduce_scatter(each, None), part),
                }
                outs = DTYPES[:2] if dtype is torch.float32 else (dtype,)  # in one order on all ranks
                for out in outs if count < 1 << 23 else ():
                    y = torch.empty_like(each, dtype=out)
                    on.by_shares(each, y)
                    made[f"shares to {out}"] = unlike(y, whole.to(out))
                if dtype is torch.float32 and count < 1 << 22:
                    for out in DTYPES[1:]:
                        short = ordered_all_reduce(each, None, out_dtype=out)
                        made[f"to {out}"] = unlike(short, whole.to(out))
                        short = ordered_reduce_scatter(each, None, out_dtype=out)
                        made[f"part to {out}"] = unlike(short, part.to(out))
                found["differing"] |= {f"{name}{key} {count} {dtype}": n for key, n in made.items()}
    terms = given(4096, torch.float32, rank, device)
    found["small"] = ordered_all_reduce(terms, None).cpu()
    for name, add in (("words", on.by_words), ("chunks", on.by_chunks)):
        out = torch.empty_like(terms)
        add(terms, out, 0)
        found[name] = out.cpu()
    found["repeats"] = repeats(rank, device)
    found["graph"] = replayed(rank, device)
    found["wrap"] = wrapped(on, group, rank, device)
    return found


def wrapped(on: Transport, group: dist.ProcessGroup, rank: int, device: torch.device) -> int:
    """Return the differing values of sums by words whose numbers go on from 2**32 - 1 to 0.

    The small calls before it renew the words of all slots, of which the call of number 0 uses every one.
    """
    small, large = (given(n, torch.float32, rank, device) for n in (300, on.sizes.words))
    want = [sum_by_backend(x, (group,), torch.float32) for x in (small, large)]
    torch.cuda.synchronize()
    dist.barrier()
    before = 2 * on.sizes.words // BLOCK + 2
    on.memory.calls[0] = -before
    torch.cuda.synchronize()
    dist.barrier()
    count = 0
    for turn in range(before + 4):
        x = large if turn in (before, before + 3) else small
        out = torch.empty_like(x)
        on.by_words(x, out, 0)
        count += unlike(out, want[x is large]) if turn % 64 == 0 or turn >= before else 0
    assert on.memory.calls.tolist() == [4, 0]
    return count


def repeats(rank: int, device: torch.device) -> int:
    """Return how many values of 400 calls, by two streams, without a wait, are unlike the first call's."""
    xs = [given(count, torch.float32, rank, device) for count in (300, 1 << 21, 70_000, 1 << 18)]
    first = [ordered_all_reduce(x, None) for x in xs]
    torch.cuda.synchronize()
    made, streams = [], [torch.cuda.Stream(), torch.cuda.current_stream()]
    torch.cuda.set_sync_debug_mode("error")
    for turn in range(100):
        with torch.cuda.stream(streams[turn // 3 % 2]):
            made.append([ordered_all_reduce(x, None) for x in xs])
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return sum(unlike(y, want) for ys in made for y, want in zip(ys, first, strict=True))


def replayed(rank: int, device: torch.device) -> int:
    """Return the differing values of 40 replays of a graph of sums on two streams, beside calls outside."""
    x = [torch.zeros(count, device=device) for count in (2048, 1 << 20, 1 << 15)]
    graph = torch.cuda.CUDAGraph()
    add = partial(ordered_all_reduce, group=None)
    side = torch.cuda.Stream()
    with torch.cuda.graph(graph):
        streams = [side, torch.cuda.current_stream()]
        side.wait_stream(streams[1])
        ys = []
        for at, t in enumerate(x):  # no stream waits for the other: the sums do
            with torch.cuda.stream(streams[at % 2]):
                ys.append(add(t))
        part = ordered_reduce_scatter(x[1], None)
        streams[1].wait_stream(side)
    count = 0
    for turn in range(40):
        for at, t in enumerate(x):
            t.copy_(given(t.numel(), torch.float32, 10 * turn + at + 1000 * rank, device))
        graph.replay()
        if turn % 3 == 0:
            count += sum(unlike(y, add(t)) for y, t in zip(ys, x, strict=True))
            count += unlike(part, ordered_reduce_scatter(x[1], None))
    return count


def dies(rank: int, device: torch.device, file: Path) -> None:
    """Let rank 1 end before a sum; write what the others find, and after how many seconds."""
    x = wide(1000, seed=rank).to(device)
    for _ in range(3):
        ordered_all_reduce(x, None)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    found: Found = {"error": "", "seconds": 0.0}
    if rank != 1:
        start = time.monotonic()
        try:
            ordered_all_reduce(x, None)
            torch.cuda.synchronize()
        except RuntimeError as error:
            found["error"] = str(error)
        found["seconds"] = time.monotonic() - start
    torch.save(found, file)
    os._exit(0)  # the context of a device whose kernel trapped is of no more use


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
