"""The interface of a kernel's emitter to the parts of it: names, lines, operands, nodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from rlk.ir.dims import Axis
from rlk.ir.nodes import Let, Node, Value
from rlk.ir.types import DType, TileType, Type
from rlk.lower.common.contract import Contraction
from rlk.lower.common.names import Names
from rlk.lower.common.one_hot import OneHotSum
from rlk.lower.common.prelude import Helpers
from rlk.lower.triton.plan import TritonPlan
from rlk.passes.rotation import Window


class Contracting(Protocol):
    """Everything that addresses depend on of a kernel's contractions."""

    plan: TritonPlan
    of: dict[Value, Contraction]

    @property
    def one_loop(self) -> bool: ...


class Writer(Protocol):
    """Everything that addresses and contractions use of an emitter."""

    plan: TritonPlan
    names: Names
    types: dict[Value, Type]
    text: dict[Value, str]
    consts: dict[Value, tuple[int, DType]]
    helpers: Helpers
    checks: list[str]

    @property
    def nodes(self) -> Mapping[Value, Node]: ...

    @property
    def one_hot(self) -> Mapping[Value, OneHotSum]: ...

    @property
    def dots(self) -> Contracting: ...

    def line(self, statement: str) -> None: ...

    def let(self, hint: str, expression: str) -> str: ...

    def inner(self, header: str) -> AbstractContextManager[None]: ...

    def tile(self, value: Value) -> TileType: ...

    def shape(self, value: Value) -> tuple[int, ...]: ...

    def __getitem__(self, value: Value) -> str: ...

    def block(self, lets: tuple[Let, ...]) -> None: ...

    def node(self, let: Let) -> None: ...

    def lane(self, window: Window) -> str: ...

    def expression(self, let: Let) -> str: ...

    def bound(self, value: Value, pick: str) -> str: ...

    def whole(self, value: Value, axes: tuple[Axis, ...]) -> str: ...
