"""Pipeline protocols of warp-specialized Hopper kernels: order of acquire, commit, wait and release."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from rlk.lower.cute.protocol import (
    Acquire,
    Drain,
    Fill,
    Op,
    Pass,
    Protocol,
    Read,
    Release,
    Repeat,
    Reread,
    Ring,
    Role,
    Tail,
    Wait,
)


def gemm_protocol(
    stages: int,
    consumers: int,
    cluster: int,
    steps: int | None = None,
    steps_per_tile: int = 4,
    *,
    own: int = 16384,
    shared: int = 32768,
    arrivals: int = 4,
    idle: bool = False,
    computed: bool = False,
    by_warps: bool = False,
) -> Protocol:
    """Return the protocol of a GEMM: one pipeline, a producer, consumers with wgmma groups in flight.

    idle: the last consumer has no rows in every other tile: it releases the stages unread. computed: A is
    computed in registers from the stage's tile, and written when the group before has read them. by_warps:
    nothing is in flight, a stage is read when it is released.

    own, shared: bytes of A, and of B, of which a CTA loads 1 / cluster for all. arrivals: of one consumer.
    A few more than 2 * stages steps stand for any number: a slot has seen both parities after two rounds,
    and a step waits for events at most one round before it. The default ends with a whole tile.
    """
    tiles = max(2, -(-(2 * stages + 2) // steps_per_tile))
    count = tiles * steps_per_tile if steps is None else steps
    first: tuple[Op, ...] = (Wait("ring"), Read("ring"))
    free = Release("ring", arrivals)
    body: list[Op] = []
    part_time: list[Op] = []
    for begin in range(0, count, steps_per_tile):
        more = min(steps_per_tile, count - begin) - 1
        step: tuple[Op, ...] = (*first, Drain(1), free)
        if computed:
            step = (Wait("ring"), Drain(), free, Read("ring"))
        tile = [*first, Repeat(more, step), Drain(), free]
        body += [Repeat(more + 1, (*first, Drain(), free))] if by_warps else tile
        rests = begin // steps_per_tile % 2 == 0
        part_time += [Repeat(more + 1, (*first, Drain(), free))] if rests else tile
    fill = Fill("ring", (own,), (shared // cluster,))
    producer = Role("producer", (Repeat(count, (Acquire("ring"), fill)), Tail("ring")))
    last = part_time if idle else body
    readers = (Role(f"consumer {i}", tuple(body if i + 1 < consumers else last)) for i in range(consumers))
    ring = Ring("ring", stages, own + shared // cluster * cluster, cluster * consumers * arrivals)
    return Protocol(cluster, (ring,), (producer, *readers))


def attention_protocol(stages: int, consumers: int, steps: int, *, arrivals: int = 4) -> Protocol:
    """Return the protocol of fused attention: resident rows, and a pipeline for each streamed factor.

    A consumer issues S of a step before O += P V of the one before is done. The parts of a stage (of producer
    threads, or TMA loads) arrive in any order: two stand for them.
    """
    names, parts = ("rows", "columns", "values"), (1, 1)

    def fill(ring: str) -> tuple[Op, ...]:
        return (Acquire(ring), Fill(ring, parts))

    copying = (*fill("rows"), Repeat(steps, (*fill("columns"), *fill("values"))))
    scores: tuple[Op, ...] = (Wait("columns"), Read("columns"))
    sums: tuple[Op, ...] = (Wait("values"), Read("values"), Drain())
    freed = (Release("columns", arrivals), Release("values", arrivals))
    multiplying = (
        Wait("rows"), Read("rows"), *scores, Drain(), Release("columns", arrivals),
        Repeat(steps - 1, (*scores, *sums, *freed)),
        *sums, Release("values", arrivals),
    )  # fmt: skip
    rings = tuple(Ring(n, 1 if n == "rows" else stages, 2, consumers * arrivals) for n in names)
    readers = (Role(f"consumer {i}", multiplying) for i in range(consumers))
    return Protocol(1, rings, (Role("producer", copying), *readers))


def scheduler_protocol(
    stages: int,
    consumers: int,
    steps: tuple[int, ...],
    fewer: tuple[int, ...] = (),
    *,
    early: bool = True,
    arrivals: int = 4,
) -> Protocol:
    """Return the protocol of a persistent block, each tile with steps as in `attention_protocol`.

    The first producer thread draws a tile, publishes it by a pipeline of one stage, and issues TMA loads;
    another stands for all others, which copy rows with it and never wait for that pipeline. fewer: how many
    of a tile's last steps each consumer skips: it waits for their stages, and releases them unread. early:
    whether a consumer waits for the factors that it reads next while products run.
    """

    def read(ring: str, arrivals: int) -> tuple[Op, ...]:
        return (Wait(ring), Read(ring), Drain(), Release(ring, arrivals))

    def fill(*names: str) -> tuple[Op, ...]:
        return tuple(op for name in names for op in (Acquire(name), Fill(name, (1,))))

    first: list[Op] = []
    other: list[Op] = []
    multiplying: list[list[Op]] = [[] for _ in range(consumers)]
    freed = (Release("columns", arrivals), Release("values", arrivals))
    columns: tuple[Op, ...] = (Wait("columns"),)
    values: tuple[Op, ...] = (Wait("values"),)
    sums = (*values[early:], Read("values"))
    products: tuple[Op, ...] = (*columns[early:], Read("columns"), Reread("rows"), *sums)
    soon = (columns if early else (), values if early else ())
    passed = (*columns, Read("columns"), Wait("values"), Read("values"), Drain(), *freed)
    for count in steps:
        first += (*fill("work_tile", "rows"), Repeat(count, fill("columns", "values")), *fill("next_tile"))
        other += (Pass("work_tile"), *fill("rows"), *read("next_tile", 1))
        for i, body in enumerate(multiplying):
            less = min(count - 1, fewer[i] if fewer else 0)
            body += (
                *read("work_tile", arrivals),
                Wait("rows"), Read("rows"), *columns, Read("columns"), Drain(), Release("columns", arrivals),
                *soon[0][: count - 1 - less], *soon[1],
                Repeat(count - 2 - less, (*products, *soon[0], *soon[1], Drain(), *freed)),
                Repeat(min(1, count - 1 - less), (*products, *soon[1], Drain(), *freed)),
                Release("rows", arrivals), *sums, Drain(), Release("values", arrivals),
                Repeat(less, passed),
            )  # fmt: skip
    all_read = consumers * arrivals
    rings = (
        Ring("work_tile", 1, 1, all_read), Ring("next_tile", 1, 1, 1), Ring("rows", 1, 2, all_read, fills=2),
        Ring("columns", stages, 1, all_read), Ring("values", stages, 1, all_read),
    )  # fmt: skip
    copying = (Role("first thread", (*first, *fill("work_tile"))), Role("other thread", tuple(other)))
    readers = (
        Role(f"consumer {i}", (*body, *read("work_tile", arrivals))) for i, body in enumerate(multiplying)
    )
    return Protocol(1, rings, (*copying, *readers))


def gradient_protocol(
    stages: int,
    consumers: int,
    steps: int,
    resident: tuple[int, ...],
    streamed: tuple[int, ...],
    *,
    early: int = 0,
    arrivals: int = 4,
) -> Protocol:
    """Return the protocol of attention gradients: resident rows, a pipeline for each streamed factor.

    resident, streamed: factors of each copy loop. All stages of a step are released when its products are
    done; those of the first factors, `early` of them, when its scores are.
    """

    def named(what: str, batches: tuple[int, ...]) -> list[list[str]]:
        return [[f"{what} {i}.{j}" for j in range(count)] for i, count in enumerate(batches)]

    def fill(batches: list[list[str]]) -> Iterator[Op]:
        for names in batches:
            yield from (Acquire(name) for name in names)
            yield from (Fill(name, (1, 1)) for name in names)

    def read(names: list[str]) -> Iterator[Op]:
        for name in names:
            yield from (Wait(name), Read(name))
        yield Drain()

    rows, factors = named("rows", resident), named("factor", streamed)
    own, others = list(chain.from_iterable(rows)), list(chain.from_iterable(factors))
    soon, late = others[:early], others[early:]
    again: tuple[Op, ...] = (*(Reread(name) for name in late), Drain()) if soon else ()
    first, last = (tuple(Release(name, arrivals) for name in names) for names in (soon, late))
    step: tuple[Op, ...] = (*read(others), *first, *again, *last)
    copying = (*fill(rows), Repeat(steps, tuple(fill(factors))))
    multiplying = (*read(own), Repeat(steps, step))
    rings = tuple(Ring(n, stages if n in others else 1, 2, consumers * arrivals) for n in (*own, *others))
    readers = (Role(f"consumer {i}", multiplying) for i in range(consumers))
    return Protocol(1, rings, (Role("producer", copying), *readers))
