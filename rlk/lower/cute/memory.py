"""Global loads and stores of a thread: tensors, tile coordinates, predicates, error words."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.dims import Axis, fixed_extent, union
from rlk.ir.nodes import Decl, Let, Load, Role, Store, Value
from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.arguments import Arguments
from rlk.lower.common.names import axis_name, stride_name
from rlk.lower.common.spelling import row_number
from rlk.lower.common.thread_values import TiledAxis
from rlk.lower.cute import text
from rlk.lower.cute.plan import refused
from rlk.lower.cute.writer import Writer

ERRORS = abi.ERRORS.name


@dataclass(frozen=True, slots=True)
class Span:
    """Elements of a list from `first` on, up to `end`, in text."""

    end: str
    first: str = "0"

    def __str__(self) -> str:
        return self.end if self.first == "0" else f"{self.first}, {self.end}"


class Memory(Arguments):
    """The part of an emitter for global memory: tensors, and the arguments of their shapes."""

    def __init__(self, emitter: Writer) -> None:
        self.e = emitter
        self.plan = emitter.plan
        super().__init__(emitter.plan.kernel, emitter.plan.signature, emitter.checks)
        self.together: tuple[frozenset[Axis], str] | None = None  # two axes, and the predicate of both
        self.span: Span | None = None  # of a thread's list that is written now; None: all of it
        self.writer = ""  # predicate of the thread that stores row values
        for decl in self.plan.kernel.params:
            self.e.names.tensors.add(decl.name)
            self.e.names.taken |= {decl.name, *(axis.name for axis in decl.type.axes)}

    def layout(self, decl: Decl) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the extents and strides of a tensor as the host writes them; the last dim has stride 1.

        One without dims is written as one element.
        """
        shape = tuple(self.extent(axis) for axis in decl.type.axes) or ("1",)
        count = len(shape)
        strides = [self.stride(decl, d) for d in range(count - 1)]
        return shape, (*strides, "1")

    def write_coordinate(self, tiled: TiledAxis, index: str) -> None:
        """Write a thread's indices of a parallel axis, and their bounds predicate."""
        name = axis_name(tiled.axis)
        self.coordinates[tiled.axis] = self.e.let(name, index)
        if not tiled.exact:
            end = self.extent(tiled.axis)
            self.inside[tiled.axis] = self.e.let(f"{name}_inside", f"{self.coordinates[tiled.axis]} < {end}")

    # --- accesses -------------------------------------------------------------------------------------------

    def load(self, load: Load, let: Let) -> None:
        self.e.value(let, load.param, self.read(load))

    def read(self, load: Load) -> str:
        """Return the load of one element."""
        dtype = self.decls[load.param].type.dtype
        axes = union(*(self.e.tile(i).axes for i in load.index))
        mask = self.mask(axes, load.guard)
        at = self.index(load.index)
        truth = dtype is DType.BOOL  # a byte in memory
        if mask is None:
            return f"{load.param}[{at}]{' != 0' * truth}"
        other = f"{'Uint8' if truth else text.TYPES[dtype]}(0)"
        if load.fill is not None:
            if truth:
                what = f"fill= of a load of {load.param}, a bool tensor"
                instead = "L.where(inside, value, fill)"
                raise refused(what, self.plan.target, instead=instead)
            other = self.e[load.fill]
        return f"{self.e.call('load_where', mask, load.param, at, other)}{' != 0' * truth}"

    def store(self, store: Store) -> None:
        axes = union(*(self.e.tile(i).axes for i in store.index))
        if self.e.listed(store.value) or any(map(self.e.listed, store.index)):
            self.store_list(store, axes)
            return
        mask = " & ".join(x for x in (self.mask(axes, store.guard), self.writer) if x)
        at = self.index(store.index)
        if mask:
            self.e.line(self.e.call("store_where", mask, store.param, at, self.written(store.value)))
        else:
            self.e.line(f"{store.param}[{at}] = {self.written(store.value)}")

    def written(self, value: Value) -> str:
        """Return an element as it is stored: a bool is a byte."""
        if self.e.tile(value).dtype is not DType.BOOL:
            return self.e[value]
        return self.e.call("select", self.e[value], "Uint8(1)", "Uint8(0)")

    def store_list(self, store: Store, axes: tuple[Axis, ...]) -> None:
        """Store a thread's list, two elements at once where they are contiguous."""
        assert self.e.fragment is not None
        mask = self.mask(axes, store.guard) or "Boolean(True)"
        span, at, x = (
            self.span or Span(str(self.e.fragment.count)),
            self.index(store.index),
            self.e[store.value],
        )
        if self.in_pairs(store):
            self.e.list_index, before = "c + 1", self.e.list_index
            other = self.e[store.value]
            self.e.list_index = before
            with self.e.inner(f"for c in cutlass.range_constexpr({span.first}, {span.end}, 2):"):
                self.e.line(self.e.call("store_pair_where", mask, store.param, at, x, other))
            return
        with self.e.inner(f"for c in cutlass.range_constexpr({span}):"):
            self.e.line(self.e.call("store_where", mask, store.param, at, x))

    def in_pairs(self, store: Store) -> bool:
        """Return whether elements 2 i and 2 i + 1 are contiguous, aligned, and share a predicate."""
        assert self.e.fragment is not None
        decl, known = self.decls[store.param], self.plan.signature.divisible
        strides = {stride_name(decl, d) for d in range(len(decl.type.axes) - 1)}
        extent = fixed_extent(decl.type.axes[-1], dict(self.plan.signature.extents))
        always = store.guard is None or not self.e.listed(store.guard)
        together = bool(self.e.fragment.lanes) and always and decl.type.axes[-1] == self.e.fragment.axis
        return together and extent is not None and extent % 2 == 0 and {decl.name, *strides} <= known

    def index(self, index: tuple[Value, ...]) -> str:
        """Return the coordinates of an element."""
        each = [self.coordinate(v) for v in index] or ["0"]
        return each[0] if len(each) == 1 else f"({', '.join(each)})"

    def coordinate(self, value: Value) -> str:
        if value in self.e.consts:
            return str(self.e.operand(value, -1))
        at = self.e[value]
        return f"{at}.to(Int32)" if self.e.tile(value).dtype is DType.I64 else at

    def mask(self, axes: tuple[Axis, ...], guard: Value | None) -> str | None:
        """Return the predicate of an access; None if it is always in bounds."""
        always = guard is None or self.e.consts.get(guard) == (1, DType.BOOL)
        try:
            terms = [] if guard is None or always else [self.e[guard]]
        except KeyError:  # a support of listed ids, in the epilogue of a head
            lacks = "an access in an epilogue whose guard is computed beside the product"
            raise refused(lacks, self.plan.target) from None
        checked = {axis for axis in self.inside if axis in axes}
        if self.together is not None and self.together[0] <= checked:
            checked -= self.together[0]
            terms.append(self.together[1])
        terms += [name for axis, name in self.inside.items() if axis in checked]
        return " & ".join(f"({t})" if " " in t else t for t in terms) or None

    def check(self, bad: Value, what: str) -> None:
        """Record an error code, and its row plus one, in the device's error words."""
        if self.e.listed(bad):
            raise refused(
                "L.check of each element of a tile", self.plan.target, instead="L.any(bad, over=axis)"
            )
        self.report(bad, what)

    def report(self, bad: Value, what: str) -> None:
        axes, code = self.e.tile(bad).axes, self.error_code(what)
        mask = " & ".join(x for x in (self.mask(axes, bad), self.writer) if x)
        self.e.line(self.e.call("report_where", mask, ERRORS, str(code), self.row(axes)))

    def owner(self, axis: Axis) -> str:
        """Return the index of a parallel axis."""
        return self.coordinates[axis]

    def row(self, axes: tuple[Axis, ...]) -> str:
        """Return the row of a thread plus one, for the error words."""
        return row_number((axis for axis in self.coordinates if axis in axes), self.owner) or "Int32(1)"

    # --- the signature --------------------------------------------------------------------------------------

    def tensors(self) -> tuple[Decl, ...]:
        return tuple(d for d in self.plan.kernel.params if d.role is not Role.SCALAR)
