"""Consumer lines of a step whose maximum stays, unless its own numerators fail to prove that it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class LaggingStep:
    """A step with a lagging maximum, whose scores are written.

    lets: its other values. of: all of them. probs: the numerators as a factor of P V. targets: the registers
    of `probs` and of rescaled accumulators.
    """

    found: LaggingMaximum
    lets: tuple[Let, ...]
    of: Mapping[Value, Let]
    probs: Value
    targets: Mapping[Value, str]

    @property
    def total(self) -> str:
        """Return the name of the sum of numerators."""
        return self.found.total.name or stem(self.found.total)


def step_of(
    e: ConsumerEmitter, part: Step, lets: list[Let], found: LaggingMaximum, targets: Mapping[Value, str]
) -> LaggingStep:
    """Write the scores of a step, masks included; return what is left.

    targets: the registers of the factor of P V, which is the first, and of rescaled accumulators.
    """
    of = {let.value: let for let in lets}
    scores = backward_slice([found.scores], of, e.operands)
    rest = [let for let in lets if let.value not in scores]
    e.phase(part, [let for let in lets if let.value in scores], rest)
    return LaggingStep(found, tuple(rest), of, next(iter(targets)), targets)


def restart(e: ConsumerEmitter, step: LaggingStep, condition: str) -> None:
    """Write the maximum of the first step of a piece, which begins with that of no score."""
    with e.inner(f"if {condition}:"), e.inner(EACH_ROW):
        _maximum(e, step)


def write(e: ConsumerEmitter, step: LaggingStep) -> tuple[str, list[Let]]:
    """Write a step up to its sums: numerators under the maximum as it was, and anew if it may not stay.

    So most steps neither compare scores nor exchange maxima with the other threads of a row. Return the text
    of the partial sums of both rows, and the values that are not written yet.
    """
    found, rest = step.found, step.lets
    late = [let for let in rest if _reads(e, step, let, found.total.value)]
    stays = {found.maximum, found.subtracted}
    count, maximum = e.parts_of(found.total), e.text[found.before]
    e.uses("all_below", "any_lane", "select")
    e.at(found.total)
    parts = e.let(f"{step.total}_parts", f"cute.make_rmem_tensor(({ROWS * count},), Float32)")
    with e.inner(EACH_ROW):
        with e.isolated(scope=False):
            e.text |= dict.fromkeys(stays, maximum)
            e.whole |= stays
            total = _numerators(e, step, parts)
        e.line(PROOF)
        below = e.let("stays", f"all_below({total}, {e.literal(BOUND, DType.F32)})")
        with e.inner(f"if any_lane(select({below}, Boolean(False), Boolean(True))):"), e.isolated():
            _maximum(e, step)
            _numerators(e, step, parts)
    for value, old in ((found.maximum, found.before), *found.scaled):
        e.text[value] = e.text[old]
        e.whole.add(value)
    e.written |= {let.value for let in rest if let not in late}
    return f"[{parts}[i] for i in range({ROWS * count})]", [let for let in late if let != found.total]


def _reads(e: ConsumerEmitter, step: LaggingStep, let: Let, value: Value) -> bool:
    return value in backward_slice([let.value], step.of, e.operands)


def _maximum(e: ConsumerEmitter, step: LaggingStep) -> None:
    """Write a row's maximum, and what it rescales."""
    found, rest = step.found, [let for let in step.lets if let != step.found.chunk]
    needed = backward_slice([found.subtracted, *(v for v, _ in found.scaled)], step.of, e.operands)
    changes = [let for let in rest if let.value in needed and _reads(e, step, let, found.chunk.value)]
    e.ordered([let for let in rest if let.value in needed and let not in changes])
    assert isinstance(found.chunk.node, Reduce)
    of_thread, across = e.halves(found.chunk)
    e.at(found.chunk)
    made = f"{across}({of_thread}({e.text[found.chunk.node.x]}))[0]"
    e.text[found.chunk.value] = e.let(found.chunk.name or stem(found.chunk), made)
    e.written.add(found.chunk.value)
    e.targets = dict(step.targets)
    e.ordered(changes)
    e.targets = {}
    sums = [(e.text[old], value) for value, old in found.scaled if value not in step.targets]
    e.assign([(e.text[found.before], found.maximum), *sums])


def _numerators(e: ConsumerEmitter, step: LaggingStep, parts: str) -> str:
    """Write a row's numerators and the partial sums of this thread; return the name of these."""
    found, known = step.found, {step.found.maximum, step.found.subtracted}
    of = {let.value: let for let in step.lets if let.value not in known}
    needed = backward_slice([found.numerators, step.probs], of, e.operands)
    e.crossing, e.targets = {found.numerators: ""}, dict(step.targets)
    e.ordered([let for let in step.lets if let.value in needed])
    e.crossing, e.targets = {}, {}
    tree, _ = e.halves(found.total)
    e.at(found.total)
    name = e.let(f"{step.total}_of_row", f"{tree}({e.text[found.numerators]})")
    count = e.parts_of(found.total)
    with e.inner(f"for i in cutlass.range_constexpr({count}):"):
        e.line(f"{parts}[{count} * r + i] = {name}[i]")
    return name
