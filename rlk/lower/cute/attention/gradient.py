"""Consumer mainloop where a loop carries accumulators alone, as in attention gradients.

A step reads nothing of the one before it but accumulators, so S is not issued ahead: the elementwise work
of one consumer warpgroup overlaps the products of the other.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import pairwise

from rlk.ir.nodes import Dot, Let, Load, Value
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name, stem
from rlk.lower.cute.attention.consumer import EACH_ROW, ConsumerEmitter
from rlk.lower.cute.attention.masks import clear, guards_of
from rlk.lower.cute.attention.plan import Step
from rlk.lower.cute.attention.producer import ROWS
from rlk.lower.cute.attention.step import MASKED, STATE, call, masks_of
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import refused
from rlk.passes.walk import backward_slice

ABOUT_STEP = "One tile of streamed rows: S and dP, the elementwise work, and products onto the sums."


def first_scores(e: ConsumerEmitter) -> tuple[Line, ...]:
    """Return the wait for the resident factors."""
    e.wait_for_resident()
    return lines(e.lines)


def loop_lines(e: ConsumerEmitter) -> tuple[Line, ...]:
    """Return all steps: masked, unmasked, and masked again."""
    name = e.names.fresh(f"{axis_name(e.plan.last.loop.axis)}_step")
    e.write_step(name, ABOUT_STEP, partial(_step, e))
    count = len(e.plan.parts)
    ends = ("first_steps", *("late_steps", "full_steps")[3 - count :], "last_steps")
    for part, (start, stop) in zip(e.plan.parts, pairwise(ends), strict=True):
        masked = bool(masks_of(part.loop).selects)
        with e.inner(f"for {name} in cutlass.range({start}, {stop}, unroll=1):"):
            e.line(call(e.step_function, name, masked=masked))
    return lines(e.lines)


def _step(e: ConsumerEmitter, part: Step, name: str) -> None:
    """Write a step."""
    with e.one_step(part.loop, name) as lets:
        _phases(e, part, [let for let in lets if let.value not in e.written])
        e.line("warpgroup.wait_group(0)")
        if e.plan.statistics_pipelined:
            with e.inner("with cute.arch.elect_one():"):
                e.line(f"{e.plan.statistics_ring}.consumer_release({STATE})")
        early = e.plan.released_early
        e.release(*("" if copies in early else STATE for copies in e.plan.streamed))


def _phases(e: ConsumerEmitter, part: Step, lets: list[Let]) -> None:
    """Issue all S products; after each, issue every accumulation whose register operand is complete."""
    waited: set[str] = set()
    cleared = False  # whether masked steps have waited for all tiles

    def arrived(let: Let) -> None:
        copies = e.factor(let, "b")
        if copies.param not in waited:
            with e.switch(f"not {MASKED}") if cleared else nullcontext():
                e.wait_for(copies, STATE)
            waited.add(copies.param)

    if e.plan.by_tma and (guards := guards_of(e.plan.streamed)):
        with e.where_masked():
            for let in (*part.scores, *part.sums):
                arrived(let)
            clear(e, guards, STATE)
        if e.masks is not None:
            waited, cleared = set(), True
    for i, let in enumerate(part.scores):
        arrived(let)
        e.score(part, i, STATE)
    left = [let for let in lets if let not in (*part.scores, *part.sums)]
    begun, last = 0, len(part.scores) - 1
    for i, score in enumerate(part.scores):
        e.line(f"warpgroup.wait_group({last - i + begun})")
        if (copies := e.factor(score, "b")) in e.plan.released_early:
            e.line(f"{copies.param}_ring.consumer_release({STATE})")
        e.text[score.value] = f"{e.score_names[i]}[r, c]"
        e.whole.add(score.value)
        e.written.add(score.value)
        now = _of_phase(e, part, left, i)
        if e.plan.statistics_pipelined and _of_columns(e, now) and e.plan.statistics_ring not in waited:
            e.line(f"{e.plan.statistics_ring}.consumer_wait({STATE})")
            waited.add(e.plan.statistics_ring)
        again = _repeated(e, score, now, [let for let in left if let not in now])
        left = [let for let in left if let not in now or let in again]
        missing = {let.value for let in left}
        ready = [k for k in range(begun, len(part.sums)) if probs_of(part.sums[k]) not in missing]
        _write_phase(e, part, now, left, ready)
        for k in ready:
            arrived(part.sums[k])
            e.sum(part, k, STATE)
        begun += len(ready)


def _write_phase(e: ConsumerEmitter, part: Step, now: list[Let], left: list[Let], sums: list[int]) -> None:
    """Write the elementwise values of finished scores; lists that later phases read stay live."""
    columns = _of_columns(e, now)
    for let in columns:
        e.note(let)
        _column(e, let)
        e.written.add(let.value)
    e.targets = {probs_of(part.sums[k]): f"{e.prob_names[k]}[r, c]" for k in sums}
    now = [let for let in now if let not in columns]
    ends = _waiting(e, now, left) - {let.value for let in left}
    if not all(map(e.listed, ends)):
        raise refused("a row value that is used after other scores", e.plan.target)
    empty = f"[{', '.join(['[]'] * ROWS)}]"
    waiting = [let for let in now if let.value in ends]
    e.crossing = {let.value: e.let(let.name or stem(let), empty) for let in waiting}
    with e.inner(EACH_ROW):
        e.ordered(now)
    e.targets, e.crossing = {}, {}


def _waiting(e: ConsumerEmitter, now: list[Let], left: list[Let]) -> set[Value]:
    """Return the values of this phase that later ones read."""
    return {v for let in left for v in e.operands(let)} & {let.value for let in now}


def _repeated(e: ConsumerEmitter, score: Let, now: list[Let], left: list[Let]) -> list[Let]:
    """Return the values to recompute in a later phase, so that one list stays live instead of several.

    Live lists take registers; where there are several, they are recomputed from a common ancestor.
    """
    ends, lets = _waiting(e, now, left), {let.value: let for let in now}
    if len(ends) < 2:
        return []
    for let in reversed(now):
        others = {value: x for value, x in lets.items() if value != let.value}
        made = backward_slice(ends, others, e.operands)
        if not any(score.value in e.operands(others[value]) for value in made):
            return [others[value] for value in others if value in made]
    return []


def _of_phase(e: ConsumerEmitter, part: Step, lets: list[Let], last: int) -> list[Let]:
    """Return the values that need no later scores, without column values that only later ones need."""
    later = {let.value for let in part.scores[last + 1 :]}
    known = [let for let in lets if not later & backward_slice([let.value], e.lets, e.operands)]
    columns = {let.value for let in _of_columns(e, known)}
    rows = [let.value for let in known if let.value not in columns]
    found = backward_slice(rows, {let.value: let for let in known}, e.operands)
    return [let for let in known if let.value in found]


def _of_columns(e: ConsumerEmitter, lets: list[Let]) -> list[Let]:
    """Return the column values: made of a step's row statistics, the same for all query rows."""
    statistics = {each.param for each in e.plan.row_statistics}
    found: list[Let] = []
    for let in lets:
        read = isinstance(let.node, Load) and let.node.param in statistics
        if read or (not e.by_row(let.value) and {x.value for x in found} & set(e.operands(let))):
            found.append(let)
    return found


def _column(e: ConsumerEmitter, let: Let) -> None:
    """Write a column value."""
    if isinstance(let.node, Load):
        e.uses("statistics_of")
        given = f"{let.node.param}_statistics, quad, {STATE}.index, {e.plan.scores.count}"
        e.text[let.value] = e.let(let.name or let.node.param, f"statistics_of({given})")
    else:
        e.node(let)


def probs_of(let: Let) -> Value:
    assert isinstance(let.node, Dot)
    return let.node.a
