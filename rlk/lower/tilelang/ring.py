"""GEMM by Hopper warpgroups as text: an N-stage cp.async pipeline, accumulators in registers.

Both factors of a step are in shared memory in the layout of wgmma's 128-byte swizzle: rows of 128 bytes,
their 16-byte vectors permuted by the row's number (PTX 9.7.15.5). The wgmmas of a step overlap the copies of
later steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from rlk.ir.dims import fixed_extent
from rlk.ir.nodes import Dot, Let, Reduce, Value
from rlk.ir.types import DType
from rlk.lower.common.contract import Contraction, Factor, contractions_of_loads
from rlk.lower.common.emitted import From
from rlk.lower.common.lines import Line
from rlk.lower.common.one_hot import one_hot_sums
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.tilelang import text
from rlk.lower.tilelang.contract import NOWHERE, OF_COPIES, Factors
from rlk.lower.tilelang.memory import WithMemory
from rlk.lower.tilelang.plan import accumulated_columns, accumulated_rows, copying, in_parts, refused
from rlk.passes.walk import backward_slice

DEPTH = 64  # elements of 16 bits in a row of the hardware's widest swizzle
VECTOR = 8  # elements of one cp.async
ROWS = 64  # rows of a wgmma
BEHIND = 2  # stages with wgmmas in flight while others are filled
ABBREVIATIONS = {DType.BF16: "bf16", DType.F16: "fp16"}
_STRIDES = (From.STRIDE, From.OUTER_STRIDE, From.INNER_STRIDE)


@dataclass(frozen=True, slots=True)
class Side:
    """A factor, the thread-value layout of its rows, and the offset of its first row in a stage."""

    factor: Factor
    thread_values: ThreadValues
    first: int


class Ring(Factors):
    """The part of an emitter that writes a kernel around its one contraction."""

    def __init__(self, emitter: WithMemory) -> None:
        plan = emitter.plan
        super().__init__(emitter, contractions_of_loads(plan.kernel, plan.target, refused))
        emitter.names.taken |= OF_COPIES
        self.contraction = self.only()
        rows, columns = self.sides()
        self.rows, self.columns = Side(*rows, 0), Side(*columns, rows[1].length)
        self.lines = rows[1].length + columns[1].length
        self.asked = self.plan.schedule.stages * self.lines * DEPTH * 2
        self.sums = ""
        sums = one_hot_sums(self.plan.kernel).items()
        self.one_hot = {v: p for v, p in sums if p.lane == self.columns.thread_values.axis}
        self.waiting = {let.value for p in self.one_hot.values() for let in p.inside}

    def only(self) -> Contraction:
        """Return the kernel's contraction, which no loop repeats."""
        top = [let.value for let in self.plan.kernel.body.lets if isinstance(let.node, Dot)]
        if len(self.of) != 1 or len(top) != 1 or self.of[top[0]].stop is not None:
            raise refused("another number than one of contractions in a pipeline", self.plan.target)
        found = self.of[top[0]]
        if found.model not in self.plan.block.dots or self.decl(found.a).type.dtype not in ABBREVIATIONS:
            raise refused(f"a contraction by {found.model.value} in a pipeline", self.plan.target)
        return found

    def sides(self) -> tuple[tuple[Factor, ThreadValues], tuple[Factor, ThreadValues]]:
        """Return the factor with the instruction's rows, and the other one."""
        given = [(f, self.side(f)) for f in (self.contraction.a, self.contraction.b)]
        found = [each for each in given if each[1] == accumulated_rows(each[1])]
        other = [each for each in given if each[1] == accumulated_columns(each[1])]
        if len(found) != 1 or len(other) != 1 or found[0][1].length * 2 != self.plan.threads:
            raise refused("accumulators in another layout than the instruction's", self.plan.target)
        return found[0], other[0]

    # --- the kernel -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write the contraction, and after it the rest of the kernel, in parts."""
        e, whole = self.e, self.plan
        self.plan = copying(whole)
        e.restart(self.plan)
        e.memory.write_coordinates()
        needed = self.needed()
        e.block([let for let in self.plan.kernel.body.lets if let.value in needed])
        self.multiplied()
        self.plan = in_parts(whole, self.rows.thread_values)
        with e.inner(f"for part in tl.unroll({self.rows.thread_values.count}):"):
            e.restart(self.plan)
            e.memory.write_coordinates()
            lets = self.plan.kernel.body.lets
            first = self.backward_slice(self.one_hot) if self.one_hot else frozenset()
            e.block([let for let in lets if let.value in first])
            e.block([let for let in lets if let.value not in first])

    def pick(self, let: Let, reduce: Reduce) -> None:
        """Write a one-hot sum: -0.0 if no thread of a warp has the element."""
        e, one_hot = self.e, self.one_hot[let.value]
        made = e.let(let.name or "picked", text.variable("f32(-0.0)", DType.F32))
        ahead = e.let(
            "ahead", text.variable(f"tl.int64({e[one_hot.wanted]}) - {e[one_hot.first]}", DType.I64)
        )
        length = self.columns.thread_values.length
        with e.inner(f"if {e.call('any_lane', f'({ahead} >= 0) & ({ahead} < {length})')}:"):
            self.waiting -= {each.value for each in one_hot.inside}
            e.block(one_hot.inside)
            e.reduce(let, reduce)
            e.line(f"{made} = {e.text[let.value]}")
        e.text[let.value] = made

    def needed(self) -> frozenset[Value]:
        """Return the values of the factors' addresses."""
        given: list[Value] = []
        for factor in (self.contraction.a, self.contraction.b):
            guard = () if factor.load.guard is None else (factor.load.guard,)
            given += [*factor.load.index, *guard, *factor.base]
        return self.backward_slice(given)

    def backward_slice(self, values: Iterable[Value]) -> frozenset[Value]:
        """Return some values with their backward slices."""
        return frozenset(backward_slice(values, {let.value: let for let in self.plan.kernel.body.lets}))

    def dot(self, let: Let) -> None:
        """Write a part of the product: the accumulators in the order of the lists."""
        own = self.plan.lists(self.e.tile(let.value).axes)
        self.e.current = own
        columns = self.columns.thread_values.length // 4
        assert [s.axis for s in own] == [self.columns.thread_values.axis] and own[0].count == columns
        self.e.value(let, "acc", lambda: f"{self.sums}[c // 2 * 4 + part * 2 + c % 2]")

    # --- the loop -------------------------------------------------------------------------------------------

    def multiplied(self) -> None:
        """Write the loop over the contracted axis; the product is left in accumulators."""
        e, stages = self.e, self.plan.schedule.stages
        length = fixed_extent(self.contraction.over, dict(self.plan.signature.extents))
        if length is None:
            what = f"a pipeline of steps along the dynamic axis {self.contraction.over}"
            raise refused(what, self.plan.target, instead="an axis without dynamic=True")
        steps, ahead = -(-length // DEPTH), stages - BEHIND
        count = self.rows.thread_values.count * self.columns.thread_values.count
        dtype = self.decl(self.rows.factor).type.dtype
        self.ring, self.length = e.names.fresh("ring"), length
        shape = (stages, self.lines * DEPTH)
        e.storage.append(Line(f'{self.ring} = tl.alloc_shared({shape}, "{text.TYPES[dtype]}", "shared.dyn")'))
        self.sums = e.stored("sums", DType.F32, count)
        tiles = [e.names.fresh(f"{side.factor.name}_tile") for side in (self.rows, self.columns)]
        e.storage += [Line(f"{name} = tl.alloc_wgmma_desc()") for name in tiles]
        vectors = [self.vectors(side) for side in (self.rows, self.columns)]
        with e.inner(f"for c in tl.unroll({count}):"):
            e.line(f"{self.sums}[c] = f32(0.0)")
        with e.inner(f"for step in tl.unroll({ahead}):"):
            self.filled(vectors, "step", "step", steps if steps < ahead else None)
        with e.inner(f"for step in tl.serial(0, {steps}):"):
            e.line(f"tl.ptx_wait_group({ahead - 1})")
            e.line("tl.sync_threads()")
            self.multiplies(tiles, f"step % {stages}", count, dtype)
            self.filled(vectors, f"(step + {ahead}) % {stages}", f"(step + {ahead})", steps)
            e.line("tl.wait_wgmma(1)  # the stage that is filled next has been read")
        e.line("tl.wait_wgmma(0)")
        e.line(f"tl.warpgroup_fence_operand({self.sums}, num_regs={count})")

    def multiplies(self, tiles: list[str], stage: str, count: int, dtype: DType) -> None:
        """Write the instructions of a step: 16 elements after the others into the same accumulators."""
        e, kind = self.e, ABBREVIATIONS[dtype]
        for name, side in zip(tiles, (self.rows, self.columns), strict=True):
            first = f"tl.address_of({self.ring}[{stage}, {side.first * DEPTH}])"
            e.line(f"tl.initialize_wgmma_descriptor({name}, {first}, 1, 1, 64)")
        e.line(f"tl.warpgroup_fence_operand({self.sums}, num_regs={count})")
        e.line("tl.fence_proxy_async()  # the tensor core sees what threads copied")
        e.line("tl.warpgroup_arrive()")
        group = f"thread // {2 * ROWS} * {ROWS * DEPTH * 2 // 16} + "  # descriptors count 16 bytes
        shape = f"m{ROWS}n{self.columns.thread_values.length}k16"
        with e.inner(f"for k in tl.unroll({DEPTH // 16}):"):
            e.line(
                f'tl.ptx_wgmma_ss("float32", "{shape}", True, True, "{kind}", "{kind}", "fp32", '
                f"{tiles[0]}.data, {group}k * 2, {tiles[1]}.data, k * 2, {self.sums}.data, 0, True, 1, 1)"
            )
        e.line("tl.warpgroup_commit_batch()")

    def vectors(self, side: Side) -> tuple[Side, str, int]:
        """Write the offset in its tensor of each row that a thread copies vectors of."""
        e = self.e
        e.current = self.plan.lists((side.thread_values.axis,))
        name = e.stored(f"{side.factor.name}_from", DType.I64, e.size)
        e.each(f"{name}[{'c' if e.current else '0'}] = {self.start(side.factor)}")
        count = e.size
        return side, name, count

    def filled(self, vectors: list[tuple[Side, str, int]], stage: str, step: str, steps: int | None) -> None:
        """Write the copy of a step, if there is one, and the commit of its cp.async group."""
        e = self.e
        with nullcontext() if steps is None else e.inner(f"if {step} < {steps}:"):
            for side, name, count in vectors:
                with e.inner(f"for c in tl.unroll({count}):"):
                    self.copied(side, f"{name}[c]", stage, step)
        e.line("tl.ptx_commit_group()")

    def copied(self, side: Side, start: str, stage: str, step: str) -> None:
        """Write the copy of one vector of a factor, or of its elements where memory has no vectors."""
        e, decl = self.e, self.decl(side.factor)
        rows, lanes = self.plan.threads * VECTOR // DEPTH, DEPTH // VECTOR
        e.line(f"row = {side.first} + c * {rows} + thread // {lanes}")
        e.line(f"k = {step} * {DEPTH} + thread % {lanes} * {VECTOR}")
        e.line(f"to = row * {DEPTH} + (thread % {lanes} ^ row % {lanes}) * {VECTOR}")
        there = f"{start} != {NOWHERE}"
        if self.length % DEPTH:
            there = f"({there}) & (k < {self.length})"
        if self.aligned(side.factor):
            here = f'tl.access_ptr({self.ring}[{stage}, to], "w", {VECTOR})'
            source = f'tl.access_ptr({decl.name}[{start} + k], "r", {VECTOR})'
            e.line(f"tl.ptx_cp_async({here}, {source}, {VECTOR}, predicate={there})")
            return
        along = "tl.int64(k + i)"
        if decl.name in self.plan.signature.strided or side.factor.at < len(decl.type.axes) - 1:
            along += f" * {e.memory.stride(decl, side.factor.at)}"
        there = f"({start} != {NOWHERE}) & (k + i < {self.length})"
        zero = f'tl.Cast("{text.TYPES[decl.type.dtype]}", 0)'
        with e.inner(f"for i in tl.serial({VECTOR}):"):
            read = f"tl.if_then_else({there}, {decl.name}[{start} + {along}], {zero})"
            e.line(f"{self.ring}[{stage}, to + i] = {read}")

    def aligned(self, factor: Factor) -> bool:
        """Return whether vectors of a factor are known to be aligned to 16 bytes."""
        decl, known = self.decl(factor), self.plan.signature.divisible
        given = self.e.memory.arguments.items()
        strides = {name for name, a in given if a.source == decl.name and a.kind in _STRIDES}
        whole = self.length % VECTOR == 0 and not factor.base and factor.at == len(decl.type.axes) - 1
        return whole and decl.name not in self.plan.signature.strided and {decl.name, *strides} <= known
