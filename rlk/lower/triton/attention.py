"""Fused attention (back-to-back GEMM): 2-D tiles, the streamed axis outer in factors from memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rlk.errors import Loc, LoweringError
from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Dot, Let, Load, Loop, Select, Value, operands
from rlk.ir.types import tile_axes
from rlk.lower.common import abi
from rlk.lower.common.contract import Contraction
from rlk.lower.common.names import axis_name
from rlk.lower.triton.addresses import Addressed
from rlk.lower.triton.descriptors import Descriptors
from rlk.lower.triton.masks import is_whole, masks
from rlk.passes.walk import walk


class Attention:
    """The part of an emitter for contractions whose first factor is in registers.

    turned: the loads of the other factors. Their tiles have the streamed axis as the outer dim, where all
    other values have it as the inner one: their addresses are written once more that way.
    never_materialized: loads that only such a tile uses as fill values; values that only masks of a
    loop need, or addresses that TMA computes. masked: the selects of partial steps, with the slice of
    their condition. descriptors: tensor descriptors of TMA loads.
    """

    def __init__(self, emitter: Addressed) -> None:
        self.e = emitter
        self.plan = emitter.plan
        self.of: dict[Value, Contraction] = {}
        self.one_loop = False
        self.lets = {let.value: let for let in walk(self.plan.kernel.body)}
        dots = [let for let in self.lets.values() if isinstance(let.node, Dot)]
        self.turned = frozenset(self.factors(let)[1] for let in dots)
        loads = {value: self.lets[value].node for value in self.turned}
        fills = {node.fill for node in loads.values() if isinstance(node, Load)}
        others = {v for value, let in self.lets.items() if value not in loads for v in operands(let.node)}
        self.never_materialized = frozenset(
            v for v in fills if v is not None and v not in others and self.loaded(v)
        )
        self.again: dict[Value, str] = {}
        self.masked: dict[Value, tuple[Let, ...]] = {}
        self.partial: dict[Value, tuple[Value, str, str | None]] = {}
        self.descriptors = Descriptors(emitter)

    def loaded(self, value: Value) -> bool:
        """Return whether a value is a load."""
        return isinstance(self.lets[value].node, Load)

    def leave(self) -> None:
        """End the scope of a region: no name outlives it."""
        self.again.clear()

    def factors(self, let: Let) -> tuple[Value, Value]:
        """Return the factor with the rows, and the other one, which is in memory."""
        dot = let.node
        assert isinstance(dot, Dot)
        if dot.model is not DotModel.CHAIN16:
            raise _unsupported(let.loc, "a contraction of f32 beside one of computed factors")
        of_rows, other = (dot.a, dot.b) if self.plan.outer in self.axes(dot.a) else (dot.b, dot.a)
        streamed = any(axis.chunk is not None for axis in self.axes(other))
        if self.plan.outer in self.axes(other) or not self.loaded(other) or not streamed:
            raise _unsupported(let.loc, "a contraction of two factors of which none is a chunk of an input")
        return of_rows, other

    def axes(self, value: Value) -> tuple[Axis, ...]:
        return tile_axes(self.e.types[value])

    def streamed(self, factor: Value) -> Axis:
        """Return the axis that is the outer dim of a factor from memory."""
        return next(axis for axis in self.axes(factor) if axis.chunk is not None)

    # --- text -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Write the indices of the axes that are only contracted, and which of them there are.

        Declares the strides of all factors: a host passes the same, whatever form their addresses take.
        """
        for value in sorted(self.turned):
            load = self.lets[value].node
            assert isinstance(load, Load)
            decl = self.e.addresses.decls[load.param]
            for d in range(len(decl.type.axes) - 1):
                if not (d == 0 and abi.has_two_row_strides(decl, self.plan.signature)):
                    self.e.addresses.stride(decl, d)
        extents = dict(self.plan.signature.extents)
        tiled = {s.axis for s in self.plan.tiled}
        for dim in self.plan.dims:
            if dim.axis not in tiled and dim.axis.chunk is None:
                name, indices = axis_name(dim.axis), self.e.addresses.indices(dim.axis)
                self.e.addresses.coordinates[dim.axis] = self.e.let(name, indices)
                if extents[dim.axis.name] != dim.length:
                    inside = self.e.let(f"{name}_inside", f"{name} < {extents[dim.axis.name]}")
                    self.e.addresses.inside[dim.axis] = inside

    def dot(self, let: Let) -> str:
        """Write a contraction of whole tiles, into its accumulator if it has one; return its name."""
        dot = let.node
        assert isinstance(dot, Dot)
        of_rows, other = self.factors(let)
        turned = self.e[other] if self.streamed(other) == dot.over else f"{self.e[other]}.T"
        onto = "" if dot.onto is None else f", {self.e.whole(dot.onto, self.e.tile(let.value).axes)}"
        if onto and fixed_extent(dot.over, dict(self.plan.signature.extents)) is not None:
            onto += ", max_num_imprecise_acc=1"  # see contract.py: a loop of one step is removed
        return self.e.let(let.name or "acc", f"tl.dot({self.e[of_rows]}, {turned}{onto})")

    def enter(self, loop: Loop) -> None:
        """Write the TMA descriptors of a loop's streamed factors, and the bounds of its masked steps."""
        self.descriptors.describe(loop.body.lets)
        if not is_whole(loop):
            return
        found = masks(loop, self.reads)
        self.never_materialized |= found.unread
        self.masked |= found.choices
        if found.choices:
            assert loop.full is not None
            step = loop.body.args[0]
            full = self.e.bound(loop.full, "tl.min")
            late = None if loop.first is None else self.e.bound(loop.first, "tl.max")
            self.partial |= dict.fromkeys(found.choices, (step, full, late))

    def reads(self, let: Let) -> Iterable[Value]:
        """Return the operands of a let; for a TMA load the values of its first row and end."""
        tma_tile = self.plan.tma_tiles.get(let.value)
        if tma_tile is None:
            return operands(let.node)
        assert isinstance(let.node, Load)
        return (
            tma_tile.first,
            tma_tile.end,
            *(v for d, v in enumerate(let.node.index) if d not in tma_tile.dims),
        )

    def choice(self, let: Let) -> str:
        """Write a mask (a select by bounds) whose condition only masked steps compute; return its name."""
        assert isinstance(let.node, Select)
        rare, (step, full, late) = self.masked[let.value], self.partial[let.value]
        name = self.e.let(let.name or "chosen", self.e.whole(let.node.a, self.e.tile(let.value).axes))
        behind_full = f"{self.e[step]} >= {full}"
        some = behind_full if late is None else f"({self.e[step]} < {late}) | ({behind_full})"
        waiting, self.never_materialized = (
            self.never_materialized,
            self.never_materialized - {each.value for each in rare},
        )
        with self.e.inner(f"if {some}:"):
            self.e.block(rare)
            self.e.line(f"{name} = {self.e.expression(let)}")
        self.never_materialized = waiting
        return name

    def factor(self, let: Let) -> str:
        """Write the load of a factor from memory, streamed axis outer; return its name."""
        assert isinstance(let.node, Load)
        axis = self.streamed(let.value)
        if let.value in self.descriptors.of:
            return self.descriptors.load(let)
        with self.streamed_outer(axis):
            for value in operands(let.node):
                self.write_again(value, axis)
            return self.e.addresses.load(let.node, let)

    @contextmanager
    def streamed_outer(self, axis: Axis) -> Iterator[None]:
        """Let values have a streamed axis as their outer dim."""
        before, text = self.plan, self.e.text
        dims = tuple(d for d in before.dims if d.axis != before.outer)
        self.e.plan = self.e.addresses.plan = replace(before, dims=dims, outer=axis)
        self.e.text = {**text, **self.again}
        yield
        self.e.plan = self.e.addresses.plan = before
        self.e.text = text

    def write_again(self, value: Value, axis: Axis) -> None:
        """Write a value with its backward slice, as far as it varies along an axis."""
        if axis not in self.axes(value) or value in self.again:
            return
        let = self.lets[value]
        for operand in operands(let.node):
            self.write_again(operand, axis)
        if isinstance(let.node, Load):
            self.e.text[value] = self.e.addresses.load(let.node, let)
        else:
            self.e.node(let)
        self.again[value] = self.e.text[value]


def _unsupported(loc: Loc, what: str) -> LoweringError:
    instead = "one factor of each contraction that is a 16-bit chunk of an input: x[v] of the stream"
    return LoweringError(what, instead, loc, backend="triton")
