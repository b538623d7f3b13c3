"""Consumer lines of a step whose maximum stays, unless its own numerators fail to prove that it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlk.ir.nodes import Let, Reduce, Value
from rlk.ir.types import DType
from rlk.lower.common.lagging import BOUND, LaggingMaximum
from rlk.lower.common.names import stem
from rlk.lower.cute.attention.plan import Step
from rlk.lower.cute.attention.producer import ROWS
from rlk.passes.walk import backward_slice

if TYPE_CHECKING:
    from rlk.lower.cute.attention.consumer import ConsumerEmitter

EACH_ROW = f"for r in cutlass.range_constexpr({ROWS}):"
PROOF = f"# numerators that sum to less than {BOUND:g} prove that the maximum stays"


def write(
    e: ConsumerEmitter,
    part: Step,
    lets: list[Let],
    found: LaggingMaximum,
    probs: Value,
    targets: Mapping[Value, str],
) -> tuple[str, list[Let]]:
    """Write a step up to its sums: numerators under the maximum as it was, and anew if it may not stay.

    So most steps neither compare scores nor exchange maxima with the other threads of a row. probs: the
    numerators as a factor of P V. targets: the registers of `probs` and of rescaled accumulators. Return the
    text of the partial sums of both rows, and the values that are not written yet.
    """
    of = {let.value: let for let in lets}
    scores = backward_slice([found.scores], of, e.operands)
    rest = [let for let in lets if let.value not in scores]
    e.phase(part, [let for let in lets if let.value in scores], rest)

    def reads(let: Let, value: Value) -> bool:
        return value in backward_slice([let.value], of, e.operands)

    late = [let for let in rest if reads(let, found.total.value)]
    stays = {found.maximum, found.subtracted}
    assumed = {let.value: let for let in rest if let.value not in stays}
    fast = backward_slice([found.numerators, probs], assumed, e.operands)
    exact = [let for let in rest if let not in late and let != found.chunk]
    name, count = found.total.name or stem(found.total), e.parts_of(found.total)
    maximum = e.text[found.before]
    e.uses("all_below", "any_lane", "select")
    e.at(found.total)
    parts = e.let(f"{name}_parts", f"cute.make_rmem_tensor(({ROWS * count},), Float32)")
    e.targets = dict(targets)
    with e.inner(EACH_ROW):
        with e.isolated(scope=False):
            e.text |= dict.fromkeys(stays, maximum)
            e.whole |= stays
            total = _numerators(e, [let for let in rest if let.value in fast], found, parts)
        e.line(PROOF)
        below = e.let("stays", f"all_below({total}, {e.literal(BOUND, DType.F32)})")
        with e.inner(f"if any_lane(select({below}, Boolean(False), Boolean(True))):"), e.isolated():
            e.ordered([let for let in exact if not reads(let, found.chunk.value)])
            _maximum(e, found)
            _numerators(e, [let for let in exact if reads(let, found.chunk.value)], found, parts)
            sums = [(e.text[old], value) for value, old in found.scaled if value not in targets]
            e.assign([(maximum, found.maximum), *sums])
    e.targets = {}
    for value, old in ((found.maximum, found.before), *found.scaled):
        e.text[value] = e.text[old]
        e.whole.add(value)
    e.written |= {let.value for let in rest if let not in late}
    return f"[{parts}[i] for i in range({ROWS * count})]", [let for let in late if let != found.total]


def _numerators(e: ConsumerEmitter, lets: list[Let], found: LaggingMaximum, parts: str) -> str:
    """Write a row's numerators and the partial sums of this thread; return the name of these."""
    e.crossing = {found.numerators: ""}
    e.ordered(lets)
    e.crossing = {}
    tree, _ = e.halves(found.total)
    e.at(found.total)
    name = e.let(f"{found.total.name or stem(found.total)}_of_row", f"{tree}({e.text[found.numerators]})")
    count = e.parts_of(found.total)
    with e.inner(f"for i in cutlass.range_constexpr({count}):"):
        e.line(f"{parts}[{count} * r + i] = {name}[i]")
    return name


def _maximum(e: ConsumerEmitter, found: LaggingMaximum) -> None:
    """Write the maximum of a row's scores."""
    assert isinstance(found.chunk.node, Reduce)
    of_thread, across = e.halves(found.chunk)
    e.at(found.chunk)
    made = f"{across}({of_thread}({e.text[found.chunk.node.x]}))[0]"
    e.text[found.chunk.value] = e.let(found.chunk.name or stem(found.chunk), made)
    e.written.add(found.chunk.value)
