"""The interface of a kernel's emitter to the parts of it: names, lines, operands."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from rlk.ir.nodes import Let, Value
from rlk.ir.types import DType, TileType, Type
from rlk.lower.common.names import Names
from rlk.lower.cute.plan import Fragment, Placed


class Writer(Protocol):
    """Everything that reads and writes of memory use of an emitter."""

    @property
    def plan(self) -> Placed: ...

    fragment: Fragment | None
    list_index: str  # which element of lists is written now, in text
    names: Names
    types: dict[Value, Type]
    text: dict[Value, str]
    consts: dict[Value, tuple[int, DType]]
    checks: list[str]

    def line(self, statement: str) -> None: ...

    def let(self, hint: str, expression: str) -> str: ...

    def inner(self, header: str) -> AbstractContextManager[None]: ...

    def uses(self, *names: str) -> None: ...

    def call(self, name: str, *operands: str) -> str: ...

    def tile(self, value: Value) -> TileType: ...

    def listed(self, value: Value) -> bool: ...

    def each(self, expression: str) -> str: ...

    def __getitem__(self, value: Value) -> str: ...

    def operand(self, value: Value, beside: Value) -> str: ...

    def value(self, let: Let, hint: str, expression: str) -> None: ...
