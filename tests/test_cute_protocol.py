"""The protocol of rings: sound ones pass, every seeded fault is found, and no interleaving is left out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

import rlk.lower.cute.protocol as protocol_module
from rlk.errors import Code, InternalError, ScheduleError
from rlk.lower.cute.protocol import (
    Acquire,
    Drain,
    Fill,
    Hazard,
    Machine,
    Op,
    Protocol,
    Read,
    Release,
    Repeat,
    Ring,
    Role,
    Skip,
    Tail,
    Wait,
    check,
    claim_registers,
    registers_fit,
    verify,
)
from rlk.lower.cute.protocols import gemm_protocol

Edit = Callable[[Op], tuple[Op, ...]]


def edited(protocol: Protocol, edit: Edit) -> Protocol:
    """Return a protocol with other operations in the place of each."""

    def body(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            new
            for op in ops
            for new in ((replace(op, body=body(op.body)),) if isinstance(op, Repeat) else edit(op))
        )

    return replace(protocol, roles=tuple(replace(role, body=body(role.body)) for role in protocol.roles))


def without(protocol: Protocol, *kinds: type) -> Protocol:
    return edited(protocol, lambda op: () if isinstance(op, kinds) else (op,))


def with_ring(protocol: Protocol, **fields: int) -> Protocol:
    return replace(protocol, rings=(replace(protocol.rings[0], **fields), *protocol.rings[1:]))


def found(protocol: Protocol) -> Hazard | None:
    fault = check(protocol).fault
    return None if fault is None else fault.hazard


def every_order(protocol: Protocol, most: int = 10**6) -> tuple[int, set[Hazard]] | None:
    """Return the states and hazards of all interleavings, none left out; None: more than `most` states."""
    machine = Machine(protocol)
    seen, todo, hazards = set(), [machine.start], set[Hazard]()
    while todo:
        state = todo.pop()
        key = frozenset(state.at.items()), frozenset(state.cells.items())
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > most:
            return None
        ready = machine.ready(state)
        if state.at and not ready:
            hazards.add(machine.stuck(state)[0])
        for process in ready:
            after, hazard = machine.step(state, process)
            if hazard is None:
                todo.append(after)
            else:
                hazards.add(hazard)
    return len(seen), hazards


# --- sound protocols ---


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 3, 4, 5, 6])
def test_contractions_are_sound(stages: int, consumers: int, cluster: int) -> None:
    verify(gemm_protocol(stages, consumers, cluster))


@pytest.mark.parametrize("steps_per_tile", [1, 2, 3, 5, 7, 20])
def test_tiles_of_any_length_are_sound(steps_per_tile: int) -> None:
    for stages in (2, 3, 4):
        verify(gemm_protocol(stages, 2, 2, None, steps_per_tile))
        verify(gemm_protocol(stages, 2, 2, 11, steps_per_tile))


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_consumer_without_rows_may_pass_tiles(cluster: int) -> None:
    for stages in (2, 3, 4):
        verify(gemm_protocol(stages, 2, cluster, idle=True))
        assert found(with_ring(gemm_protocol(stages, 2, cluster, idle=True), releases=99)) is not None


@pytest.mark.parametrize("cluster", [1, 2])
def test_more_steps_find_nothing_more(cluster: int) -> None:
    for stages in (2, 3):
        verify(gemm_protocol(stages, 2, cluster, 40, 5))
        for fault in (lambda p: without(p, Wait), lambda p: with_ring(p, releases=99), no_drain):
            short, long = (found(fault(gemm_protocol(stages, 2, cluster, n))) for n in (2 * stages + 2, 40))
            assert short is long is not None


def test_a_cluster_of_two_is_checked_within_two_seconds() -> None:
    started = time.process_time()
    verify(gemm_protocol(4, 2, 2, 10))
    assert time.process_time() - started < 2


# --- seeded faults ---


def no_drain(protocol: Protocol) -> Protocol:
    return edited(protocol, lambda op: () if op == Drain(1) else (op,))


def test_a_consumer_that_never_releases_is_a_deadlock() -> None:
    for cluster in (1, 2):
        report = check(without(gemm_protocol(3, 2, cluster), Release))
        assert report.fault is not None and report.fault.hazard is Hazard.DEADLOCK
        last = [line for line in report.fault.trace if "for ever" in line]
        assert "cta 0 producer waits for ring[0].empty of cta 0, use 3 for ever: phase 0 has 0 of" in last[0]


def test_an_empty_barrier_that_counts_one_too_many_is_a_deadlock() -> None:
    for cluster in (1, 2):
        sound = gemm_protocol(3, 2, cluster)
        assert found(with_ring(sound, releases=sound.rings[0].releases + 1)) is Hazard.DEADLOCK


@pytest.mark.parametrize("arrivals", [1, 4])
def test_an_empty_barrier_that_counts_one_too_few_is_found(arrivals: int) -> None:
    for cluster in (1, 2):
        sound = gemm_protocol(3, 2, cluster, arrivals=arrivals)
        assert found(with_ring(sound, releases=sound.rings[0].releases - 1)) is Hazard.ARRIVALS


def test_an_empty_barrier_of_two_ctas_that_counts_the_consumers_of_one_is_found() -> None:
    sound = gemm_protocol(4, 2, 2)
    assert found(sound) is None
    assert found(with_ring(sound, releases=2 * 4)) is Hazard.ARRIVALS


def test_a_release_while_the_group_is_in_flight_is_an_overwrite() -> None:
    for cluster in (1, 2):
        sound = gemm_protocol(3, 2, cluster)
        step = (Wait("ring"), Read("ring"), Drain(1), Release("ring", 4))  # of the step itself: no lag
        early = Role("consumer", (Repeat(8, step), Drain()))
        assert found(no_drain(sound)) is Hazard.OVERWRITE
        assert found(replace(sound, roles=(sound.roles[0], early, early))) is Hazard.OVERWRITE
        drained = edited(sound, lambda op: (Drain(),) if op == Drain(1) else (op,))
        assert found(drained) is None


def test_a_missing_wait_is_a_read_before_full() -> None:
    for cluster in (1, 2):
        assert found(without(gemm_protocol(3, 2, cluster), Wait)) is Hazard.UNREADY


def test_a_missing_acquire_is_found() -> None:
    for cluster in (1, 2):
        assert found(without(gemm_protocol(2, 1, cluster), Acquire)) is not None


@pytest.mark.parametrize("wrong", [-16384, -1, 1, 32768])
def test_a_wrong_byte_count_is_found(wrong: int) -> None:
    for cluster in (1, 2):
        sound = gemm_protocol(3, 2, cluster)
        assert found(with_ring(sound, bytes=sound.rings[0].bytes + wrong)) in (
            Hazard.BYTES,
            Hazard.UNREADY,  # the others can land first
        )


def test_a_peer_that_loads_nothing_is_a_byte_count_never_reached() -> None:
    alone = edited(
        gemm_protocol(3, 2, 2), lambda op: (replace(op, shared=()),) if isinstance(op, Fill) else (op,)
    )
    report = check(alone)
    assert report.fault is not None and report.fault.hazard is Hazard.BYTES
    assert any("1 of 1 arrivals, 16384 of 49152 bytes" in line for line in report.fault.trace)


def test_only_a_cluster_needs_a_tail() -> None:
    report = check(without(gemm_protocol(4, 2, 2), Tail))
    assert report.fault is not None and report.fault.hazard is Hazard.EXIT
    assert any(line == "the last role leaves the memory of cta 0" for line in report.fault.trace)
    assert report.fault.trace[-1].startswith("a release by cta 1 consumer")
    assert found(without(gemm_protocol(4, 2, 1), Tail)) is None


def test_one_stage_cannot_keep_a_group_in_flight() -> None:
    for cluster in (1, 2):
        assert found(gemm_protocol(1, 2, cluster)) is Hazard.DEADLOCK
        assert found(gemm_protocol(1, 2, cluster, steps_per_tile=1)) is None


def ping_pong(stages: int, steps_per_tile: int, cluster: int, tiles: int, ordered: bool) -> Protocol:
    """Return two consumers that take turns on tiles; ordered: each waits for the other's last wait."""
    consumers: list[Role] = []
    for i in range(2):
        body: list[Op] = []
        for tile in range(tiles):
            if tile % 2 != i:
                body.append(Skip("ring", steps_per_tile))
                continue
            if ordered and tile:
                body += [Wait(f"turn {i}"), Skip(f"turn {i}")]
            body.append(Repeat(steps_per_tile, (Wait("ring"), Read("ring"), Drain(), Release("ring"))))
            if ordered:
                body.append(Fill(f"turn {1 - i}"))
        consumers.append(Role(f"consumer {i}", tuple(body)))
    producer = gemm_protocol(stages, 1, cluster, tiles * steps_per_tile).roles[0]
    rings = (Ring("ring", stages, 49152, cluster), Ring("turn 0", 1, 0, 1), Ring("turn 1", 1, 0, 1))
    return Protocol(cluster, rings, (producer, *consumers))


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_waiter_several_uses_ahead_passes_by_parity(cluster: int) -> None:
    for stages, steps_per_tile in ((2, 2), (4, 4), (4, 6), (2, 6), (2, 4), (3, 6)):
        assert found(ping_pong(stages, steps_per_tile, cluster, 4, ordered=False)) is Hazard.PARITY
        assert found(ping_pong(stages, steps_per_tile, cluster, 4, ordered=True)) is None


def test_a_waiter_two_phases_behind_is_found() -> None:
    """Nobody acquires: the barrier goes on without it, and it passes for another use or waits for ever."""
    ring = Ring("ring", 1, 1, 1)
    fills = Role("producer", (Repeat(3, (Fill("ring", (1,)),)),))
    slow = Protocol(1, (ring,), (Role("consumer", (Wait("ring"),)), fills))
    states, hazards = every_order(slow) or (0, set())
    assert Hazard.PARITY in hazards and found(slow) in hazards


def test_an_error_tells_the_trace() -> None:
    with pytest.raises(InternalError) as refused:
        verify(without(gemm_protocol(2, 1, 1), Wait))
    assert refused.value.code is Code.INTERNAL
    text = str(refused.value)
    assert "read before full" in text and "cta 0 consumer 0 reads ring[0].slot of cta 0, use 0" in text


# --- nothing is left out ---


def test_a_tiny_protocol_has_the_states_that_one_counts_by_hand() -> None:
    """Start, filled, one or the other load, both, waited, read, drained, exited: nine, eight on one path."""
    fills = Role("producer", (Fill("ring", (1, 2)),))
    reads = Role("consumer", (Wait("ring"), Read("ring"), Drain()))
    tiny = Protocol(1, (Ring("ring", 1, 3, 1),), (fills, reads))
    assert every_order(tiny) == (9, set())
    assert check(tiny) == (8, None)


def test_two_orders_are_one_where_the_order_does_not_matter() -> None:
    rings = (Ring("a", 1, 0, 1), Ring("b", 1, 0, 1))
    apart = Protocol(1, rings, (Role("x", (Fill("a"),)), Role("y", (Fill("b"),))))
    assert every_order(apart) == (5, set())  # start, x, y, both, exited
    assert check(apart) == (4, None)


def test_both_orders_of_two_events_are_seen_where_their_order_matters() -> None:
    """y waits for the first phase before or after x arms the second, or never comes to see it end.

    Start, filled, landed; x waits, arms; y waits at any of these; exited: 1 + 1 + 3 * 2 + 1 states. On two
    paths: seven states, and three more after the one in which y waits first.
    """
    x = Role("x", (Fill("a", (1,)), Wait("a"), Fill("a")))
    both = Protocol(1, (Ring("a", 1, 1, 1),), (x, Role("y", (Wait("a"),))))
    assert every_order(both) == (9, set())
    assert check(both) == (10, None)
    third = replace(x, body=(*x.body, Fill("a")))  # the second arrival in a phase
    assert found(replace(both, roles=(third, both.roles[1]))) is Hazard.ARRIVALS


def scrambled(seed: int) -> Protocol:
    """Return a small contraction with a few operations lost, doubled or moved, or counts that are off."""
    chance = random.Random(seed)
    cluster, stages, consumers = chance.choice([(1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 2, 1)])
    steps, tile = chance.randint(1, 5 - cluster), chance.randint(1, 2)
    protocol = gemm_protocol(stages, consumers, cluster, steps, tile, own=1, shared=cluster, arrivals=1)
    if chance.random() < 0.25:
        protocol = with_ring(protocol, releases=max(1, protocol.rings[0].releases + chance.choice((-1, 1))))
    if chance.random() < 0.1:
        protocol = with_ring(protocol, bytes=protocol.rings[0].bytes + chance.choice((-1, 1)))
    protocol = replace(protocol, roles=tuple(chance.sample(protocol.roles, len(protocol.roles))))
    if chance.random() < 0.5:
        return without(protocol, chance.choice((Wait, Drain, Acquire, Tail)))
    rate = chance.choice((0.0, 0.1, 0.2))

    def edit(op: Op) -> tuple[Op, ...]:
        if chance.random() >= rate:
            return (op,)
        return chance.choice(((), (op, op), (Drain(), op), (op, Skip("ring")), (op, Wait("ring"))))

    return edited(protocol, edit)


def disagreements(seeds: range) -> tuple[list[int], int, int]:
    """Return the seeds for which `check` is wrong, and how many protocols are sound and unsound."""
    wrong, sound, unsound = [], 0, 0
    for seed in seeds:
        protocol = scrambled(seed)
        every = every_order(protocol, 1000)
        if every is not None:
            hazard, hazards = found(protocol), every[1]
            if hazard not in (hazards or {None}):
                wrong.append(seed)
            sound += not hazards
            unsound += bool(hazards)
    return wrong, sound, unsound


@pytest.mark.parametrize("first", ["roles", "flights"])
def test_reduced_exploration_agrees_with_every_order(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes first on the first path: with flights first it is the most harmless one.

    Negative control: without going back, that path misses faults.
    """
    if first == "flights":
        ready = Machine.ready
        monkeypatch.setattr(Machine, "ready", lambda self, state: ready(self, state)[::-1])
    wrong, sound, unsound = disagreements(range(200))
    assert not wrong and sound > 20 and unsound > 80
    if first == "flights":
        monkeypatch.setattr(protocol_module, "_go_back", lambda *_: None)
        assert len(disagreements(range(200))[0]) > 4


# --- registers ---


def test_a_pool_holds_what_the_launch_held() -> None:
    """Measured: the first three run, the last waits for ever."""
    for warpgroups in ((40, 232, 232), (24, 240, 240), (56, 224, 224)):
        assert registers_fit(384, warpgroups)
        claim_registers(384, warpgroups)
    assert not registers_fit(384, (40, 240, 240))
    with pytest.raises(ScheduleError, match="for ever") as refused:
        claim_registers(384, (40, 240, 240))
    assert refused.value.code is Code.SCHEDULE_FIELD


@pytest.mark.parametrize("warpgroups", [(40, 232), (16, 240, 240), (40, 230, 230), (24, 24, 264)])
def test_counts_that_setmaxnreg_does_not_take_are_refused(warpgroups: tuple[int, ...]) -> None:
    with pytest.raises(ScheduleError):
        claim_registers(384, warpgroups)
