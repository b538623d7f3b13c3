"""Verification of programs: every finding is collected with its place, and raised once."""

from __future__ import annotations

from rlk.errors import NOWHERE, Code, Diagnostic, Loc, SpecError
from rlk.ir.infer import infer
from rlk.ir.nodes import (
    Block,
    Const,
    Decl,
    Kernel,
    Let,
    Load,
    Loop,
    Merge,
    Program,
    Reduce,
    Result,
    Store,
    Stream,
    Value,
    operands,
)
from rlk.ir.types import DType, TileType, Type


def verify(program: Program) -> None:
    """Check scopes, types and stores of every kernel; raise one SpecError with all findings."""
    found: list[Diagnostic] = []
    for kernel in program.kernels:
        _Verifier(kernel, found).run()
    if found:
        raise SpecError.collected(tuple(found))


class _Verifier:
    """Walks one kernel and collects diagnostics."""

    def __init__(self, kernel: Kernel, found: list[Diagnostic]) -> None:
        self.kernel, self.found = kernel, found
        self.params: dict[str, Decl] = {d.name: d for d in kernel.params}
        self.types: dict[Value, Type] = {}
        self.scopes: list[set[Value]] = [set()]

    def run(self) -> None:
        self.block(self.kernel.body, NOWHERE)

    def note(self, code: Code, loc: Loc, **fields: object) -> None:
        self.found.append(Diagnostic(code, loc, tuple(fields.items())))

    def define(self, value: Value, type: Type, loc: Loc) -> None:
        if value in self.types:
            self.note(Code.VALUE_TWICE, loc, value=value)
        self.types[value] = type
        self.scopes[-1].add(value)

    def visible(self, value: Value) -> bool:
        return any(value in scope for scope in self.scopes)

    def block(self, block: Block, loc: Loc) -> None:
        for let in block.lets:
            self.let(let)
        for value in block.results:
            if not self.visible(value):
                self.note(Code.VALUE_UNDEFINED, block.lets[-1].loc if block.lets else loc, value=value)

    def let(self, let: Let) -> None:
        missing = [v for v in operands(let.node) if not self.visible(v)]
        for value in missing:
            self.note(Code.VALUE_UNDEFINED, let.loc, value=value)
        match let.node:
            case Loop() as loop:
                self.loop(loop, let)
            case Stream() as stream:
                self.scopes.append(set())
                for value, type in zip(stream.body.args, stream.types, strict=False):
                    self.define(value, type, let.loc)
                self.block(stream.body, let.loc)
                self.handed(stream, let.loc)
                self.scopes.pop()
            case _:
                pass
        if not missing:
            self.check_type(let)
        self.define(let.value, let.type, let.loc)

    def loop(self, loop: Loop, let: Let) -> None:
        self.scopes.append(set())
        step, *carried = loop.body.args
        start = self.types.get(loop.start)
        self.define(step, TileType(start.dtype if isinstance(start, TileType) else DType.I32), let.loc)
        for value, type in zip(carried, loop.types, strict=False):
            self.define(value, type, let.loc)
        self.block(loop.body, let.loc)
        yielded = tuple(self.types.get(v) for v in loop.body.results)
        if len(carried) != len(loop.types) or not self._agree(yielded, loop.types):
            carried_text = ", ".join(map(str, loop.types))
            self.note(Code.LOOP_TYPES, let.loc, carried=carried_text, yielded=", ".join(map(str, yielded)))
        self.scopes.pop()

    def handed(self, stream: Stream, loc: Loc) -> None:
        """Note a stream whose steps yield other types than they carry; a step has one element of the axis."""
        left = tuple(self.types.get(v) for v in stream.body.results)
        fits = len(left) == len(stream.types) == len(stream.init) == len(stream.body.args) and all(
            isinstance(x, TileType) and x.dtype is t.dtype and {*x.axes} <= {*t.axes, stream.axis}
            for x, t in zip(left, stream.types, strict=True)
        )
        if not fits:
            carried, yielded = (", ".join(map(str, types)) for types in (stream.types, left))
            self.note(Code.LOOP_TYPES, loc, carried=carried, yielded=yielded)

    @staticmethod
    def _agree(yielded: tuple[Type | None, ...], carried: tuple[TileType, ...]) -> bool:
        """Return whether a body yields what it carries; axes may come in another order."""
        return len(yielded) == len(carried) and all(
            isinstance(y, TileType) and y.dtype is c.dtype and set(y.axes) == set(c.axes)
            for y, c in zip(yielded, carried, strict=True)
        )

    def check_type(self, let: Let) -> None:
        match let.node:
            case Const():
                return
            case Load(param=name) | Store(param=name) if name not in self.params:
                self.note(Code.PARAM_UNKNOWN, let.loc, name=name)
                return
            case Merge(states=states, over=over) if not states:
                self.note(Code.MERGE_NEEDS_STATES, let.loc, axis=over)
                return
            case Reduce() | Merge() | Result() | _:
                pass
        try:
            computed = infer(let.node, self.types, self.params, let.loc)
        except SpecError as error:
            self.found += error.diagnostics
            return
        if computed != let.type:
            self.note(Code.TYPE_WRONG, let.loc, value=let.value, declared=let.type, computed=computed)
