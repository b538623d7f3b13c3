"""The interface of a kernel's emitter to the parts of it: names, lines, lists, operands, nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from rlk.ir.dims import Axis
from rlk.ir.nodes import Let, Loop, Reduce, Value
from rlk.ir.types import DType, TileType, Type
from rlk.lower.common.lines import Line
from rlk.lower.common.names import Names
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.tilelang.plan import TilePlan
from rlk.lower.tilelang.trees import Folding


class LoopBody(Protocol):
    """The writer of loop bodies: contractions have steps of their own there."""

    def body(self, loop: Loop) -> None: ...


class Writer(Protocol):
    """Everything that memory, loops and contractions use of an emitter."""

    plan: TilePlan
    names: Names
    types: dict[Value, Type]
    text: dict[Value, str]
    repeated: dict[Value, Callable[[], str]]
    consts: dict[Value, tuple[int, DType]]
    many: dict[Value, tuple[str, ...]]
    yields: dict[tuple[Value, int], str]
    checks: list[str]
    storage: list[Line]
    current: tuple[ThreadValues, ...]
    nested: bool

    @property
    def dots(self) -> LoopBody: ...

    @property
    def size(self) -> int: ...

    def line(self, statement: str) -> None: ...

    def lines_of(self, statements: Sequence[str]) -> None: ...

    def let(self, hint: str, expression: str) -> str: ...

    def define(self, name: str, expression: str) -> None: ...

    def each(self, *statements: str) -> None: ...

    def inner(self, header: str) -> AbstractContextManager[None]: ...

    def stored(self, hint: str, dtype: DType, count: int) -> str: ...

    def variable(self, hint: str, dtype: DType) -> str: ...

    def uses(self, *names: str) -> None: ...

    def call(self, name: str, *operands: str) -> str: ...

    def tile(self, value: Value) -> TileType: ...

    def indexed(self, name: str, axes: tuple[Axis, ...]) -> str: ...

    def __getitem__(self, value: Value) -> str: ...

    def plain(self, value: Value) -> str: ...

    def lists(self, let: Let) -> tuple[ThreadValues, ...]: ...

    def block(self, lets: Sequence[Let]) -> None: ...

    def node(self, let: Let) -> None: ...

    def value(self, let: Let, hint: str, expression: Callable[[], str]) -> None: ...

    def reduce(self, let: Let, reduce: Reduce) -> None: ...

    def fold(
        self, name: str, about: str, folding: Folding, over: Axis, order: Sequence[int],
        terms: Sequence[tuple[str, str, DType]], axes: tuple[Axis, ...],
    ) -> tuple[str, ...]: ...  # fmt: skip

    def restart(self, plan: TilePlan) -> None: ...
