"""Consumer mainloop and epilogue of the fused attention kernel (online softmax with rescaling)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

from rlk.ir.nodes import (
    Combine,
    Dot,
    Elementwise,
    Fn2,
    Let,
    Load,
    Loop,
    Map2,
    Reduce,
    Result,
    Select,
    Store,
    Value,
    operands,
)
from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.lagging import BOUND, LaggingMaximum, lagging_maximum
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.liveness import live
from rlk.lower.common.names import axis_name, stem
from rlk.lower.common.rescale import rescale_of
from rlk.lower.cute import text
from rlk.lower.cute.attention import scheduler
from rlk.lower.cute.attention.masks import clear, guards_of
from rlk.lower.cute.attention.plan import AttentionPlan, Copies, Step
from rlk.lower.cute.attention.producer import FRAGMENT, PLACE, ROWS, TRANSPOSED, AttentionEmitter
from rlk.lower.cute.attention.step import (
    K_NEXT,
    K_STATE,
    MASKED,
    MORE,
    STATES,
    SWITCHES,
    TILE_CONSUMER,
    V_STATE,
    Masks,
    call,
    masks_of,
    step_function,
)
from rlk.lower.cute.epilogue_vectorize import ROW, THREADS, Vectors, vectors_of_rows
from rlk.lower.cute.functions import Helper, functions
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import INSTRUCTION, WARPGROUP, Fragment, refused
from rlk.passes.walk import backward_slice

LINE = 4  # f32 of one access to shared memory
ONLY_TILE = "pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)"  # of the resident rows
ABOUT_STEP = "One KV tile: online softmax of S, S of the next tile, O += P V."
EACH_ROW = f"for r in cutlass.range_constexpr({ROWS}):"
PROOF = f"# numerators that sum to less than {BOUND:g} prove that the maximum stays"


@dataclass(frozen=True, slots=True)
class Register:
    """A loop-carried register of a thread: a number for each of its rows, or a fragment of them."""

    name: str
    fragment: bool

    @property
    def element(self) -> str:
        """Return the text of an element."""
        return f"{self.name}[r, c]" if self.fragment else f"{self.name}[r]"


@dataclass(frozen=True, slots=True)
class Late:
    """Reductions that O += P V does not wait for, with the names of their parts, and values made of them."""

    parts: tuple[tuple[Let, str], ...]
    lets: tuple[Let, ...]


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


class ConsumerEmitter(AttentionEmitter):
    """Writes the lines of a consumer thread; `carried` are the registers of loop-carried values.

    crossing: names of lists of both rows, which are read after the loop that writes them. in_smem: names and
    sizes of accumulators in shared memory. unset: texts of elements in memory that are uninitialized until
    the first rescale, each with the array's name, fragment, and initial value.
    """

    carried: tuple[Register, ...] = ()
    vectorized = False  # whether the epilogue stores vectors
    masks: Masks | None = None  # of the step that is written, where others have none
    step_function: Function
    crossing: Mapping[Value, str] = MappingProxyType({})

    # --- before the loop ------------------------------------------------------------------------------------

    def __init__(self, plan: AttentionPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        if plan.dynamic_schedule:
            self.work_counter = scheduler.prepare(self)
        self.in_smem: dict[str, int] = {}
        self.unset: dict[str, tuple[str, Fragment, str]] = {}

    def before(self) -> tuple[Line, ...]:
        """Return the prologue: row indices, row values that steps read, and loop-carried registers."""
        axis = self.plan.rows.axis
        rows = self.let(axis_name(axis), self.both("first + row + 8 * r"))
        self.memory.coordinates[axis] = f"{rows}[r]"
        inside = [v for part in self.plan.parts for v in part.loop.body.results]
        of_steps = {let.value for part in self.plan.parts for let in part.loop.body.lets}
        conditions = [t.condition for part in self.plan.parts if (t := rescale_of(part.loop)) is not None]
        wanted = self.needed([*inside, *conditions, *self.plan.parts[0].loop.init])
        read = {let.value for let in wanted if isinstance(let.node, Load) and self.listed(let.value)}
        self.write((let for let in wanted if let.value not in of_steps | read), ROWS)
        if self.plan.maximum_last:
            self.hold(self.top())
        self.uses("by_rows")
        self.carried = tuple(self.register(i, init) for i, init in enumerate(self.plan.parts[0].loop.init))
        if self.unset:
            self.line("rescales = Int32(0)")
        for loop in self.loops():
            for value, result in self.results_of(loop):
                self.text[value] = self.carried[result].element
                self.whole.add(value)
                self.written.add(value)
        return lines(self.lines)

    def hold(self, lets: Iterable[Let]) -> None:
        """Keep the factors of scores in registers: each step would load and multiply the scale again."""
        read = {v for part in self.plan.parts for let in part.loop.body.lets for v in operands(let.node)}
        for let in lets:
            scalar = isinstance(let.node, Map2) and not self.by_row(let.value)
            if let.value in read and scalar and self.tile(let.value).dtype is DType.F32:
                self.uses("held")
                self.line(f"{self.text[let.value]} = held({self.text[let.value]})")

    def accumulator(self, part: Step, index: int) -> Register:
        """Return the accumulator of a step's contraction."""
        return self.carried[part.loop.body.results.index(part.sums[index].value)]

    def elements(self, part: Step) -> dict[Value, str]:
        """Return the text of an element of each carried value of a step."""
        return {arg: each.element for arg, each in zip(part.loop.body.args[1:], self.carried, strict=True)}

    def loops(self) -> list[Value]:
        return [let.value for let in self.plan.kernel.body.lets if isinstance(let.node, Loop)]

    def results_of(self, loop: Value) -> list[tuple[Value, int]]:
        nodes = ((let.value, let.node) for let in self.plan.kernel.body.lets)
        return [(v, node.index) for v, node in nodes if isinstance(node, Result) and node.of == loop]

    def register(self, index: int, init: Value) -> Register:
        """Write a loop-carried register with its initial value."""
        loop = self.loops()[-1]
        hint = self.yields.get((loop, index)) or f"{axis_name(self.plan.scores.axis)}_state"
        arg = self.plan.last.loop.body.args[1 + index]
        node = self.lets[init].node
        if not self.by_row(arg) or not (init in self.consts or isinstance(node, Load)):
            raise refused("a loop whose initial values are no row values", self.plan.target)
        name, fragment = self.names.fresh(hint), self.fragment_of(arg)
        if fragment is None:
            self.line(f"{name} = cute.make_rmem_tensor(({ROWS},), Float32)")
            if isinstance(node, Load):
                with self.inner(EACH_ROW):
                    self.line(f"{name}[r] = {self[init]}")
            else:
                self.line(f"{name}.fill({self[init]})")
            return Register(name, fragment=False)
        if fragment not in self.plan.sums:
            raise refused(f"a loop that carries a list along {fragment.axis}", self.plan.target)
        unit = text.numbered("mma_pv", self.plan.units.index(fragment.length))
        if index in self.plan.smem_accumulators:
            self.in_smem[name] = fragment.count * ROWS * WARPGROUP * self.plan.consumers
            self.place_in_memory(name, f"memory.{name}.data_ptr()", fragment, init)
            return Register(name, fragment=True)
        if index in self.plan.scratch_accumulators:
            words = fragment.count * ROWS * WARPGROUP * self.plan.consumers
            kernel = self.plan.kernel.name
            whole = self.memory.argument(abi.scratch(kernel, f"{kernel}_{name}", words * self.plan.programs))
            self.place_in_memory(name, f"{whole} + block * {words}", fragment, init)
            return Register(name, fragment=True)
        shape = f"{unit}.partition_shape_C(({self.plan.rows.tile}, {fragment.length}))"
        self.line(f"{name}{FRAGMENT} = cute.make_rmem_tensor({shape}, Float32)")
        if isinstance(node, Load):
            self.line(f"{name} = by_rows({name}{FRAGMENT}, {fragment.length // 8})")
            self.begin_list(name, fragment, init)
            return Register(name, fragment=True)
        self.line(f"{name}{FRAGMENT}.fill({self[init]})")
        self.line(f"{name} = by_rows({name}{FRAGMENT}, {fragment.length // 8})")
        return Register(name, fragment=True)

    def place_in_memory(self, name: str, begin: str, fragment: Fragment, init: Value) -> None:
        """Write an accumulator in memory, laid out as registers: each thread has its own elements.

        Threads lie side by side by vectors of 16 bytes.
        """
        threads = WARPGROUP * self.plan.consumers
        strides = f"{fragment.count * threads}, (1, {LINE * threads})"
        layout = f"({ROWS}, ({LINE}, {fragment.count // LINE})), stride=({strides})"
        at = f"{begin} + {LINE} * mine"
        self.line(f"{name} = cute.make_tensor({at}, cute.make_layout({layout}))")
        if init in self.consts:
            self.unset[f"{name}[r, c]"] = name, fragment, self[init]
        else:
            self.begin_list(name, fragment, init)

    def branches(self, values: Mapping[Value, str]) -> Iterator[tuple[str, Mapping[Value, str]]]:
        """Yield the branches in which accumulators in shared memory were rescaled before, and were not.

        Each with its header and the texts of their elements.
        """
        found = {value: place for value, place in values.items() if place in self.unset}
        yield ("if rescales > 0:" if found else ""), found
        if found:
            yield "else:", {value: self.unset[place][2] for value, place in found.items()}

    @contextmanager
    def earlier(self, values: Mapping[Value, str]) -> Iterator[None]:
        """Write reads of accumulators in shared memory that may be uninitialized; used inside."""
        before = dict(self.text)
        for place, (name, fragment, init) in self.unset.items():
            self.uses("earlier")
            made = self.let(f"earlier_{name}", f"earlier(rescales, {name}, r, {fragment.count}, {init})")
            self.text |= {value: f"{made}[c]" for value, found in values.items() if found == place}
        yield
        self.text |= {value: before[value] for value in values}

    def begin_list(self, name: str, fragment: Fragment, init: Value) -> None:
        """Write the initial values of a fragment: loaded, or a constant."""
        node = self.lets[init].node
        with self.inner(EACH_ROW), self.inner(f"for c in cutlass.range_constexpr({fragment.count}):"):
            if isinstance(node, Load):
                self.uses("load_where")
                self.line(f"{name}[r, c] = load_where({self.source(node)}, Float32(0.0))")
            else:
                self.line(f"{name}[r, c] = {self[init]}")

    # --- steps ----------------------------------------------------------------------------------------------

    def loop_lines(self) -> tuple[Line, ...]:
        """Return all steps: S of the next step is issued before the softmax of this one."""
        name = self.names.fresh(f"{axis_name(self.plan.last.loop.axis)}_step")
        self.write_step(name, ABOUT_STEP, self.step)
        before = "first_steps"
        if len(self.plan.parts) > 1:
            with self.inner(f"for {name} in cutlass.range(first_steps, full_steps, unroll=1):"):
                self.line(call(self.step_function, name, masked=False, more=True))
            before = "full_steps"
        with self.inner(f"for {name} in cutlass.range({before}, last_steps - 1, unroll=1):"):
            self.line(call(self.step_function, name, masked=True, more=True))
        if self.plan.dynamic_schedule:  # S of the tile is complete
            with self.inner("with cute.arch.elect_one():"):
                for copies in self.plan.resident:
                    self.line(f"{copies.param}_ring.consumer_release({TILE_CONSUMER})")
        last = self.plan.dynamic_schedule or bool(self.unset)  # whether its states are read again
        self.line(call(self.step_function, "last_steps - 1", states=last, masked=True, more=False))
        if self.plan.dynamic_schedule:
            self.release_rest()
        return lines(self.lines)

    def release_rest(self) -> None:
        """Write the release of stages that only other consumers need."""
        name = self.names.fresh(f"{axis_name(self.plan.last.loop.axis)}_step")
        with self.inner(f"for {name} in cutlass.range(last_steps, all_steps, unroll=1):"):
            for copies, state in zip(self.plan.streamed, (K_STATE, V_STATE), strict=True):
                self.wait_for(copies, state)
            self.release(K_STATE, V_STATE)

    def write_step(self, name: str, about: str, step: Callable[[Step, str], None]) -> None:
        """Write the function of a step; where some steps need no masks, with a switch for these."""
        self.masks = masks_of(self.plan.last.loop) if len(self.plan.parts) > 1 else None
        before, depth, self.lines, self.depth = self.lines, self.depth, [], 0
        self.place = ""
        with self.names.scope():
            self.names.taken |= set(SWITCHES)
            step(self.plan.last, name)
        body, self.lines, self.depth = live(lines(self.lines), STATES), before, depth
        called = {*functions(), *self.helpers.found}
        extents = {axis.whole.name for d in self.plan.kernel.params for axis in d.type.axes}
        self.step_function = step_function(
            f"{self.plan.kernel.name}_step", name, about, body, called, extents, self.step_groups()
        )
        self.masks = None

    def step_groups(self) -> Iterator[str]:
        """Yield the names of a step's parameters in order, scalars not counted.

        Pipeline states, pipelines, shared memory tiles, wgmma instructions with S and P, and what the loop
        carries: row statistics, then accumulators.
        """
        yield from STATES
        yield from (f"{copies.param}_ring" for copies in self.plan.streamed)
        yield self.plan.statistics_ring
        for copies in self.plan.copied:
            yield from (
                f"{copies.param}_{what}" for what in ("tiles", TRANSPOSED[0], "factor", TRANSPOSED[1])
            )
        yield from (f"{each.param}_statistics" for each in self.plan.row_statistics)
        yield "mma_qk"
        yield from (text.numbered("mma_pv", i) for i in range(len(self.plan.units)))
        for fragment in (*self.score_names, *self.prob_names):
            yield from (fragment + FRAGMENT, fragment)
        for register in sorted(self.carried, key=lambda register: register.fragment):
            yield from (register.name + FRAGMENT, register.name)

    @contextmanager
    def switch(self, condition: str) -> Iterator[None]:
        """Write what is inside for steps with a compile-time condition alone."""
        with self.inner(f"if cutlass.const_expr({condition}):"):
            yield

    def where_masked(self) -> AbstractContextManager[None]:
        """Write what is inside for masked steps alone, where there are others."""
        return nullcontext() if self.masks is None else self.switch(MASKED)

    @contextmanager
    def one_step(self, loop: Loop, name: str, *conditions: Value) -> Iterator[list[Let]]:
        """Write the scalar values of a step; yield all values that it needs."""
        fragment = self.fragment
        with self.isolated():
            self.fragment = self.plan.scores
            self.text[loop.body.args[0]] = name
            for arg, register in zip(loop.body.args[1:], self.carried, strict=True):
                self.text[arg] = register.element
                self.whole.add(arg)
            lets = self.needed([*loop.body.results, *conditions])
            self.write(let for let in lets if not self.by_row(let.value) and not self.listed(let.value))
            yield lets
        self.fragment = fragment

    def step(self, part: Step, name: str) -> None:
        """Write a step; with the switch `more` it issues S of the next."""
        found = rescale_of(part.loop)
        with self.one_step(part.loop, name, *(() if found is None else (found.condition,))) as lets:
            maximum = self.maximum_of(part) if self.plan.maximum_last else None
            together = self.plan.rare_together and found is not None and maximum is not None
            if together:
                self.replaced(part)
            elif found is not None:
                self.rescale(part, name)
            self.read_scores(part)
            left = [let for let in lets if let.value not in self.written and let != part.sums[0]]
            lagging = None if maximum is None else self.with_lagging_maximum(part, left, maximum)
            if lagging is not None and found is not None and not together:
                self.restart(lagging, self[found.condition])
            with self.switch(MORE):
                if not self.plan.waits_early:
                    self.wait_for(self.plan.streamed[0], K_STATE)
                self.score(part, 0, K_STATE)
            if together and lagging is not None:
                self.boundary(part, name, lagging)
            if lagging is None:
                late = self.rows_of_step(part, left)
            else:
                late = self.with_maximum_as_it_was(lagging)
            if not self.plan.waits_early:
                self.wait_for(self.plan.streamed[1], V_STATE)
            if self.plan.by_tma and (guards := guards_of(self.plan.streamed[1:])):
                with self.where_masked():
                    clear(self, guards, V_STATE)
            self.sum(self.plan.last, 0, V_STATE)
            if self.plan.waits_early:
                self.end_early(part, name, late)
                return
            self.end_of_step(part, late)
            self.line("warpgroup.wait_group(0)")
            with self.switch(MORE):
                self.release(K_STATE, "")
            self.release("", V_STATE)

    def end_early(self, part: Step, name: str, late: Late) -> None:
        """Write the end of a step that waits for the factors of the next while O += P V is computed.

        They are K of the step after it, and V. The branch of the first wait keeps the products together:
        ptxas would put the exchanges of row sums between them.
        """
        k, v = (f"{copies.param}_ring" for copies in self.plan.streamed)
        with self.switch(MORE):
            self.line(f"{K_NEXT} = {K_STATE}.clone()")
            self.line(f"{K_NEXT}.advance()")
            with self.inner(f"if {name} + 2 < last_steps:"):
                self.line(f"{k}.consumer_wait({K_NEXT})")
        self.end_of_step(part, late)
        with self.switch(MORE):
            self.line(f"{v}.consumer_wait({K_STATE})")
        self.line("warpgroup.wait_group(0)")
        with self.switch(MORE):
            self.line(f"{k}.consumer_release({K_STATE})")
        self.line(f"{v}.consumer_release({V_STATE})")
        self.line(f"{V_STATE} = {K_STATE}.clone()")
        with self.switch(MORE):
            self.line(f"{K_STATE} = {K_NEXT}")

    def rescale(self, part: Step, name: str) -> None:
        """Write the piece boundary: carried values that some steps replace, behind their condition."""
        found = rescale_of(part.loop)
        assert found is not None
        with self.inner(f"if {' & '.join([self[found.condition], *self.not_first(name)])}:"):
            self.rescale_lines(part)
        self.replaced(part)

    def boundary(self, part: Step, name: str, lagging: LaggingStep) -> None:
        """Write the piece boundary, and the maximum of a piece's first step, in one branch.

        It stands behind the issue of S: what it changes is read by all exponentials, so that the compiler
        can move none of them before S.
        """
        found = rescale_of(part.loop)
        assert found is not None
        with self.inner(f"if {self[found.condition]}:"):
            not_first = self.not_first(name)
            with self.inner(f"if {not_first[0][1:-1]}:") if not_first else nullcontext(), self.isolated():
                self.rescale_lines(part)
            with self.inner(EACH_ROW):
                self.new_maximum(lagging)

    def not_first(self, name: str) -> list[str]:
        """Return the condition of a step with a state to merge: initial values are none, unless loaded."""
        first = all(value in self.consts for value in self.plan.parts[0].loop.init)
        return [f"({name} > first_steps)"] if first else []

    def rescale_lines(self, part: Step) -> None:
        """Write what a piece boundary replaces."""
        found, place = rescale_of(part.loop), self.elements(part)
        assert found is not None
        with self.inner(EACH_ROW):
            listed = {new: place[old] for _, old, new in found.changes if self.listed(old)}
            self.ordered(let for let in found.rare if not self.listed(let.value))
            self.targets = listed
            for header, values in self.branches(place):
                with self.inner(header) if header else nullcontext(), self.isolated():
                    self.text |= values
                    self.ordered(let for let in found.rare if self.listed(let.value))
            self.targets = {}
            self.assign([(place[old], new) for _, old, new in found.changes if new not in listed])
        if self.unset:
            self.line("rescales = rescales + 1")

    def replaced(self, part: Step) -> None:
        """Take the values behind a piece boundary from the registers of carried values."""
        found, place = rescale_of(part.loop), self.elements(part)
        assert found is not None
        for value, old, _ in found.changes:
            self.text[value] = place[old]
            self.whole.add(value)
        self.written |= found.waiting

    def assign(self, pairs: list[tuple[str, Value]]) -> None:
        """Assign new row values to their registers, all at once."""
        moved = [(to, self[value]) for to, value in pairs if self[value] != to]
        if moved:
            self.line(f"{', '.join(to for to, _ in moved)} = {', '.join(x for _, x in moved)}")

    def read_scores(self, part: Step) -> None:
        """Write the first use of S, which frees its accumulator for the next step."""
        score, lets = part.scores[0].value, part.loop.body.lets
        self.written.add(score)
        users = [let for let in lets if score in operands(let.node)]
        both = "[[{} for c in range(" + str(self.plan.scores.count) + ")] for r in range(" + str(ROWS) + ")]"
        self.text[score] = f"{self.score_names[0]}[r, c]"
        self.whole.add(score)
        if not all(map(self.direct, users)):
            name = self.let(f"{self.score_names[0]}_list", both.format(f"{self.score_names[0]}[r, c]"))
            self.text[score] = f"{name}[r]"
            self.whole.discard(score)
            return
        for let in users:
            self.note(let)
            name = self.let(let.name or stem(let), both.format(self.expression(let)))
            self.text[let.value] = f"{name}[r]"
            self.written.add(let.value)

    def direct(self, let: Let) -> bool:
        """Return whether a list depends on scores and scalars alone."""
        scores = {part.scores[0].value for part in self.plan.parts}
        known = self.written | self.consts.keys()
        return self.elementwise(let) and all(
            v in scores or (v in known and not self.by_row(v)) for v in operands(let.node)
        )

    def maximum_of(self, part: Step) -> LaggingMaximum | None:
        """Return the maximum of a step, if it mostly stays."""
        return lagging_maximum(part.loop, {value: let.node for value, let in self.lets.items()})

    def with_lagging_maximum(self, part: Step, lets: list[Let], found: LaggingMaximum) -> LaggingStep:
        """Write the masked scores of a step whose maximum mostly stays."""
        dot = part.sums[0].node
        assert isinstance(dot, Dot) and dot.onto is not None
        of = {let.value: let for let in lets}
        scores = backward_slice([found.scores], of, self.operands)
        rest = [let for let in lets if let.value not in scores]
        self.phase(part, [let for let in lets if let.value in scores], rest)
        targets = {dot.a: f"{self.prob_names[0]}[r, c]", dot.onto: self.accumulator(part, 0).element}
        return LaggingStep(found, tuple(rest), of, dot.a, targets)

    def restart(self, step: LaggingStep, condition: str) -> None:
        """Write the maximum of the first step of a piece, which begins with that of no score."""
        with self.inner(f"if {condition}:"), self.inner(EACH_ROW):
            self.new_maximum(step)

    def with_maximum_as_it_was(self, step: LaggingStep) -> Late:
        """Write a step up to its sums: numerators under the maximum as it was, and anew if it may not stay.

        So most steps neither compare scores nor exchange maxima with the other threads of a row.
        """
        found, rest = step.found, step.lets
        late = [let for let in rest if self.reads(step, let, found.total.value)]
        stays = {found.maximum, found.subtracted}
        count, maximum = self.parts_of(found.total), self.text[found.before]
        self.uses("all_below", "any_lane", "select")
        self.note(found.total)
        parts = self.let(f"{step.total}_parts", f"cute.make_rmem_tensor(({ROWS * count},), Float32)")
        with self.inner(EACH_ROW):
            with self.isolated(scope=False):
                self.text |= dict.fromkeys(stays, maximum)
                self.whole |= stays
                total = self.numerators_of_row(step, parts)
            if not self.plan.rare_together:
                with self.where_it_may_grow(total), self.isolated():
                    self.new_maximum(step)
                    self.numerators_of_row(step, parts)
        both = f"[{parts}[i] for i in range({ROWS * count})]"
        if self.plan.rare_together:
            with self.where_it_may_grow(both), self.isolated(), self.inner(EACH_ROW):
                self.new_maximum(step)
                self.numerators_of_row(step, parts)
        for value, old in ((found.maximum, found.before), *found.scaled):
            self.text[value] = self.text[old]
            self.whole.add(value)
        self.written |= {let.value for let in rest if let not in late}
        return Late(((found.total, both),), tuple(let for let in late if let != found.total))

    def where_it_may_grow(self, sums: str) -> AbstractContextManager[None]:
        """Write what is inside for warps with a sum of numerators that does not prove the maximum stays."""
        self.line(PROOF)
        below = self.let("stays", f"all_below({sums}, {self.literal(BOUND, DType.F32)})")
        return self.inner(f"if any_lane(select({below}, Boolean(False), Boolean(True))):")

    def reads(self, step: LaggingStep, let: Let, value: Value) -> bool:
        return value in backward_slice([let.value], step.of, self.operands)

    def new_maximum(self, step: LaggingStep) -> None:
        """Write a row's maximum, and what it rescales."""
        found, rest = step.found, [let for let in step.lets if let != step.found.chunk]
        needed = backward_slice([found.subtracted, *(v for v, _ in found.scaled)], step.of, self.operands)
        changes = [let for let in rest if let.value in needed and self.reads(step, let, found.chunk.value)]
        self.ordered([let for let in rest if let.value in needed and let not in changes])
        assert isinstance(found.chunk.node, Reduce)
        of_thread, across = self.halves(found.chunk)
        self.note(found.chunk)
        made = f"{across}({of_thread}({self.text[found.chunk.node.x]}))[0]"
        self.text[found.chunk.value] = self.let(found.chunk.name or stem(found.chunk), made)
        self.written.add(found.chunk.value)
        self.targets = dict(step.targets)
        self.ordered(changes)
        self.targets = {}
        sums = [(self.text[old], value) for value, old in found.scaled if value not in step.targets]
        self.assign([(self.text[found.before], found.maximum), *sums])

    def numerators_of_row(self, step: LaggingStep, parts: str) -> str:
        """Write a row's numerators and the partial sums of this thread; return the name of these."""
        found, known = step.found, {step.found.maximum, step.found.subtracted}
        of = {let.value: let for let in step.lets if let.value not in known}
        needed = backward_slice([found.numerators, step.probs], of, self.operands)
        self.crossing, self.targets = {found.numerators: ""}, dict(step.targets)
        self.ordered([let for let in step.lets if let.value in needed])
        self.crossing, self.targets = {}, {}
        tree, _ = self.halves(found.total)
        self.note(found.total)
        name = self.let(f"{step.total}_of_row", f"{tree}({self.text[found.numerators]})")
        count = self.parts_of(found.total)
        with self.inner(f"for i in cutlass.range_constexpr({count}):"):
            self.line(f"{parts}[{count} * r + i] = {name}[i]")
        return name

    def rows_of_step(self, part: Step, lets: list[Let]) -> Late:
        """Write a step's values up to O += P V; return those that it does not need.

        Both rows of a thread advance together between warp shuffles, so that their latency is paid once.
        """
        left, dot, place = lets, part.sums[0].node, self.accumulator(part, 0).element
        assert isinstance(dot, Dot) and dot.onto is not None
        self.targets = {dot.a: f"{self.prob_names[0]}[r, c]", dot.onto: place}
        needed = backward_slice([dot.a, dot.onto], {let.value: let for let in left}, self.operands)
        reduces, late = [let for let in left if isinstance(let.node, Reduce)], {}
        for let in reduces:
            waiting = {x.value for x in reduces if x.value not in self.written}
            ready = [x for x in left if not waiting & backward_slice([x.value], self.lets, self.operands)]
            left = [x for x in left if x not in ready and x != let]
            self.phase(part, ready, [*left, let])
            late[let.value] = self.within(let)
            if let.value in needed:
                self.across(let, late.pop(let.value))
        ready = [x for x in left if not late.keys() & backward_slice([x.value], self.lets, self.operands)]
        left = [x for x in left if x not in ready]
        self.phase(part, ready, left)
        self.targets = {}
        return Late(tuple((self.lets[v], text) for v, text in late.items()), tuple(left))

    def phase(self, part: Step, ready: list[Let], later: list[Let]) -> None:
        """Write values of both rows that wait for no shuffle: row values, lists, rescaled accumulators."""
        lists = [let for let in ready if self.listed(let.value)]
        self.write((let for let in ready if let not in lists), ROWS)
        scores = [let for let in lists if self.fragment_of(let.value) is self.plan.scores]
        ends = {v for let in later for v in self.operands(let)} - self.targets.keys()
        empty = f"[{', '.join(['[]'] * ROWS)}]"
        waiting = [let for let in scores if let.value in ends]
        self.crossing = {let.value: self.let(let.name or stem(let), empty) for let in waiting}
        others = [let for let in lists if let not in scores]
        sums_first = self.plan.dynamic_schedule  # measured; with one tile a block the other order is faster
        if sums_first:
            self.rescaled(part, others)
        if scores:
            with self.inner(EACH_ROW):
                self.ordered(scores)
        self.crossing = {}
        if not sums_first:
            self.rescaled(part, others)

    def rescaled(self, part: Step, lets: list[Let]) -> None:
        """Rescale accumulators by a row value, skipped where it is 1 for all rows of a warp."""
        fragment = self.elements(part)
        for let in lets:
            condition = ""
            match let.node:
                case Map2(fn=Fn2.MUL, a=a, b=b) if a in fragment and b in self.rowwise:
                    self.uses("any_lane")
                    name = self.text[b]
                    condition = " | ".join(f"({name}[{r}] != Float32(1.0))" for r in range(ROWS))
            branch = self.inner(f"if any_lane({condition}):") if condition else nullcontext()
            with branch, self.inner(EACH_ROW):
                self.ordered([let])

    def within(self, let: Let) -> str:
        """Write the thread-local part of a reduction of both rows; return its name."""
        assert isinstance(let.node, Reduce)
        tree, _ = self.halves(let)
        self.note(let)
        given = f"{tree}({self.text[let.node.x]})"
        return self.let(f"{let.name or stem(let)}_parts", f"[x for r in range({ROWS}) for x in {given}]")

    def across(self, let: Let, parts: str) -> None:
        """Write the shuffles of a reduction of both rows."""
        _, tree = self.halves(let)
        self.note(let)
        self.text[let.value] = self.let(let.name or stem(let), f"{tree}({parts})")
        self.rowwise.add(let.value)
        self.written.add(let.value)

    def halves(self, let: Let) -> tuple[str, str]:
        """Return the helpers of a reduction: thread-local, and across the four threads of a row.

        A maximum has no order: all of its thread-local steps come first.
        """
        assert isinstance(let.node, Reduce)
        name, about, steps = self.reduction(let, let.node)
        if let.node.fn is not Combine.ADD:
            steps = tuple(sorted(steps, key=lambda step: step.across))
        cut = next((i for i, step in enumerate(steps) if step.across), len(steps))
        lines = [step.line for step in steps]
        end = (Line("return x"),)
        return (
            self.helper(
                f"{name}_of_thread", "x", f"{about}: the elements of this thread.", (*lines[:cut], *end)
            ),
            self.helper(
                name,
                "x",
                f"{about}: across the four threads of a row, all rows at once.",
                (*lines[cut:], *end),
            ),
        )

    def parts_of(self, let: Let) -> int:
        """Return how many partial results of a row the thread-local part of a reduction leaves."""
        assert isinstance(let.node, Reduce)
        steps = [step.across for step in self.reduction(let, let.node)[2]]
        return self.plan.scores.count >> (steps.index(True) if True in steps else len(steps))

    def end_of_step(self, part: Step, late: Late) -> None:
        """Write the values that O += P V did not wait for, and update the loop-carried ones."""
        for let, parts in late.parts:
            self.across(let, parts)
        self.write(late.lets, ROWS)
        pairs = zip(self.carried, part.loop.body.results, strict=True)
        with self.inner(EACH_ROW):
            self.assign([(to.element, value) for to, value in pairs if value != part.sums[0].value])

    # --- products -------------------------------------------------------------------------------------------

    def wait_for(self, copies: Copies, state: str) -> None:
        """Wait for a tile; a tile by cp.async needs a proxy fence before wgmma."""
        self.line(f"{copies.param}_ring.consumer_wait({state})")
        if not self.plan.by_tma:
            self.line("cute.arch.fence_view_async_shared()")

    def score(self, part: Step, index: int, state: str) -> None:
        """Issue S = Q K^T."""
        a, b = (self.factor(part.scores[index], side) for side in "ab")
        self.uses("multiply")
        given = f"{a.param}_factor[None, None, None, 0], {b.param}_factor[None, None, None, {state}.index]"
        acc, count = self.score_names[index] + FRAGMENT, a.elements // INSTRUCTION
        self.line(f"multiply(mma_qk, {acc}, {given}, False, {count})")

    def sum(self, part: Step, index: int, state: str) -> None:
        """Issue O += P V."""
        b, count = self.factor(part.sums[index], "b"), self.plan.scores.length // INSTRUCTION
        unit = text.numbered("mma_pv", self.plan.units.index(self.plan.sums[index].length))
        view = f"{b.param}_{TRANSPOSED[1] if b.along else 'factor'}"
        acc = self.accumulator(part, index).name
        given = (
            f"{acc}{FRAGMENT}, {self.prob_names[index]}{FRAGMENT}, {view}[None, None, None, {state}.index]"
        )
        self.line(f"multiply({unit}, {given}, True, {count})")

    def factor(self, let: Let, side: str) -> Copies:
        """Return the copies of a contraction's factor."""
        assert isinstance(let.node, Dot)
        load = self.lets[let.node.a if side == "a" else let.node.b].node
        assert isinstance(load, Load)
        return next(copies for copies in self.plan.copied if copies.param == load.param)

    def release(self, *states: str) -> None:
        """Release the stages of finished products: one thread of each warp arrives."""
        given = [(c.param, state) for c, state in zip(self.plan.streamed, states, strict=True) if state]
        with self.inner("with cute.arch.elect_one():") if not self.plan.by_tma else nullcontext():
            for param, state in given:
                self.line(f"{param}_ring.consumer_release({state})")
        for state in dict.fromkeys(state for _, state in given):
            self.line(f"{state}.advance()")

    def first_scores(self) -> tuple[Line, ...]:
        """Return the wait for the resident rows, and S of the first step."""
        k, v = self.plan.streamed
        self.wait_for_resident()
        self.wait_for(k, K_STATE)
        self.score(self.plan.last, 0, K_STATE)
        self.line("warpgroup.wait_group(0)")
        self.release(K_STATE, "")
        if self.plan.waits_early:
            with self.inner("if first_steps + 1 < last_steps:"):
                self.wait_for(k, K_STATE)
            self.wait_for(v, V_STATE)
        return lines(self.lines)

    def wait_for_resident(self) -> None:
        """Wait for the tiles of the resident rows."""
        state = TILE_CONSUMER if self.plan.dynamic_schedule else ONLY_TILE
        for copies in self.plan.resident:
            self.line(f"{copies.param}_ring.consumer_wait({state})")
        if self.plan.by_tma:
            self.line("cute.arch.fence_view_async_shared()")

    # --- after the loop -------------------------------------------------------------------------------------

    def after(self) -> tuple[Line, ...]:
        """Return the epilogue."""
        self.memory.writer = "first_of_quad"
        rest = [let for let in self.top() if isinstance(let.node, Store)]
        needed = self.needed([v for let in rest for v in operands(let.node)])
        self.write(let for let in needed if not self.by_row(let.value) and not self.waits(let))
        yielded = (pair for loop in self.loops() for pair in self.results_of(loop))
        places = {value: self.carried[index].element for value, index in yielded}
        with self.inner(EACH_ROW), self.earlier(places):
            self.ordered([*(let for let in needed if let.value not in self.written), *rest])
        return lines(self.lines)

    # --- rows -----------------------------------------------------------------------------------------------

    def node(self, let: Let) -> None:
        match let.node:
            case Store() as store:
                self.fragment = self.fragment_of(store.value)
                if (by := self.by_vectors(store)) is not None:
                    self.store_vectors(store, by)
                else:
                    super().node(let)
            case Map2(a=a, b=b) if self.divides_list(let):
                self.uses("divided")
                given = f"divided({self.list_of(a)}, {self[b]})"
                self.text[let.value] = self.let(let.name or stem(let), given)
            case _:
                super().node(let)

    def divides_list(self, let: Let) -> bool:
        """Return whether a list is divided by a row value: quotients share one reciprocal."""
        match let.node:
            case Map2(fn=Fn2.DIV, a=a, b=b):
                f32 = self.tile(a).dtype is DType.F32
                return f32 and self.listed(let.value) and a not in self.consts and not self.listed(b)
            case _:
                return False

    def list_of(self, value: Value) -> str:
        """Return the text of a row's list."""
        fragment = self.fragment_of(value)
        assert fragment is not None
        text = self.text[value]
        return f"[{text} for c in range({fragment.count})]" if value in self.whole else text

    def by_vectors(self, store: Store) -> Vectors | None:
        """Return the vectorized store of a row's list, if its vectors are aligned and end with the row."""
        fragment, decl = self.fragment, self.memory.decls[store.param]
        by_row = store.guard is None or not self.listed(store.guard)
        if fragment is None or store.value in self.consts or not by_row:
            return None
        fits = ROW // THREADS // decl.type.dtype.bytes
        elements = fits if fragment.count % fits == 0 else fits // 2
        found = vectors_of_rows(decl, fragment.axis, elements, self.plan.signature.divisible)
        return found if fragment.count % elements == 0 else None

    def store_vectors(self, store: Store, by: Vectors) -> None:
        """Store a row's list by 16-byte vectors, transposed through shared memory by the threads of a row."""
        self.vectorized = True
        self.uses("to_vectors", "store_vector_where")
        mask = self.memory.mask((), store.guard) or "Boolean(True)"
        self.place_in_row = by.place
        at = self.memory.index(store.index)
        self.place_in_row = PLACE
        assert self.fragment is not None
        row, count = self.text[store.value], self.fragment.count
        if store.value in self.whole:
            row = self.let(f"row_of_{store.param}", f"[{row} for c in range({count})]")
        with self.inner(f"for c in cutlass.range_constexpr(0, {count}, {by.elements}):"):
            given = f"{row}[c : c + {by.elements}]"
            self.line(f"vectors = to_vectors(epilogue_tile, {store.param}.element_type, {given})")
            with self.inner(f"for i in cutlass.range_constexpr({by.count}):"):
                self.line(f"store_vector_where({mask}, {store.param}, {at}, vectors[i])")

    def elementwise(self, let: Let) -> bool:
        known = isinstance(let.node, Elementwise)
        return known and self.listed(let.value) and not self.divides_list(let)

    def ordered(self, lets: Iterable[Let]) -> None:
        """Write the values of a row: scalars first, then lists, fused where possible."""
        left = list(lets)
        while left:
            missing = {let.value for let in left}
            ready = [x for x in left if not self.elementwise(x) and not missing & set(self.operands(x))]
            if ready:
                for let in ready:
                    self.note(let)
                    self.node(let)
                    self.written.add(let.value)
            else:
                ready = self.together(left, missing)
                self.group(ready, [let for let in left if let not in ready])
            left = [let for let in left if let not in ready]

    def together(self, left: list[Let], missing: set[Value]) -> list[Let]:
        """Return lists along one axis that can be written element by element."""
        group: list[Let] = []
        axis: Fragment | None = None
        for let in left:
            if self.elementwise(let) and axis in (None, self.fragment_of(let.value)):
                if not (missing & set(self.operands(let))) - {x.value for x in group}:
                    group.append(let)
                    axis = self.fragment_of(let.value)
        if not group:
            raise refused(
                f"a node {type(left[0].node).__name__} in this place", self.plan.target, left[0].loc
            )
        return group

    def group(self, group: list[Let], rest: list[Let]) -> None:
        """Write fused lists in one loop over elements; lists that others read stay live."""
        fragment = self.fragment_of(group[0].value)
        assert fragment is not None
        needed = {v for let in rest for v in operands(let.node)}
        ends = needed | self.crossing.keys()
        live = [let for let in group if let.value in ends and let.value not in self.targets]
        self.note(group[0])
        for let in live:
            name = self.crossing.get(let.value)
            self.text[let.value] = f"{name}[r]" if name else self.let(let.name or stem(let), "[]")
        with self.inner(f"for c in cutlass.range_constexpr({fragment.count}):"):
            rare = [let for let in group if self.is_rare(let) and let not in live]
            for let in [let for let in group if let not in rare]:
                self.note(let)
                if self.masks is not None and let.value in self.masks.selects:
                    self.masked_element(let, live, rare)
                else:
                    self.element(let, live, self.expression(let))
        self.written |= {let.value for let in live}

    def element(self, let: Let, live: list[Let], made: str) -> None:
        """Write an element of a list: to its register, to a list that others read, or as a name."""
        if let.value in self.targets:
            self.line(f"{self.targets[let.value]} = {made}")
        elif let in live:
            self.line(f"{self.text[let.value]}.append({made})")
            return
        else:
            self.text[let.value] = self.let(let.name or stem(let), made)
            self.whole.add(let.value)
        self.written.add(let.value)

    def is_rare(self, let: Let) -> bool:
        """Return whether only masks need a value."""
        return self.masks is not None and let.value in self.masks.rare

    def masked_element(self, let: Let, live: list[Let], rare: list[Let]) -> None:
        """Write an element that masked steps select, and others take as it is.

        rare: values that conditions need; those that are written here are taken out.
        """
        assert isinstance(let.node, Select)
        plain = self[let.node.a]
        wanted = backward_slice([let.node.cond], {x.value: x for x in rare}, self.operands)
        waiting = [x for x in rare if x.value in wanted]
        rare[:] = [x for x in rare if x not in waiting]
        if let in live or let.value in self.targets:
            with self.switch(MASKED):
                for x in waiting:
                    self.note(x)
                    self.element(x, [], self.expression(x))
                self.note(let)
                self.element(let, live, self.expression(let))
            with self.inner("else:"):
                self.element(let, live, plain)
            return
        name = self.let(let.name or stem(let), plain)
        with self.switch(MASKED):
            for x in waiting:
                self.note(x)
                self.element(x, [], self.expression(x))
            self.note(let)
            self.line(f"{name} = {self.expression(let)}")
        self.text[let.value] = name
        self.whole.add(let.value)
        self.written.add(let.value)
