"""Blocks that stay and draw tiles: the oracle's bits however few there are, and what breaks them is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import Inputs, batch, extents, of, oracle, packed, paged
from edited_text import edit_text, substituted
from test_cute_attention import DIVISIBLE, LENGTHS, assert_same

pytest.importorskip("triton")  # the harness knows both lowerings

from rlk.errors import UnsupportedError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Launch, MathModel, Turn
from rlk.lower import cute
from rlk.lower.common.emitted import CallArg, From, Signature
from rlk.lower.cute.attention import producer
from rlk.lower.cute.protocol import (
    Acquire,
    Hazard,
    Op,
    Pass,
    Release,
    Repeat,
    Reread,
    Role,
    Wait,
    check,
)
from rlk.lower.cute.protocols import scheduler_protocol
from rlk.passes.pipeline import launched
from rlk.runtime.binding import host_stub
from rlk.runtime.binding.host_stub import compose
from rlk.runtime.launch.record import read_call, write_call
from rlk.schedule.schedule import Schedule
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import differing
from rlk.testing.simulators import tile_scheduler
from rlk.testing.simulators.simt import Fault

INPUTS = packed(batch((9, 0, 5, 100), (70, 0, 530, 100), heads=2, group=4, e=64, w=64))
FORMS = {
    "few rows": INPUTS,
    "heads of 128": packed(batch(*LENGTHS, heads=2, group=4, e=128, w=128)),
    "more keys than a tile has rows": packed(batch((300, 3), (700, 1100), group=2, e=64, w=64)),
    "window": packed(batch((300, 3), (700, 1100), group=2, e=64, w=64)) | {"window": 100},
}


def schedule(programs: int = 0, rows: int = 192) -> Schedule:
    return Schedule(tiles=(("Q*G", rows),), warps=8, stages=2, programs=programs)


def ran(inputs: Inputs, programs: int = 2, rows: int = 192) -> generated.Ran:
    return generated.run_generated(
        of(inputs), inputs, extents=extents(inputs), schedules=(schedule(programs, rows),),
        divisible=DIVISIBLE, backend="cute",
    )  # fmt: skip


def published(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the words of work tiles, which grow as blocks publish them."""
    seen: list[list[int]] = []
    send = tile_scheduler.WorkTilePipeline.producer_commit

    def noted(work_tile: tile_scheduler.WorkTilePipeline, state: Any) -> None:
        send(work_tile, state)
        seen.append(work_tile.sent[-1])

    monkeypatch.setattr(tile_scheduler.WorkTilePipeline, "producer_commit", noted)
    return seen


# --- the same bits ---


@pytest.mark.parametrize("programs", [0, 1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_fewer_blocks_than_tiles_do_them_all(form: str, programs: int) -> None:
    found = ran(FORMS[form], programs)
    assert f", {programs or 132})\n" in found.emitted.source and "while item < items:" in found.emitted.source
    assert_same(found, oracle(FORMS[form]))


@pytest.mark.parametrize("kept", [0, producer.KEPT_IN_L2])
def test_heads_one_by_one_and_together_have_the_same_bits(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of both heads come before the next rows if L2 keeps the keys of all."""
    monkeypatch.setattr(producer, "KEPT_IN_L2", kept)
    taken = published(monkeypatch)
    assert_same(ran(INPUTS, 1), oracle(INPUTS))
    sequences = [b for _, b, *_ in taken[:-1]]
    assert sequences == sorted(sequences, reverse=True) if kept else sequences[:6] == sequences[6:]


def test_blocks_of_two_warpgroups_stay_where_heads_are_wide() -> None:
    """Sums of 256 elements leave room for nothing else on a multiprocessor."""
    inputs = packed(batch((100, 3), (70, 600), group=2, e=256, w=256))
    found = ran(inputs, rows=128)
    assert "while item < items:" in found.emitted.source and "block=(384, 1, 1)" in found.emitted.source
    assert_same(found, oracle(inputs))


def test_blocks_of_other_kernels_have_a_tile_each() -> None:
    small = paged(batch((9, 3), (70, 5), group=4, e=64, w=64))
    for inputs, rows in ((INPUTS, 128), (small, 192)):
        found = ran(inputs, rows=rows).emitted
        assert "item" not in found.source and not any(a.kind is From.WORK_COUNTER for a in found.call)
    assert any(a.kind is From.WORK_COUNTER for a in ran(INPUTS).emitted.call)


def test_the_first_lines_say_how_blocks_are_made_up() -> None:
    first, other = ran(INPUTS).emitted.source, ran(INPUTS, rows=128).emitted.source
    stays = "schedule: tiles Q*G=192, 12 consumer warps, 4 producer warps, 2 stages, 2 persistent blocks\n"
    assert stays in first and "schedule: tiles Q*G=128, 8 consumer warps, 4 producer warps, " in other
    assert "persistent blocks" not in other


# --- controls ---

ALONE = r"    if thread == 0:\n        ring.producer_acquire\(state\)\n"
REFUSED = {
    "all threads wait for the work tile": (
        ALONE, "    ring.producer_acquire(state)\n    if thread == 0:\n", "128 threads do what the one does"
    ),
    "a work tile that overwrites the last": (ALONE, "    if thread == 0:\n", "before there is room"),
    "a work tile that is read too early": (
        r"(    ring.consumer_wait\(state\)\n)(.*work_tile\[i\] for .*\n)", r"\2\1", "not waited for"
    ),
    "a work tile that every thread releases": (
        r"with cute.arch.elect_one\(\):\n( +ring.consumer_release)", r"if True:\n\1", "by every thread"
    ),
    "rows that nobody frees": (r"q_ring.consumer_release\(tile_consumer_state\)", "pass", "were not read"),
    "rows that are freed before their last scores": (
        r"( +)(q_ring.consumer_wait\(tile_consumer_state\)).*\n",
        r"\1\2\n\1with cute.arch.elect_one():\n\1    q_ring.consumer_release(tile_consumer_state)\n",
        "was freed",
    ),
    "a tile that is read before it is drawn": (
        r" +cute.arch.barrier\(barrier_id=4.*\n( +item = next_tile)", r"\1", "was waited for"
    ),
    "a tile that is drawn while some read the last": (
        r"(item = next_tile\[0\]\n) +cute.arch.barrier\(barrier_id=4.*\n", r"\1", "others may write or read"
    ),
    "a barrier of another warpgroup": ("barrier_id=4", "barrier_id=1", "not the one of a warpgroup"),
    "memory that other kernels still write": (r" +cute.arch.griddepcontrol_.*\n", "", "before the kernels"),
    "every thread draws": (
        r"if thread == 0:\n( +drawn)", r"if True:\n\1", "128 threads draw"
    ),
    "a tile whose end nobody says": (r", \*last_of\)\)", "))", "sent that nothing wrote"),
    "stages that nobody lets pass": (r"last_steps, all_steps, unroll", "0, 0, unroll", "were not read"),
    "sums before somebody wrote them": ("if rescales > 0:", "if rescales >= 0:", "read that nothing wrote"),
    "keys of a step that no tile has": (r"if s_step \+ 2 < last_steps:", "if True:", "that nothing fills"),
    "keys that are not waited for": (r"k_ring.consumer_wait\(k_next_state\)", "pass", "not read"),
    "values that are not waited for": (
        r"v_ring.consumer_wait\(k_consumer_state\)", "pass", "stage is cleared"
    ),
    "the same tile again": (r"work_counter, Int32\(1\)", "work_counter, Int32(0)", "is taken twice"),
    "tiles that nobody draws": (r"\+ blocks$", "+ blocks + 1", "tiles of .* are taken"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_device_would_not_do_is_refused(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, new, why = REFUSED[mistake]
    edit_text(monkeypatch, cute, substituted(f"(?m){pattern}", new))
    with pytest.raises(Fault, match=why):
        ran(INPUTS)


OTHER = {
    "sums of earlier pieces forgotten": (r"rescales = rescales \+ 1", "pass"),
    "steps of the first rows for all": (r"work_tile\[i \+ group - 1\]", "work_tile[i]"),
    "all steps as if every element existed": (r"(full_of = .*\]), imin\)", r"\1, imax)"),
}


@pytest.mark.parametrize("mistake", OTHER)
def test_what_changes_the_bits_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = FORMS["more keys than a tile has rows"]
    edit_text(monkeypatch, cute, substituted(*OTHER[mistake]))
    found, want = ran(inputs), oracle(inputs)
    assert any(differing(found.tensors[name], want[name]) for name in ("o", "lse"))


def test_each_warpgroup_has_as_many_steps_as_its_rows_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 queries of two heads each 24 rows are in the last tile: two of its warpgroups have none."""
    inputs, seen = packed(batch((300,), (700,), group=2, e=64, w=64)), published(monkeypatch)
    assert_same(ran(inputs, 1), oracle(inputs))
    assert seen.pop() == [4, *[0] * 9]
    for item, message in enumerate(seen):
        rows = [192 * (3 - item) + 64 * g for g in range(3)]
        keys = [(401 + first // 2, min(700, 401 + (first + 63) // 2)) for first in rows]
        ends = [-(-most // 64) if first < 600 else 1 for first, (_, most) in zip(rows, keys, strict=True)]
        full = [max(0, min(least // 64, end - 1)) for (least, _), end in zip(keys, ends, strict=True)]
        assert message == [item, 0, 0, max(ends), *full, *ends]


def test_a_counter_that_does_not_begin_at_zero_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = generated._value

    def later(argument: CallArg, *rest: Any) -> Any:
        return np.ones(1, np.int32) if argument.kind is From.WORK_COUNTER else real(argument, *rest)

    monkeypatch.setattr(generated, "_value", later)
    with pytest.raises(Fault, match="tiles of .* are taken"):
        ran(INPUTS)


def test_a_loop_on_the_host_has_no_counter_to_give() -> None:
    sizes = {"H": 2, "G": 4, "E": 64, "W": 64}
    program = launched(of(INPUTS), sizes, MathModel.SM90, sizes)
    signature = Signature(tuple(sizes.items()), divisible=DIVISIBLE)
    assert cute.lower(program, [schedule()], target("sm_90a"), signature)
    turns = (Turn(Axis("H", split=2)),)
    looped = replace(program, launches=(Launch(program.kernels[0].name, turns),))
    with pytest.raises(UnsupportedError, match="a counter of a kernel that a loop launches"):
        cute.lower(looped, [schedule()], target("sm_90a"), signature)


# --- the protocol ---

SOUND = scheduler_protocol(2, 3, (2, 1, 3), (1, 0, 2))
Body = tuple[Op, ...]


def impatient(body: Body) -> Body:
    return tuple(x for op in body for x in ((Acquire("work_tile"), op) if op == Pass("work_tile") else (op,)))


def kept(body: Body) -> Body:
    return tuple(op for op in body if op != Release("rows", 4))


def passes(op: Op) -> bool:
    """Return whether these are steps of other consumers' rows alone."""
    return isinstance(op, Repeat) and Reread("rows") not in op.body


def absent(body: Body) -> Body:
    """Do not wait for stages that pass."""
    waits = {Wait("columns"), Wait("values")}
    return tuple(
        replace(op, body=tuple(x for x in op.body if x not in waits)) if passes(op) else op for op in body
    )


def deaf(body: Body) -> Body:
    """Let no stage pass."""
    return tuple(op for op in body if not passes(op))


def hasty(body: Body) -> Body:
    free = Release("rows", 4)
    return tuple(
        x
        for op in kept(body)
        for x in ((free, op) if isinstance(op, Repeat) and last_products(op) else (op,))
    )


def last_products(op: Repeat) -> bool:
    """Return whether this is the step that issues the last scores: it waits for no more columns."""
    return Reread("rows") in op.body and Wait("columns") not in op.body


def greedy(body: Body) -> Body:
    """Wait for columns in every step, as if one followed."""
    return tuple(
        replace(op, body=(*op.body[:3], Wait("columns"), *op.body[3:]))
        if isinstance(op, Repeat) and last_products(op)
        else op
        for op in body
    )


@pytest.mark.parametrize(
    ("edit", "roles", "hazard"),
    [
        (impatient, [1], Hazard.DEADLOCK),
        (kept, [2, 3, 4], Hazard.DEADLOCK),
        (deaf, [4], Hazard.DEADLOCK),
        (absent, [4], Hazard.UNREADY),
        (hasty, [2, 3, 4], Hazard.OVERWRITE),
        (hasty, [3], Hazard.OVERWRITE),
        (greedy, [3], Hazard.DEADLOCK),
    ],
)
def test_the_checker_finds_who_waits_too_much_and_who_frees_too_early(
    edit: Callable[[Body], Body], roles: list[int], hazard: Hazard
) -> None:
    assert check(SOUND).fault is None
    made = [Role(role.name, edit(role.body)) if i in roles else role for i, role in enumerate(SOUND.roles)]
    found = check(replace(SOUND, roles=tuple(made))).fault
    assert found is not None and found.hazard is hazard


# --- the counter ---


def test_a_counter_begins_at_zero() -> None:
    seen: list[torch.Tensor] = []

    def host(*given: torch.Tensor) -> None:
        assert all(g.dtype is torch.int32 and not g.any() for g in given)
        seen.extend(given)

    compose([], [], [From.WORK_COUNTER, From.WORK_COUNTER], {}, host, torch.device("cpu"), ({}, 0))({}, {})
    assert len(seen) == 2


HERE = torch.device("cuda", 1)


class Streams:
    """A machine of two devices, of which nothing is there but what the current streams are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.stream, self.captures = 0, {0: 0, 1: 0}, {0: False, 1: False}
        self.zeros = torch.zeros
        current = {"Device": lambda: self.device, "CurrentRawStream": self.stream.__getitem__}
        for name, function in current.items():
            monkeypatch.setattr(torch._C, f"_cuda_get{name}", function, raising=False)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captures[self.device])
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(device=device))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "device", self.on)
        monkeypatch.setattr(torch, "zeros", lambda *shape, device, **given: self.zeros(*shape, **given))
        monkeypatch.setattr(host_stub, "_COUNTERS", {})

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device.index
        yield
        self.device = before

    def words(self, count: int) -> list[int]:
        """Return the addresses of counters, all alive."""
        self.alive = [host_stub.work_counter(HERE) for _ in range(count)]
        assert all(word.tolist() == [0] for word in self.alive)
        return [word.data_ptr() for word in self.alive]


def test_a_stream_has_counters_by_turns_and_shares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    first = streams.words(2 * host_stub.COUNTERS)
    assert len({*first}) == host_stub.COUNTERS and first[0] == first[host_stub.COUNTERS]
    streams.stream[1] = 7
    assert not {*streams.words(host_stub.COUNTERS)} & {*first} and len(host_stub._COUNTERS) == 2
    streams.stream[0] = 9  # of a device that runs nothing of this
    streams.words(1)
    assert len(host_stub._COUNTERS) == 2


@pytest.mark.parametrize("current", [0, 1])
def test_a_graph_has_counters_of_its_own(current: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever device is the current one when its stream is recorded."""
    streams = Streams(monkeypatch)
    streams.device, streams.captures[1] = current, True
    assert len({*streams.words(3)}) == 3 and not host_stub._COUNTERS
    streams.captures = {0: True, 1: False}
    streams.words(1)
    assert len(host_stub._COUNTERS) == 1


@pytest.mark.parametrize("programs", [0, 1, 2, 12])
def test_a_kernel_leaves_its_counter_at_zero(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tiles of both heads; 6 of each are an upper bound."""
    counters: list[Any] = []
    real = generated._value

    def kept(argument: CallArg, *rest: Any) -> Any:
        made = real(argument, *rest)
        counters.extend([made] if argument.kind is From.WORK_COUNTER else [])
        return made

    monkeypatch.setattr(generated, "_value", kept)
    ran(INPUTS, programs)
    edit_text(monkeypatch, cute, substituted(r"if drawn \+ 1 == items", "if drawn == items"))
    ran(INPUTS, programs)
    assert [int(x[0]) for x in counters] == [0, 2 * 6]


def test_a_record_says_that_a_kernel_has_a_work_counter() -> None:
    call = ran(INPUTS).emitted.call
    assert read_call(write_call(call)) == call
    assert write_call(call)[-1]["kind"] == "work_counter"
