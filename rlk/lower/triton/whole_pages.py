"""Steps of a stream that lie in one page of a table: the page is looked up once, not for every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlk.ir.dims import Part
from rlk.ir.nodes import Const, Extent, Fn2, Kernel, Let, Load, Loop, Map2, Node, Pos, Value, operands
from rlk.ir.types import DType, Type, tile_axes
from rlk.lower.common.tma_tiles import conjunction, is_multiple
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk

Nodes = Mapping[Value, Node]


def once_a_step(kernel: Kernel) -> Kernel:
    """Return the kernel with the page of a step looked up once, where pages hold whole steps.

    Rows past the end of a stream may read the page of those before it: loads of their elements are masked.
    """
    nodes = {let.value: let.node for let in walk(kernel.body)}
    rows = {value: row for value in nodes if (row := _row(nodes, value)) is not None}
    if not rows:
        return kernel
    made = simplify(rewrite(kernel, _Divided(rows, nodes)))
    nodes = {let.value: let.node for let in walk(made.body)}
    types = {let.value: let.type for let in walk(made.body)}
    guards = {v: terms for v in nodes if (terms := _terms_of_all_rows(made, nodes, types, v))}
    return simplify(rewrite(made, _Guarded(guards)))


@dataclass(frozen=True, slots=True)
class _Row:
    """The row of a quotient or remainder by `size`: `first`, that of its step, and its lane among `steps`."""

    first: Value
    lane: Value
    steps: int
    size: int


def _row(nodes: Nodes, value: Value) -> _Row | None:
    """Return the row that a value divides, if all rows of a step have one quotient."""
    node = nodes[value]
    if not isinstance(node, Map2) or node.fn not in (Fn2.DIV, Fn2.MOD):
        return None
    row, size = nodes.get(node.a), nodes.get(node.b)
    if not isinstance(row, Map2) or row.fn is not Fn2.ADD or not isinstance(size, Const):
        return None
    for first, lane in ((row.a, row.b), (row.b, row.a)):
        at = nodes.get(lane)
        if isinstance(at, Pos) and at.axis.part is Part.LANE and at.axis.split is None:
            steps = at.axis.chunk or 1
            if steps > 1 and size.bits % steps == 0 and is_multiple(first, steps, nodes):
                return _Row(first, lane, steps, size.bits)
    return None


@dataclass(frozen=True, slots=True)
class _Divided:
    """The rule: a quotient is that of the step's first row, a remainder its own and the lane."""

    rows: Mapping[Value, _Row]
    nodes: Nodes

    def __call__(self, replay: Replay, let: Let) -> bool:
        b, node = replay.builder, let.node
        if not isinstance(node, Map2):
            return False
        row = self.rows.get(let.value)
        if row is None:
            if not self.holds(node):
                return False
            replay.renamed[let.value] = b.const(True, DType.BOOL)
            return True
        whole = is_multiple(row.first, row.size, self.nodes)
        if node.fn is Fn2.DIV:
            step = self.multiplied(row) if whole else None
            made = b.let(Map2(Fn2.DIV, replay[row.first], replay[node.b])) if step is None else replay[step]
        elif whole:
            made = replay[row.lane]
        else:
            first = b.let(Map2(Fn2.MOD, replay[row.first], replay[node.b]))
            made = b.let(Map2(Fn2.ADD, first, replay[row.lane]), let.name)
        replay.renamed[let.value] = made
        return True

    def multiplied(self, row: _Row) -> Value | None:
        """Return what the first row is `size` times, if that is written."""
        node = self.nodes.get(row.first)
        if isinstance(node, Map2) and node.fn is Fn2.MUL:
            for a, b in ((node.a, node.b), (node.b, node.a)):
                by = self.nodes.get(b)
                if isinstance(by, Const) and by.bits == row.size:
                    return a
        return None

    def holds(self, node: Map2) -> bool:
        """Return whether a comparison asks for no more than that a remainder is one."""
        low, high = self.nodes.get(node.a), self.nodes.get(node.b)
        match node.fn:
            case Fn2.LE:
                return isinstance(low, Const) and low.bits == 0 and self.remainder(node.b) > 0
            case Fn2.LT:
                return isinstance(high, Const) and high.bits >= self.remainder(node.a) > 0
            case _:
                return False

    def remainder(self, value: Value) -> int:
        """Return the divisor of a remainder; 0 of another value."""
        node, row = self.nodes.get(value), self.rows.get(value)
        return row.size if row is not None and isinstance(node, Map2) and node.fn is Fn2.MOD else 0


@dataclass(frozen=True, slots=True)
class _Guarded:
    """The rule: loads keep these terms of their guards."""

    guards: Mapping[Value, tuple[Value, ...]]

    def __call__(self, replay: Replay, let: Let) -> bool:
        if let.value not in self.guards:
            return False
        assert isinstance(let.node, Load)
        first, *rest = (replay[v] for v in self.guards[let.value])
        for term in rest:
            first = replay.builder.let(Map2(Fn2.AND, first, term))
        load = replace(let.node, index=tuple(replay[v] for v in let.node.index), guard=first)
        replay.renamed[let.value] = replay.builder.let(load, let.name)
        return True


def _terms_of_all_rows(
    kernel: Kernel, nodes: Nodes, types: Mapping[Value, Type], value: Value
) -> tuple[Value, ...]:
    """Return the terms of a load's guard that are the same for all rows of a step, if those suffice; else ().

    They suffice where they bound an index, which is the same too, and where all that reads the result is
    loads with the other terms, and their guards.
    """
    load = nodes[value]
    if not isinstance(load, Load) or load.guard is None or load.fill is not None:
        return ()

    def varies(v: Value) -> bool:
        return v in types and any(axis.part is Part.LANE for axis in tile_axes(types[v]))

    terms = _terms(load.guard, nodes)
    kept = tuple(v for v in terms if not varies(v))
    bounded = any(
        isinstance(n := nodes[v], Map2) and n.fn is Fn2.LT and n.a in load.index
        and isinstance(nodes.get(n.b), Extent) for v in kept
    )  # fmt: skip
    others = frozenset(terms) - frozenset(kept)
    if any(map(varies, load.index)) or not bounded or not others:
        return ()
    return kept if _masked(kernel, nodes, value, others) else ()


def _masked(kernel: Kernel, nodes: Nodes, value: Value, terms: frozenset[Value]) -> bool:
    """Return whether a value reaches only the indices and the guards of loads that are masked by terms."""
    reached, ends = {value}, 0
    results = {v for let in walk(kernel.body) if isinstance(let.node, Loop) for v in let.node.body.results}
    for let in walk(kernel.body):
        if reached.isdisjoint(operands(let.node)):
            continue
        if isinstance(let.node, Load):
            if let.node.guard is None or let.node.fill is not None:
                return False
            if not terms <= frozenset(_terms(let.node.guard, nodes)):
                return False
            ends += 1
        elif isinstance(let.node, Map2) and (let.node.fn.compares or let.node.fn is Fn2.AND):
            reached.add(let.value)
        else:
            return False
    return ends > 0 and reached.isdisjoint(results)


def _terms(condition: Value, nodes: Nodes) -> tuple[Value, ...]:
    """Return the terms of a conjunction."""
    every = conjunction(condition, nodes)
    return tuple(v for v in every if not (isinstance(n := nodes.get(v), Map2) and n.fn is Fn2.AND))
