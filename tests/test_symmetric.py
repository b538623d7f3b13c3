"""Sums through memory that ranks share: the kernels' text by processes that share it, and the selection."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_cases import SPECIAL, wide

from rlk.env import Env
from rlk.errors import LaunchError
from rlk.interp.floats import tree_sum
from rlk.ir.tree import Tree
from rlk.lower.triton.ranks import Exchange, lower_sums
from rlk.ops import ordered_all_reduce
from rlk.runtime.call import symmetric
from rlk.runtime.call.symmetric import Facts, Memory, Sizes, Transport, refusal
from rlk.testing.bits import assert_same_bits, differing

ONE_HOST = Path(__file__).with_name("prelude_one_host.py")
SIZES = {2: Sizes(1 << 11, None), 4: Sizes(1 << 11, 1 << 12)}
COUNTS = (1, 700, 2101, 333, 1600, 5003, 512)
"""Elements: of words, of chunks that go round the ring, aligned and not, one after the other."""
SECONDS = 100
FORK: Any = multiprocessing.get_context("fork")


def forked(ranks: int, run: Callable[[int], None]) -> None:
    """Run each rank in a process of its own; if one fails or takes too long, all end."""
    every = [FORK.Process(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for process in every:
        process.start()
    try:
        for process in every:
            process.join(SECONDS)
        assert [process.exitcode for process in every] == [0] * ranks
    finally:
        for process in every:
            process.kill()


def buffers(ranks: int) -> tuple[Exchange, Callable[[], Memory]]:
    """Return small sizes, and what makes the memory of a process that was forked after it."""
    sizes = Exchange(ranks, words=512, programs=2, chunk=1024, ahead=1)
    shapes = (2 * ranks * 512, torch.int64), (ranks * sizes.ring, torch.uint8), (2 * ranks, torch.int32)
    every = [
        [torch.zeros(count, dtype=dtype).share_memory_() for _ in range(ranks)] for count, dtype in shapes
    ]
    return sizes, lambda: Memory(
        *every, torch.tensor([1, 0], dtype=torch.int32), torch.zeros(2, dtype=torch.int32), 0
    )


def given(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    x = wide(count, seed=100 * count + rank) / 64
    if count == 700:
        x[:9] = torch.tensor(SPECIAL[rank])
    return x.to(dtype)


def gathered(ranks: int, rank: int, outs: torch.Tensor, barrier: Any) -> Callable[..., None]:
    """Return a stand-in of the backend's gather, through memory that processes share."""

    def gather(out: torch.Tensor, part: torch.Tensor) -> None:
        room = outs[: out.nbytes].view(out.dtype).view(ranks, -1)
        barrier.wait(SECONDS)
        room[rank] = part
        barrier.wait(SECONDS)
        out.copy_(room.view(-1))

    return gather


def one_rank(
    rank: int, sizes: Exchange, memory: Callable[[], Memory], gather: Callable[..., None], folder: Path
) -> None:
    """Make all calls of a rank, in a process of its own, and write what they gave."""
    from rlk.runtime.kernels.loader import interpret as bind
    from rlk.testing.simulators.interpreter import interpret

    torch.set_num_threads(1)
    ranks = sizes.ranks
    on = Transport(
        rank,
        sizes,
        memory(),
        lambda *dtypes: bind(lower_sums(sizes, rank, *dtypes, memory=ONE_HOST), interpret),
    )
    found: dict[str, torch.Tensor] = {}
    with patch.object(symmetric, "SIZES", SIZES):
        for dtype in (torch.float32, torch.bfloat16):
            for count in COUNTS:
                x = given(rank, count, dtype)
                found[f"total {dtype} {count}"] = on.total(x, dtype, gather)
                if dtype is torch.float32 and count in (333, 5003):
                    found[f"short {count}"] = on.total(x, torch.bfloat16, gather)
                found[f"part {dtype} {count}"] = (
                    on.part(x[: count // ranks * ranks], dtype) if count > 8 else x
                )
    torch.save(found, folder / f"{rank}.pt")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_share_memory_have_the_bits_of_the_tree(ranks: int, tmp_path: Path) -> None:
    """Kernels of each rank, interpreted, wait for one another; no slot is used too early."""
    pytest.importorskip("triton")
    import rlk.testing.simulators.interpreter  # noqa: F401  # once, before the forks

    sizes, memory = buffers(ranks)
    outs, barrier = torch.zeros(1 << 16, dtype=torch.uint8).share_memory_(), FORK.Barrier(ranks)
    forked(
        ranks,
        lambda rank: one_rank(rank, sizes, memory, gathered(ranks, rank, outs, barrier), tmp_path),
    )
    found = [torch.load(tmp_path / f"{r}.pt") for r in range(ranks)]
    wrong = 0
    for dtype in (torch.float32, torch.bfloat16):
        for count in COUNTS:
            terms = np.stack([given(r, count, dtype).float().numpy() for r in range(ranks)])
            want = torch.from_numpy(tree_sum(terms, 0, Tree.pairwise)).to(dtype)
            halves = torch.from_numpy(tree_sum(terms, 0, Tree.halving)).to(dtype)
            for r, made in enumerate(found):
                assert_same_bits(made[f"total {dtype} {count}"], want, f"{dtype}, {count} on rank {r}")
                if f"short {count}" in made and dtype is torch.float32:
                    assert_same_bits(made[f"short {count}"], want.bfloat16(), f"{count}, rounded")
                if count > 8:
                    part = want[: count // ranks * ranks].chunk(ranks)[r]
                    assert_same_bits(made[f"part {dtype} {count}"], part, f"part of {dtype}, {count}")
                wrong += differing(made[f"total {dtype} {count}"], halves)
    if ranks > 2:  # the control: two terms have one order
        assert wrong > 1000


# --- slots: every order in which ranks may go on ---


def overwritten(ranks: int, slots: int, ahead: int, calls: int = 2, chunks: int = 9) -> bool:
    """Return whether, in some order of steps, a chunk goes into a slot that its receiver has not consumed.

    A rank sends chunk t and then consumes chunk t - ahead of every other one, or waits for it; when a call
    ends it has consumed all. With `ahead` 0 and a chunk for each call, this is `sum_words`.
    """
    steps: list[tuple[str, int]] = []
    for call in range(calls):
        first = call * chunks
        for turn in range(chunks + ahead):
            steps += [("send", first + turn)] if turn < chunks else []
            steps += [("add", first + turn - ahead)] if turn >= ahead else []
    sent, added = (
        [sum(s[0] == kind for s in steps[:at]) for at in range(len(steps) + 1)] for kind in ("send", "add")
    )
    seen, waiting = set(), [(0,) * ranks]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        for rank, at in enumerate(state):
            if at == len(steps):
                continue
            kind, chunk = steps[at]
            others = [state[r] for r in range(ranks) if r != rank]
            if kind == "add" and any(sent[other] <= chunk for other in others):
                continue
            if kind == "send" and any(added[other] <= chunk - slots for other in others):
                return True
            waiting.append((*state[:rank], at + 1, *state[rank + 1 :]))
    assert (len(steps),) * ranks in seen  # all end
    return False


@pytest.mark.parametrize(("ranks", "ahead"), [(2, 0), (2, 1), (2, 2), (2, 4), (3, 1)])
def test_no_slot_is_used_before_it_was_read(ranks: int, ahead: int) -> None:
    slots = Exchange(ranks, ahead=ahead).slots
    assert not overwritten(ranks, slots, ahead)
    assert overwritten(ranks, slots - 1, ahead)  # the control


# --- selection ---

ABLE = [Facts("a", 0, (1, 2)), Facts("a", 1, (0,))]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({}, ""),
        ({"node": "b"}, "several nodes"),
        ({"device": 0}, "CUDA_VISIBLE_DEVICES"),
        ({"device": 3}, "rank 0 does not reach device 3"),
        ({"reached": (2,)}, "rank 1 does not reach device 0"),
        ({"lacks": "no compiler"}, "rank 1: no compiler"),
    ],
)
def test_memory_is_shared_where_every_rank_can(second: dict[str, Any], why: str) -> None:
    said = refusal([ABLE[0], replace(ABLE[1], **second)])
    assert why in said and bool(why) == bool(said)


def selecting(rank: int, folder: Path) -> None:
    """Be a rank of a group that has no devices: what it chooses, and what it chooses of what others say."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    group, device = dist.group.WORLD, torch.device("cpu")
    found: dict[str, Any] = {"unset": ordered_all_reduce(wide(9, seed=rank), group)}

    def failing(*_: object) -> Any:
        if rank:
            raise RuntimeError("no room\nat all")
        return Transport(rank, Exchange(2), Memory([], [], [], wide(1, seed=0), wide(1, seed=0), 0), failing)

    with (
        patch.object(symmetric, "_facts", lambda *_: ABLE[rank]),
        patch.object(symmetric, "_mapped", failing),
    ):
        found["one failed"] = symmetric._set_up(group, device)
    lacking = replace(ABLE[rank], lacks="" if rank else "no compiler")
    with patch.object(symmetric, "_facts", lambda *_: lacking):
        found["one lacks"] = symmetric._set_up(group, device)
    for choice in ("symmetric", "backend"):
        with patch.object(Env, "current", lambda choice=choice: Env(Path(), transport=choice)):
            try:
                found[choice] = ordered_all_reduce(wide(9, seed=rank), group)
            except LaunchError as error:
                found[choice] = str(error)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()
    os._exit(0)


def test_ranks_choose_alike(tmp_path: Path) -> None:
    forked(2, lambda rank: selecting(rank, tmp_path))
    want = wide(9, seed=0) + wide(9, seed=1)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert_same_bits(found["unset"], want)
        assert_same_bits(found["backend"], want)
        assert found["one failed"] == "RuntimeError: no room"
        assert found["one lacks"] == "rank 0: no compiler"
        for word in ("ordered_all_reduce", "RLK_TRANSPORT='symmetric'", "x is on cpu", "backend"):
            assert word in found["symmetric"]


def test_the_environment_chooses() -> None:
    assert Env.read({}).transport is None
    assert Env.read({"RLK_TRANSPORT": "Backend"}).transport == "backend"
    with pytest.raises(LaunchError, match="one of symmetric, backend"):
        Env.read({"RLK_TRANSPORT": "nccl"})
