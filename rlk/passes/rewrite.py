"""Replay of a block, node by node, into a new builder; all passes change programs this way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlk.ir.build import Builder
from rlk.ir.nodes import (
    Block,
    Const,
    Kernel,
    Let,
    Loop,
    Node,
    Program,
    Stream,
    Value,
    bounds_of,
    with_operands,
)
from rlk.ir.types import TileType

Mapping = dict[Value, Value]
Rule = Callable[["Replay", Let], bool]


class Replay:
    """Copies lets into a builder under a renaming; a rule may replace single lets.

    A rule returns True if it replaced a let (and mapped its value); otherwise the let is copied.
    """

    def __init__(self, kernel: Kernel, rule: Rule) -> None:
        self.builder = Builder(params={d.name: d for d in kernel.params})
        self.renamed: Mapping = {}
        self.rule = rule

    def __getitem__(self, value: Value) -> Value:
        return self.renamed[value]

    def optional(self, value: Value | None) -> Value | None:
        return None if value is None else self.renamed[value]

    def block(self, lets: tuple[Let, ...]) -> None:
        """Replay lets into the innermost open block."""
        for let in lets:
            self.builder.loc = let.loc
            if not self.rule(self, let):
                self.copy(let)

    def copy(self, let: Let) -> None:
        """Append a let's node with renamed operands."""
        b = self.builder
        b.loc = let.loc
        match let.node:
            case Const(bits=bits):
                assert isinstance(let.type, TileType)
                made = b.fresh(let.type)
                b.open[-1].append(Let(made, Const(bits), let.type, let.name, let.loc))
                self.renamed[let.value] = made
            case Loop() as loop:
                self.renamed[let.value] = b.let(self.loop(loop), let.name)
            case Stream() as stream:
                streamed = self.stream(stream)
                b.loc = let.loc
                self.renamed[let.value] = b.let(streamed, let.name)
            case node:
                self.renamed[let.value] = b.let(self.node(node), let.name)

    def loop(self, loop: Loop) -> Loop:
        """Return a loop whose body is replayed in a region of its own."""
        b = self.builder
        init = tuple(self[v] for v in loop.init)
        start, stop = self[loop.start], self[loop.stop]
        full, first = self.optional(loop.full), self.optional(loop.first)
        with b.region() as lets:
            args = self.arguments(loop)
            self.block(loop.body.lets)
            results = tuple(self[v] for v in loop.body.results)
            exists = self.optional(loop.exists)
        body = Block(args, tuple(lets), results)
        return Loop(loop.axis, start, stop, init, loop.types, body, full, exists, first)

    def stream(self, stream: Stream) -> Stream:
        """Return a stream whose body is replayed in a region of its own."""
        begin, end, when, since, until, row, kept, after = (self.optional(v) for v in bounds_of(stream))
        init = tuple(self[v] for v in stream.init)
        states = [tuple(self[v] for v in f.after) for f in stream.folds]
        with self.builder.region() as lets:
            args = self.carried(stream.body.args, stream.types)
            self.block(stream.body.lets)
            folds = tuple(
                replace(f, inputs=tuple(self[v] for v in f.inputs), after=state)
                for f, state in zip(stream.folds, states, strict=True)
            )
            results = tuple(self[v] for v in stream.body.results)
        return replace(
            stream, body=Block(args, tuple(lets), results), folds=folds, init=init, begin=begin, end=end,
            when=when, since=since, until=until, row=row, kept=kept, after=after,
        )  # fmt: skip

    def arguments(self, loop: Loop) -> tuple[Value, ...]:
        """Declare the arguments of a loop's body: the step and the carried values."""
        b = self.builder
        step, *carried = loop.body.args
        self.renamed[step] = b.fresh(TileType(b.tile(self[loop.start]).dtype))
        return (self[step], *self.carried(carried, loop.types))

    def carried(self, args: Sequence[Value], types: tuple[TileType, ...]) -> tuple[Value, ...]:
        """Declare the values that a region receives from its last step."""
        for old, type in zip(args, types, strict=True):
            self.renamed[old] = self.builder.fresh(type)
        return tuple(self[v] for v in args)

    def node(self, node: Node) -> Node:
        """Return a node with renamed operands (nodes with regions and constants excepted)."""
        return with_operands(node, self.renamed.__getitem__)


class _Renumbered(Replay):
    """Replays every let with the type that it has: its operands are the same values by other numbers."""

    def copy(self, let: Let) -> None:
        if isinstance(let.node, Loop | Stream | Const):
            super().copy(let)
            return
        made = self.renamed[let.value] = self.builder.fresh(let.type)
        self.builder.open[-1].append(Let(made, self.node(let.node), let.type, let.name, let.loc))


def renumbered(kernel: Kernel) -> Kernel:
    """Return the kernel with its values numbered in the order of their definitions."""
    return _replayed(_Renumbered(kernel, lambda replay, let: False), kernel)


def rewrite(kernel: Kernel, rule: Rule) -> Kernel:
    """Return the kernel with a rule applied to every let, innermost regions included."""
    return _replayed(Replay(kernel, rule), kernel)


def _replayed(replay: Replay, kernel: Kernel) -> Kernel:
    replay.block(kernel.body.lets)
    return Kernel(kernel.name, tuple(replay.builder.params.values()), replay.builder.body())


def each(program: Program, change: Callable[[Kernel], Kernel]) -> Program:
    """Return the program with every kernel changed."""
    return replace(program, kernels=tuple(change(k) for k in program.kernels))
