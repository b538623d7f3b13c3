"""Base of the three emitters: the statements of a kernel as data, names in scopes, and values as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlk.ir import fold
from rlk.ir.build import Builder
from rlk.ir.nodes import Kernel, Let, Merge, Value
from rlk.ir.types import DType, TileType, Type
from rlk.lower.common.lines import INDENT, Function, Line, notes_of, place_of
from rlk.lower.common.names import Names
from rlk.lower.common.prelude import Helpers
from rlk.lower.common.spelling import yielded_names
from rlk.schedule.axes import types_of


class StatementEmitter(ABC):
    """Writes the statements of one kernel; `helpers` collects the functions that they call, by name.

    text: of values that have a name. consts: bits and dtypes of those that are constants. many: the names of
    values with several results. place: the line of the spec that the next statements come from.
    """

    def __init__(self, kernel: Kernel, names: Names, helpers: Helpers, checks: list[str]) -> None:
        self.names, self.helpers, self.checks = names, helpers, checks
        self.types: dict[Value, Type] = types_of(kernel)
        self.text: dict[Value, str] = {}
        self.consts: dict[Value, tuple[int, DType]] = {}
        self.many: dict[Value, tuple[str, ...]] = {}
        self.yields = yielded_names(kernel)
        self.lines: list[Line] = []
        self.depth = 0
        self.place = ""

    @abstractmethod
    def __getitem__(self, value: Value) -> str:
        """Return the text of a value as an operand."""

    @abstractmethod
    def node(self, let: Let) -> None:
        """Write one node."""

    def line(self, statement: str) -> None:
        """Append a statement."""
        self.lines.append(Line(INDENT * self.depth + statement, self.place))

    def define(self, name: str, expression: str) -> None:
        """Append name = expression."""
        text = f"{INDENT * self.depth}{name} = {expression}"
        self.lines.append(Line(text, self.place, (name, expression)))

    def let(self, hint: str, expression: str) -> str:
        """Append name = expression and return the name."""
        name = self.names.fresh(hint)
        self.define(name, expression)
        return name

    @contextmanager
    def inner(self, header: str) -> Iterator[None]:
        """Indent what follows below a header; names given inside end with it."""
        self.line(header)
        self.depth += 1
        with self.names.scope():
            yield
        self.depth -= 1

    def uses(self, *names: str) -> None:
        """Note which prelude functions a line calls."""
        self.helpers.use(*names)

    def call(self, name: str, *operands: str) -> str:
        """Return the text of a call of a prelude function, and note the function."""
        return self.helpers.call(name, *operands)

    def tile(self, value: Value) -> TileType:
        """Return the type of a value that is a tile."""
        type = self.types[value]
        assert isinstance(type, TileType)
        return type

    def note(self, let: Let) -> None:
        """Note the place that the next lines come from, and write why they are there."""
        self.place = place_of(let.loc)
        self.lines += notes_of(let, self.depth)

    def block(self, lets: Sequence[Let]) -> None:
        """Write nodes in their order."""
        for let in lets:
            self.note(let)
            self.node(let)

    def merge_function(self, name: str, merge: Merge, dtypes: Sequence[DType], lone: str = "") -> Function:
        """Return the function that merges two states of a monoid: `ir.fold`'s definition on elements.

        The emitter has written nothing yet. lone: what follows the only result of a state of one component.
        """
        b = Builder()
        one, two = (tuple(b.fresh(TileType(dtype)) for dtype in dtypes) for _ in range(2))
        results = fold.merge(b, merge.monoid, one, two, merge.exp2)
        self.types = dict(b.types)
        arguments = tuple(self.names.fresh(f"{s}_{side}") for side in "ab" for s in merge.monoid.symbols)
        self.text.update(zip((*one, *two), arguments, strict=True))
        self.block(b.open[0])
        end = lone if len(results) == 1 else ""
        lines = (*self.lines, Line(f"return {', '.join(self[result] for result in results)}{end}"))
        return Function(name, arguments, f"The state of two disjoint sets: {merge.monoid}.", lines)
