"""Guards: the facts of a call's dynamic extents that a choice of code read, in the order in which it did.

A choice is made once with traced extents, which record the arithmetic on them and the outcome of each
comparison. Other extents with the same outcomes get the same choice: it is not made again for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

Number = int | float
Step = tuple[str, Any, Any]
"""An operation and its operands, the numbers of earlier steps: or EXTENT and a name; CONSTANT and a number;
GUARD, a step and its outcome."""

EXTENT, CONSTANT, GUARD = "extent", "constant", "is"
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_, "|": operator.or_,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
BITS = "bits"


@dataclass(frozen=True, slots=True)
class Choice:
    """The recorded reads of dynamic extents, and the extents that the choice was made for."""

    steps: tuple[Step, ...]
    extents: tuple[tuple[str, int], ...]

    def holds(self, extents: Mapping[str, int]) -> bool:
        """Return whether extents have the outcome of every guard: the choice is theirs too."""
        values: list[Any] = []
        for operation, a, b in self.steps:
            if operation == GUARD:
                if values[a] != b:
                    return False
                values.append(None)
            elif operation == EXTENT:
                values.append(extents[a])
            elif operation == CONSTANT:
                values.append(a)
            elif operation == BITS:
                values.append(values[a].bit_length())
            else:
                try:
                    values.append(BINARY[operation](values[a], values[b]))
                except ZeroDivisionError:  # the choice divided by an extent that is 0 here
                    return False
        return True


def traced_choice(extents: Mapping[str, int], make: Callable[[Mapping[str, int]], object]) -> Choice:
    """Return what `make` reads of extents. It is given numbers that record what is done with them.

    What it returns is hashed, and so read. Where it does with them what cannot be recorded, every extent is
    a fact of its own. Raises what `make` raises.
    """
    trace = _Trace()
    given = {name: _Traced(trace, trace.step(EXTENT, name), n) for name, n in extents.items()}
    try:
        hash(make(cast(Mapping[str, int], given)))
    except (TypeError, AttributeError):
        trace = _Trace()
        hash(make(extents))
        for name, n in extents.items():
            _Traced(trace, trace.step(EXTENT, name), n).guarded()
    return Choice(tuple(trace.needed()), tuple(sorted(extents.items())))


class _Trace:
    """Steps as they are recorded, each once."""

    def __init__(self) -> None:
        self.steps: dict[Step, int] = {}

    def step(self, operation: str, a: Any, b: Any = None) -> int:
        """Return the number of a step."""
        # a step of 1.0 is not one of 1, though both are equal as keys
        key = (operation, a, type(a).__name__ if operation == CONSTANT else b)
        return self.steps.setdefault(key, len(self.steps))

    def needed(self) -> Iterator[Step]:
        """Yield the steps that guards read, in their order, with their own numbers."""
        every = list(self.steps)
        used: set[int] = set()
        for at in reversed(range(len(every))):
            if every[at][0] == GUARD or at in used:
                used |= {at, *_operands(every[at])}
        numbers = {at: i for i, at in enumerate(sorted(used))}
        for at in numbers:
            operation, a, b = every[at]
            if operation in BINARY:
                yield operation, numbers[a], numbers[b]
            elif operation in (GUARD, BITS):
                yield operation, numbers[a], b
            else:
                yield operation, a, None


def _operands(step: Step) -> tuple[int, ...]:
    """Return the numbers of the steps that a step reads."""
    operation, a, b = step
    if operation in BINARY:
        return a, b
    return (a,) if operation in (GUARD, BITS) else ()


def _compared(name: str, reverse: bool = False) -> Any:
    def compare(self: _Traced, other: object) -> Any:
        made = self.combined(name, other, reverse)
        return made if made is NotImplemented else made.guarded()

    return compare


def _computed(name: str, reverse: bool = False) -> Any:
    def compute(self: _Traced, other: object) -> Any:
        return self.combined(name, other, reverse)

    return compute


class _Traced:
    """A number computed of dynamic extents. It is no int: an operation that is not recorded fails.

    `isinstance` does not fail, and says no; nothing that chooses code may ask it of an extent.
    """

    __slots__ = ("at", "trace", "value")

    def __init__(self, trace: _Trace, at: int, value: Number) -> None:
        self.trace, self.at, self.value = trace, at, value

    def combined(self, name: str, other: object, reverse: bool) -> Any:
        """Return the result of an operation with another number."""
        if isinstance(other, _Traced):
            at, value = other.at, other.value
        elif isinstance(other, int | float):
            at, value = self.trace.step(CONSTANT, other), other
        else:
            return NotImplemented
        pairs = ((self.at, self.value), (at, value))
        (a, x), (b, y) = reversed(pairs) if reverse else pairs
        return _Traced(self.trace, self.trace.step(name, a, b), BINARY[name](x, y))

    def guarded(self) -> Any:
        """Record the value as a guard, and return it."""
        self.trace.step(GUARD, self.at, self.value)
        return self.value

    def bit_length(self) -> _Traced:
        """Return the number of its bits."""
        assert isinstance(self.value, int)
        return _Traced(self.trace, self.trace.step(BITS, self.at), self.value.bit_length())

    def __neg__(self) -> Any:
        return 0 - self

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash(self.guarded())

    def __str__(self) -> str:
        return str(self.guarded())

    def __index__(self) -> int:
        return operator.index(self.guarded())

    def __float__(self) -> float:
        return float(self.guarded())

    __int__ = __index__
    __repr__ = __str__
    __add__, __radd__ = _computed("+"), _computed("+", True)
    __sub__, __rsub__ = _computed("-"), _computed("-", True)
    __mul__, __rmul__ = _computed("*"), _computed("*", True)
    __truediv__, __rtruediv__ = _computed("/"), _computed("/", True)
    __floordiv__, __rfloordiv__ = _computed("//"), _computed("//", True)
    __mod__, __rmod__ = _computed("%"), _computed("%", True)
    __lshift__, __rlshift__ = _computed("<<"), _computed("<<", True)
    __rshift__, __rrshift__ = _computed(">>"), _computed(">>", True)
    __and__, __rand__ = _computed("&"), _computed("&", True)
    __or__, __ror__ = _computed("|"), _computed("|", True)
    __lt__, __le__, __gt__, __ge__ = (_compared(name) for name in ("<", "<=", ">", ">="))
    __eq__, __ne__ = _compared("=="), _compared("!=")
