"""Sums through memory that ranks share: the kernels' text by processes that share it, and the selection."""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_cases import SPECIAL, Kind, wide

from rlk.env import Env
from rlk.errors import LaunchError, ScheduleError
from rlk.interp.floats import tree_sum
from rlk.ir.tree import Tree
from rlk.lower.triton.ranks import BLOCK, Exchange, lower_sums
from rlk.ops import ordered_all_reduce
from rlk.runtime.call import symmetric
from rlk.runtime.call.symmetric import Facts, Memory, Sizes, Transport, _Loaded, refusal
from rlk.testing.bits import assert_same_bits, differing

ONE_HOST = Path(__file__).with_name("prelude_one_host.py")
SIZES = {2: Sizes(1 << 11, None, 1 << 11), 4: Sizes(1 << 11, 1 << 12, 1 << 12)}
COUNTS = (1, 700, 2101, 333, 1600, 5003, 512)
"""Elements: of words, of chunks that go round the ring, aligned and not, one after the other."""
SHORT = (333, 1600, 5003)
"""Those of which sums are rounded to 16 bits, too: each rank adds a share of all but the first."""
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


def buffers(
    ranks: int, *, ahead: int = 1, start: int = 0, call: int = 1
) -> tuple[Exchange, Callable[[], Memory]]:
    """Return small sizes, and what makes the memory of a process that was forked after it.

    start: the count of chunks before the first one. call: the number of the first call by words.
    """
    sizes = Exchange(ranks, words=512, programs=2, chunk=1024, ahead=ahead)
    shapes = (2 * ranks * 512, torch.int64), (2 * ranks * sizes.ring, torch.uint8), (4 * ranks, torch.int32)
    every = [
        [torch.zeros(count, dtype=dtype).share_memory_() for _ in range(ranks)] for count, dtype in shapes
    ]
    for flags in every[2]:
        flags.fill_(start)
    return sizes, lambda: Memory(
        *every,
        torch.tensor([call, 0], dtype=torch.int32),
        torch.tensor([start, start, 0, 0], dtype=torch.int32),
        0,
    )


def interpreted(
    rank: int, sizes: Exchange, memory: Memory, change: Callable[[str], str] = lambda source: source
) -> Transport:
    """Return a transport of interpreted kernels, whose text a control changes."""
    from rlk.runtime.kernels.loader import interpret as bind
    from rlk.testing.simulators.interpreter import interpret

    def host(*dtypes: str) -> Any:
        emitted = lower_sums(sizes, rank, *dtypes, memory=ONE_HOST)
        return bind(replace(emitted, source=change(emitted.source)), interpret)

    return Transport(rank, sizes, memory, host)


def given(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    x = wide(count, seed=100 * count + rank) / 64
    if count == 700:
        x[:9] = torch.tensor(SPECIAL[rank])
    return x.to(dtype)


def one_rank(rank: int, sizes: Exchange, memory: Callable[[], Memory], folder: Path) -> None:
    """Make all calls of a rank, in a process of its own, and write what they gave."""
    torch.set_num_threads(1)
    ranks, on = sizes.ranks, interpreted(rank, sizes, memory())
    found: dict[str, torch.Tensor] = {}
    with patch.object(symmetric, "SIZES", SIZES):
        for dtype in (torch.float32, torch.bfloat16):
            for count in COUNTS:
                x = given(rank, count, dtype)
                found[f"total {dtype} {count}"] = on.total(x, dtype)
                if dtype is torch.float32 and count in SHORT:
                    found[f"short {count}"] = on.total(x, torch.bfloat16)
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
    forked(ranks, lambda rank: one_rank(rank, sizes, memory, tmp_path))
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


WRAPS = (2**31 - 2, -2)
"""Counts of chunks just below 2**31 and 2**32, as i32."""


def test_counts_go_on_over_a_wrap(tmp_path: Path) -> None:
    """At 2**31 and 2**32, where the number of slots divides neither; chunks stay inside of rings."""
    pytest.importorskip("triton")
    from rlk.testing.simulators.interpreter import InterpreterFault

    made = [buffers(2, ahead=2, start=start) for start in WRAPS]
    assert all(2**31 % sizes.slots for sizes, _ in made)

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        found = []
        for start, (sizes, memory) in zip(WRAPS, made, strict=True):
            on, x = interpreted(rank, sizes, memory()), given(rank, 5003, torch.float32)
            for form in (partial(on.by_chunks, stride=0), on.by_shares):
                found.append(torch.empty_like(x))
                form(x, found[-1])
            assert (on.memory.counts[:2] < 0).tolist() == [start > 0] * 2  # counts went over
        torch.save(found, tmp_path / f"{rank}.pt")

    forked(2, run)
    want = given(0, 5003, torch.float32) + given(1, 5003, torch.float32)
    for rank in range(2):
        for each in torch.load(tmp_path / f"{rank}.pt"):
            assert_same_bits(each, want, f"rank {rank}")
    for start in WRAPS:  # the control: a remainder of the count
        on = interpreted(0, made[0][0], buffers(2, ahead=2, start=start)[1](), by_count)
        with pytest.raises(InterpreterFault, match="store of argument 'ring_1_ptr'"):
            on.by_chunks(want, torch.empty_like(want), 0)


def by_count(source: str) -> str:
    assert "(place + step)" in source
    return source.replace("(place + step)", "(first + step)")


FEW = 6
"""Calls before the number 0, in which the words of every slot are renewed: two sets of two blocks."""


def test_numbers_of_calls_go_on_over_a_wrap(tmp_path: Path) -> None:
    """Slots that no call before has used have words of zeros, which the call of number 0 must not take."""
    pytest.importorskip("triton")
    import rlk.testing.simulators.interpreter  # noqa: F401

    sizes, memory = buffers(2, call=-FEW)
    counts = [*[1] * FEW, 512, 1, 512]

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        on, found = interpreted(rank, sizes, memory()), []
        for count in counts:
            x = given(rank, count, torch.float32)
            found.append(torch.empty_like(x))
            on.by_words(x, found[-1], 0)
        assert on.memory.calls.tolist() == [3, 0]
        torch.save((found, on.memory.words[rank]), tmp_path / f"{rank}.pt")

    forked(2, run)
    for rank in range(2):
        found, words = torch.load(tmp_path / f"{rank}.pt")
        for count, made in zip(counts, found, strict=True):
            want = given(0, count, torch.float32) + given(1, count, torch.float32)
            assert_same_bits(made, want, f"{count} elements on rank {rank}")
        sent = words.view(2, 2, 512)[:, 1 - rank]
        assert (sent >> 32 != 0).all()
    alone = interpreted(0, sizes, buffers(2, call=-FEW)[1](), without_renewal)  # the control
    alone.memory.calls[0] = 0
    x = given(0, 512, torch.float32)
    alone.by_words(x, out := torch.empty_like(x), 0)  # it waits for no rank
    assert_same_bits(out, x + 0.0)


def without_renewal(source: str) -> str:
    assert source.count("mask=other >= n") == 1
    return source.replace("mask=other >= n", "mask=other < 0")


@pytest.mark.parametrize("words", [0, BLOCK // 2, 3 * BLOCK, 4 * BLOCK + 1])
def test_words_are_a_power_of_two_of_whole_blocks(words: int) -> None:
    assert Exchange(2, words=BLOCK).words == BLOCK
    with pytest.raises(ScheduleError, match=f"Exchange.words={words}: a power of two from {BLOCK} on"):
        Exchange(2, words=words)


def test_kernels_reach_other_devices_by_instructions_of_the_system(tmp_path: Path) -> None:
    """Of the memory model's scope that spans devices; terms move 16 bytes at a time."""
    pytest.importorskip("triton")
    from rlk.backends.triton import compile_triton

    emitted = lower_sums(Exchange(2), 0, "fp32", "fp32")
    compile_triton(replace(emitted, kernels=emitted.kernels[:2]), "sm_90a", tmp_path)
    words, chunks = ((tmp_path / f"{name}.ptx").read_text() for name in ("sum_words", "sum_chunks"))
    assert "st.relaxed.sys.global.b64" in words and "ld.relaxed.sys.global.b64" in words
    before, _, after = chunks.partition("fence.acq_rel.sys")
    assert "st.global.v4.b32" in before and "st.relaxed.sys.global.b32" not in before
    assert "bar.sync" in before and "st.relaxed.sys.global.b32" in after
    before, _, after = after.partition("ld.acquire.sys.global.b32")
    assert "ld.global.cg.v4.b32" in after and "ld.global.cg" not in before


# --- slots: every order in which ranks may go on ---


Step = tuple[str, int]


def chunk_steps(first: int, chunks: int, ahead: int) -> list[Step]:
    """Return the steps of a program of `sum_chunks`; with `ahead` 0 and one chunk, those of `sum_words`."""
    steps: list[Step] = []
    for turn in range(chunks + ahead):
        steps += [("send", first + turn), ("flag", 0)] if turn < chunks else []
        steps += [("add", first + turn - ahead)] if turn >= ahead else []
    return steps


def share_steps(first: int, chunks: int, ahead: int) -> list[Step]:
    """Return the steps of a program of `sum_shares`."""
    steps: list[Step] = []
    for turn in range(chunks + 2 * ahead):
        steps += [("send", first + turn)] if turn < chunks else []
        if ahead <= turn < chunks + ahead:
            steps += [("add", first + turn - ahead), ("sum", first + turn - ahead)]
        steps += [("flag", 0)] if turn < chunks + ahead else []
        steps += [("take", first + turn - 2 * ahead)] if turn >= 2 * ahead else []
    return steps


READS = {"send": "add", "sum": "take"}
"""The step of the receiver that reads what a step writes."""
CHUNKS = 7


def overwritten(ranks: int, slots: int, ahead: int, calls: str) -> bool:
    """Return whether, in some order of steps, something goes into a slot that its receiver has not read.

    calls: one of "chunks" (c) or shares (s) after the other, of every rank.
    """
    steps: list[Step] = []
    for call, kind in enumerate(calls):
        steps += (chunk_steps if kind == "c" else share_steps)(call * CHUNKS, CHUNKS, ahead)
    ends = range(len(steps) + 1)
    done = {(*step, at) for at in ends for step in steps[:at]}  # the steps that a rank has made at a place
    flagged = [max((i + 1 for i in range(at) if steps[i][0] == "flag"), default=0) for at in ends]
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
            needs = {"add": "send", "take": "sum"}.get(kind)
            if needs and any((needs, chunk, flagged[other]) not in done for other in others):
                continue
            old = (READS.get(kind, ""), chunk - slots)
            if old in steps and any((*old, other) not in done for other in others):
                return True
            waiting.append((*state[:rank], at + 1, *state[rank + 1 :]))
    assert (len(steps),) * ranks in seen  # all end
    return False


@pytest.mark.parametrize(
    ("ranks", "ahead", "calls", "too_few"),
    [(2, 0, "cc", 1), (2, 1, "cc", 3), (2, 2, "ccc", 5), (2, 4, "cc", 9), (3, 1, "cc", 3)]
    + [(2, 1, "ss", 2), (2, 2, "scs", 5), (2, 2, "ss", 4), (3, 1, "csc", 3)],
)
def test_no_slot_is_used_before_it_was_read(ranks: int, ahead: int, calls: str, too_few: int) -> None:
    assert not overwritten(ranks, Exchange(ranks, ahead=ahead).slots, ahead, calls)
    assert overwritten(ranks, too_few, ahead, calls)  # the control


# --- streams: what the current one waits for, outside of captures and inside of each ---


class Line:
    """A stream: which sums come before what it does next, in its capture (or None), and that capture."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.capture: int | None = None
        self.before: dict[int | None, set[int]] = defaultdict(set)

    def wait_stream(self, other: Line) -> None:
        assert other.capture == self.capture  # or CUDA ends the capture with an error
        self.before[self.capture] |= other.before[self.capture]


def unordered(seed: int) -> int:
    """Return how many sums on random streams do not wait for all before, of their capture or of none."""
    random, on = Random(seed), made(2, None)
    kinds = torch.float32, torch.float32
    on.loaded[kinds] = _Loaded(None, (), ())  # type: ignore[arg-type]
    x, lines, sums = wide(1, seed=0), [Line(h) for h in range(4)], defaultdict[int | None, set[int]](set)
    origin: Line | None = None
    missed = 0
    for turn in range(300):
        line = random.choice(lines)
        action = random.choice(("sum", "sum", "sum", "capture", "fork"))
        if action == "capture" and origin:
            for each in lines:
                each.capture = None
            origin = None
        elif action == "capture" and line.cuda_stream:
            origin, line.capture = line, turn
        elif action == "fork" and origin and line.capture is None and line.cuda_stream:
            line.capture = origin.capture
            line.wait_stream(origin)
        elif action == "sum":
            with (
                patch.object(
                    torch._C, "_cuda_getCurrentRawStream", lambda *_, line=line: line.cuda_stream, create=True
                ),
                patch.object(torch.cuda, "current_stream", lambda *_, line=line: line),
                patch.object(symmetric, "_captures", lambda each: each.capture is not None),
            ):
                try:
                    on._ready(x, x)
                except LaunchError as error:
                    assert origin and line.capture is None and "before that of" in str(error)
                    continue
            missed += not line.before[line.capture] >= sums[line.capture]
            line.before[line.capture].add(turn)
            sums[line.capture].add(turn)
    return missed


def test_sums_follow_each_other_in_each_capture_and_outside() -> None:
    assert sum(map(unordered, range(20))) == 0

    def outside_alone(on: Transport, handle: int) -> None:
        line: Any = torch.cuda.current_stream(on.device)
        if line.capture is None and not (on.last and on.last.capture):
            if on.last:
                line.wait_stream(on.last)
            on.last, on.last_handle = line, handle

    with patch.object(Transport, "_follow", outside_alone):  # the control
        assert sum(map(unordered, range(20))) > 100


# --- selection ---

CHOICES = (None, "symmetric", "backend")
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


def made(ranks: int, host: Any) -> Transport:
    """Return a transport without buffers, as if of a device: -1 is that of host memory."""
    counts = torch.zeros(2, dtype=torch.int32)
    return Transport(0, Exchange(ranks), Memory([], [], [], counts, counts, 0), host, -1)


def selecting(rank: int, folder: Path) -> None:
    """Be a rank of a group that has no devices: what it chooses, and what it chooses of what others say."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    group, device = dist.group.WORLD, torch.device("cpu")
    assert group is not None
    found: dict[str, Any] = {"unset": ordered_all_reduce(wide(9, seed=rank), group)}

    def failing(*_: object) -> Any:
        if rank:
            raise OSError("no room\nat all")
        return made(2, failing)

    def meeting(*_: object) -> None:
        dist.barrier()

    for step, others in (("_allocated", "_mapped"), ("_mapped", "_allocated")):
        with (
            patch.object(symmetric, "_facts", lambda *_: ABLE[rank]),
            patch.object(symmetric, step, failing),
            patch.object(symmetric, others, meeting),  # of all ranks, or of none
        ):
            found[f"failed: {step}"] = symmetric._set_up(group, device)
    if rank:
        with patch.object(torch.cuda, "device_count", side_effect=ValueError("odd")):
            found["failed: _facts"] = symmetric._set_up(group, device)
    else:
        with patch.object(symmetric, "_facts", lambda *_: ABLE[rank]):
            found["failed: _facts"] = symmetric._set_up(group, device)
    lacking = replace(ABLE[rank], lacks="" if rank else "no compiler")
    with patch.object(symmetric, "_facts", lambda *_: lacking):
        found["one lacks"] = symmetric._set_up(group, device)
    for choice in ("symmetric", "backend"):
        with patch.object(Env, "current", lambda choice=choice: Env(Path(), transport=choice)):
            try:
                found[choice] = ordered_all_reduce(wide(9, seed=rank), group)
            except LaunchError as error:
                found[choice] = str(error)
    x = wide(4, 6, seed=0)
    for ranks in (2, 4, 8):
        host = symmetric._found[group] = made(ranks, failing)
        for choice in CHOICES:
            with patch.object(Env, "current", lambda choice=choice: Env(Path(), transport=choice)):
                found[f"known {ranks} {choice}"] = symmetric.known(x, None) is host
    host = symmetric._found[group] = made(2, failing)
    there = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 1))
    with pytest.raises(LaunchError, match=r"x.device='cuda:1'(.|\n)* RLK_TRANSPORT=backend"):
        symmetric.transport((group,), there, "a test")  # type: ignore[arg-type]
    given = {"plain": x, "t": x.t(), "i32": x.int(), "empty": x[:0], "grad": x.clone().requires_grad_()}
    given |= {"negated": torch._neg_view(x), "sparse": x.to_sparse(), "kind": x.as_subclass(Kind)}
    found["known"] = sorted(name for name, t in given.items() if symmetric.known(t, None) is host)
    found["groups"] = [symmetric.known(x, each) is host for each in (group, None, (group, group), 3)]
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
        assert found["known"] == ["plain"] and found["groups"] == [True, True, False, False]
        assert found["failed: _allocated"] == found["failed: _mapped"] == "OSError: no room"
        assert found["failed: _facts"] == "rank 1: ValueError: odd"
        known = {(n, choice) for n in (2, 4, 8) for choice in CHOICES if found[f"known {n} {choice}"]}
        assert known == {(n, "symmetric") for n in (2, 4, 8)} | {(2, None), (4, None)}
        assert found["one lacks"] == "rank 0: no compiler"
        for word in ("ordered_all_reduce", "RLK_TRANSPORT='symmetric'", "x is on cpu", "backend"):
            assert word in found["symmetric"]


def test_the_environment_chooses() -> None:
    assert Env.read({}).transport is None
    assert Env.read({"RLK_TRANSPORT": "Backend"}).transport == "backend"
    with pytest.raises(LaunchError, match="one of symmetric, backend"):
        Env.read({"RLK_TRANSPORT": "nccl"})
