"""The nodes of the tile IR: static single assignment, one region kind, no pointer, mask, thread or layout.

A value is an int, unique in its kernel. A `Block` is a list of `Let`s; `Loop` and `Stream` hold one. `Stream`
with its `Fold`s is a macro of the traced form; `passes.expand` rewrites it into `Loop`, `Reduce` and `Merge`.
The other nodes are the core that the oracle and every lowering run. Source locations and names of values take
no part in equality.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import field, replace
from enum import Enum

from rlk.errors import NOWHERE, Loc
from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.frozen import frozen
from rlk.ir.monoid import Monoid
from rlk.ir.tree import Ascending, Order
from rlk.ir.types import DType, TileType, Type

Value = int
MergeOrder = Order | Ascending


class Fn1(Enum):
    """Exact functions of one operand (correctly rounded where they round at all)."""

    NEG = "neg"
    ABS = "abs"
    NOT = "not"  # logical on bool, bitwise on integers
    SQRT = "sqrt"  # correctly rounded
    FLOOR = "floor"
    ISNAN = "isnan"

    __hash__ = object.__hash__


class Fn2(Enum):
    """Exact functions of two operands of one dtype; every float result is rounded once, to nearest even."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    # floats: correctly rounded; integers: only of a non-negative by a positive number, where rounding down
    # and truncation toward zero agree
    DIV = "div"
    MOD = "mod"  # integers: the remainder that goes with DIV
    MAX = "max"  # IEEE 754-2019 maximumNumber: NaN loses, -0.0 < +0.0
    MIN = "min"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHL = "shl"  # by less than the width of the dtype, as SHR
    SHR = "shr"  # arithmetic on i32 and i64, logical on u32
    LT = "lt"
    LE = "le"
    EQ = "eq"
    NE = "ne"
    MULHI = "mulhi"  # upper 32 bits of the u32 product

    __hash__ = object.__hash__

    @property
    def compares(self) -> bool:
        return self in COMPARISONS

    def domain(self, dtype: DType) -> str | None:
        """Return the rule for operands of a partial function of integers, in words; None: it is total."""
        match self:
            case Fn2.DIV | Fn2.MOD if dtype.is_int:
                return "a quotient, and its remainder, is of a number from 0 up by one from 1 up"
            case Fn2.SHL | Fn2.SHR:
                return f"{dtype} is shifted by 0 to {8 * dtype.bytes - 1}"
            case _:
                return None


COMPARISONS = frozenset({Fn2.LT, Fn2.LE, Fn2.EQ, Fn2.NE})


class MathFn(Enum):
    """Transcendental functions: their bits are those of a model."""

    EXP2 = "exp2"
    EXP = "exp"
    LOG2 = "log2"
    LOG = "log"
    EXPM1 = "expm1"
    LOG1P = "log1p"
    TANH = "tanh"
    ERF = "erf"
    SIGMOID = "sigmoid"
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    K3 = "k3"  # exp(d) - 1 - d, accurate for small d

    __hash__ = object.__hash__


class MathModel(Enum):
    """The definition of the bits of a transcendental function."""

    PORTABLE = "portable"  # rlk.ir.portable: fma and integer operations, the same on every machine
    SOFTMAX = "softmax"  # exp2 of a softmax fold: the target's validated hardware function, else PORTABLE
    SM90 = "sm90"  # ex2.approx.ftz.f32 of sm_90, modelled by a captured table


class Combine(Enum):
    """The operation of a Reduce. Only ADD on floats depends on an order."""

    ADD = "add"
    MAX = "max"
    MIN = "min"
    OR = "or"


# --- leaves ---


@frozen
class Param:
    """The value of a scalar parameter."""

    name: str


@frozen
class Const:
    """A constant, by its bit pattern in the value's dtype."""

    bits: int


@frozen
class Pos:
    """The index along an axis: i32[axis]. In a traced stream it counts from the start of the axis."""

    axis: Axis


@frozen
class Extent:
    """The number of indices of an axis, i32. Of a piece axis: the number of pieces."""

    axis: Axis


# --- elementwise ---


@frozen
class Map1:
    fn: Fn1
    x: Value


@frozen
class Map2:
    fn: Fn2
    a: Value
    b: Value


@frozen
class Math:
    """A transcendental function of an f32."""

    fn: MathFn
    x: Value
    model: MathModel


@frozen
class Fma:
    """a * b + c, rounded once. A Map2 product next to a sum is never fused."""

    a: Value
    b: Value
    c: Value


@frozen
class Select:
    cond: Value
    a: Value
    b: Value


@frozen
class Cast:
    """Convert to dtype: to floats by rounding to nearest even, from floats to integers toward zero.

    i8 and u8 are cast from and to i32 (modulo 2**8), e4m3 and e5m2 from and to f32 (saturating): `L` writes
    other casts in steps.
    """

    x: Value
    dtype: DType


@frozen
class Bits:
    """Reinterpret the bits as another dtype of the same width."""

    x: Value
    dtype: DType


# --- random ---


@frozen
class Philox:
    """Four words of random bits, u32, as a pure function of a counter of four words and a key of two.

    Philox 4x32-10 (Salmon et al., SC 2011). Counters are made of positions and request ids, not of rows.
    """

    counter: tuple[Value, ...]
    key: tuple[Value, ...]


# --- memory ---


@frozen
class Load:
    """Read a tensor at one index per dim.

    guard: where it is false nothing is read and the result is `fill`, or 0 without one. Without a guard every
    index is in range.
    """

    param: str
    index: tuple[Value, ...]
    guard: Value | None = None
    fill: Value | None = None


@frozen
class Store:
    """Write a tile at one index per dim, where guard (if any) holds; an element is written at most once."""

    param: str
    index: tuple[Value, ...]
    value: Value
    guard: Value | None = None


@frozen
class Check:
    """Report bad data: where `bad` holds, the device error word gets this code."""

    bad: Value
    what: str


# --- combine ---


@frozen
class Reduce:
    """Combine all elements along an axis of 2**n elements; a float ADD in the order of a tree."""

    fn: Combine
    x: Value
    over: Axis
    order: Order | None = None


@frozen
class Dot:
    """Contract an axis: one f32 accumulator takes it in ascending order, by the rule of `model`.

    The contracted axis is not padded. a and b share it, the axis of its pieces, and the batch axes `each`;
    every index of the latter two has a contraction of its own. onto: the accumulator's initial value (`acc`
    of other IRs); None: +0.0. In a traced form the axis is whole, and the contractions of its pieces are
    merged; there the first piece is added to `onto`.
    """

    a: Value
    b: Value
    over: Axis
    model: DotModel
    onto: Value | None = None
    each: tuple[Axis, ...] | None = None


@frozen
class Merge:
    """Combine the states of a monoid along an axis, as a tree or ascending; yields the merged state.

    onto: the initial value of an ascending total, with which the first state is merged.
    """

    monoid: Monoid
    states: tuple[Value, ...]
    over: Axis
    order: MergeOrder
    exp2: MathModel = MathModel.SOFTMAX  # of a softmax_sum's weights
    onto: Value | None = None


# --- control ---


@frozen
class Block:
    """A region: args are the values that it receives, results the values that it yields."""

    args: tuple[Value, ...]
    lets: tuple[Let, ...]
    results: tuple[Value, ...] = ()


@frozen
class Loop:
    """For step in [start, stop), ascending: body.args = (step, *carried); body.results = the next carried.

    start and stop may vary along axes: the loop runs from the smallest start to the largest stop, a step is a
    scalar, and a mask excludes steps outside of an index's own bounds.
    types: of the carried values; an init of fewer axes is broadcast. Yields the last carried values.
    exists: a bool of the body, the mask. It is true everywhere in steps below the smallest element of `full`
    and, if `first` is given, from the largest element of `first` on: such steps need no mask.
    """

    axis: Axis
    start: Value
    stop: Value
    init: tuple[Value, ...]
    types: tuple[TileType, ...]
    body: Block
    full: Value | None = None
    exists: Value | None = None
    first: Value | None = None


@frozen
class Result:
    """One of the values that a loop, merge or stream yields."""

    of: Value
    index: int


# --- macros of the traced form ---


@frozen
class Keep:
    """The same value, materialized to memory: its producer and its consumers are separate launches."""

    x: Value


@frozen
class Fold:
    """Absorb the inputs, tiles of a stream's body, into a monoid's state; leaves merge in a fixed order.

    kept: every piece of the axis and every lane of its chunks has a state of its own, which takes one element
    a step, ascending; the states are yielded unmerged.
    open: for an axis whose leaf is the piece, the last piece is not merged: the fold yields the state of that
    piece, then the merged state of the pieces before it. after: such states, to continue from.
    loc: where the spec absorbs them.
    """

    monoid: Monoid
    inputs: tuple[Value, ...]
    kept: bool = False
    open: bool = False
    after: tuple[Value, ...] = ()
    loc: Loc = field(default=NOWHERE, compare=False)

    @property
    def yielded(self) -> tuple[str, ...]:
        """The names of the fold's values among the results of its stream."""
        names = self.monoid.symbols
        return (*self.monoid.piece_symbols, *(f"{n}_before" for n in names)) if self.open else names


@frozen
class Stream:
    """Run the body for every element of an axis, chunk by chunk; yields the states of all folds, in a row.

    begin, end: the segment of a ragged axis; None means the whole axis.
    when: where it is false the axis is empty.
    init, types: of the values carried from one step to the next, along an axis with chunks of one element:
    body.args are those of the previous step, body.results those for the next; the last are yielded after the
    states.
    reverse: from the last element to the first.
    since, until: the bounds of the elements that are visible to a row, if not all are; chunks and pieces are
    counted from begin all the same.
    rows, row, kept: if states are materialized, the state of a row is stored at index `row` of the axis
    `rows` where `kept` is true; other stored states are undefined.
    after: the number of elements of the segment, in whole chunks, that the states in `Fold.after` contain.
    """

    axis: Axis
    body: Block
    folds: tuple[Fold, ...]
    begin: Value | None = None
    end: Value | None = None
    when: Value | None = None
    init: tuple[Value, ...] = ()
    types: tuple[TileType, ...] = ()
    reverse: bool = False
    since: Value | None = None
    until: Value | None = None
    row: Value | None = None
    kept: Value | None = None
    rows: Axis | None = None
    after: Value | None = None


Elementwise = Map1 | Map2 | Math | Fma | Select | Cast | Bits
"""Nodes that compute each element of their result from those of their operands at its place."""
Node = (
    Param
    | Const
    | Pos
    | Extent
    | Map1
    | Map2
    | Math
    | Fma
    | Select
    | Cast
    | Bits
    | Philox
    | Load
    | Store
    | Check
    | Reduce
    | Dot
    | Merge
    | Loop
    | Result
    | Keep
    | Stream
)


@frozen
class Let:
    """value = node. The name is a hint for readable output."""

    value: Value
    node: Node
    type: Type
    name: str = field(default="", compare=False)
    loc: Loc = field(default=NOWHERE, compare=False)


# --- program ---


class Role(Enum):
    """The use of a tensor or scalar by a kernel."""

    IN = "in"
    OUT = "out"
    WORK = "work"
    SCALAR = "scalar"


@frozen
class Decl:
    """A parameter of a kernel. The axes of a tensor are its dims, outermost first."""

    name: str
    type: TileType
    role: Role


@frozen
class Kernel:
    """One launch: parallel over every axis of its stores that no node in it reduces."""

    name: str
    params: tuple[Decl, ...]
    body: Block


class Phase(Enum):
    """The iterations of a host loop of unknown length in which a kernel is launched."""

    FIRST = "first"
    REST = "rest"
    MIDDLE = "middle"
    LAST = "last"


@frozen
class Turn:
    """A host loop around a launch: one iteration for each piece of an axis, ascending, or for some of them.

    `index` names the kernel's scalar parameter with the piece's number; inside the kernel, indices of the
    axis count from the start of the piece.
    """

    axis: Axis
    only: tuple[int, ...] | Phase | None = None

    @property
    def index(self) -> str:
        return f"{self.axis.name}_piece"


@frozen
class Launch:
    """A kernel by name, and the loops around its launch, outermost first."""

    kernel: str
    turns: tuple[Turn, ...] = ()


@frozen
class Program:
    """The kernels of one operator, with the workspaces they share (role WORK).

    launches: in order; without any, each kernel is launched once. Adjacent launches share their outer loops.
    """

    name: str
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...] = ()

    @property
    def order(self) -> tuple[Launch, ...]:
        """The launches, also where none is named."""
        return self.launches or tuple(Launch(k.name) for k in self.kernels)


def bounds_of(stream: Stream) -> tuple[Value | None, ...]:
    """Return the bounds, masks and counts of a stream, in the order of its fields; None if absent."""
    several = (stream.begin, stream.end, stream.when, stream.since, stream.until, stream.row, stream.kept)
    return (*several, stream.after)


def operands(node: Node) -> tuple[Value, ...]:
    """Return the values that a node reads directly (not those read inside its region)."""
    match node:
        case Param() | Const() | Pos() | Extent():
            return ()
        case Map1(x=x) | Math(x=x) | Cast(x=x) | Bits(x=x) | Reduce(x=x) | Keep(x=x):
            return (x,)
        case Map2(a=a, b=b):
            return (a, b)
        case Dot(a=a, b=b, onto=onto):
            return (a, b, *_present(onto))
        case Fma(a=a, b=b, c=c):
            return (a, b, c)
        case Select(cond=cond, a=a, b=b):
            return (cond, a, b)
        case Philox(counter=counter, key=key):
            return counter + key
        case Load(index=index, guard=guard, fill=fill):
            return index + _present(guard, fill)
        case Store(index=index, value=value, guard=guard):
            return (*index, value, *_present(guard))
        case Check(bad=bad):
            return (bad,)
        case Merge(states=states, onto=onto):
            return (*states, *_present(onto))
        case Loop(start=start, stop=stop, init=init, full=full, first=first):
            return (start, stop, *init, *_present(full, first))
        case Result(of=of):
            return (of,)
        case Stream(init=init, folds=folds):
            return (*_present(*bounds_of(node)), *init, *(v for f in folds for v in f.after))


def with_operands(node: Node, of: Callable[[Value], Value]) -> Node:
    """Return a node with renamed operands (nodes with regions excepted)."""

    def maybe(value: Value | None) -> Value | None:
        return None if value is None else of(value)

    match node:
        case Param() | Const() | Pos() | Extent():
            return node
        case Map1(fn=fn, x=x):
            return Map1(fn, of(x))
        case Map2(fn=fn2, a=a, b=b):
            return Map2(fn2, of(a), of(b))
        case Math(fn=math, x=x, model=model):
            return Math(math, of(x), model)
        case Fma(a=a, b=b, c=c):
            return Fma(of(a), of(b), of(c))
        case Select(cond=cond, a=a, b=b):
            return Select(of(cond), of(a), of(b))
        case Cast(x=x, dtype=dtype):
            return Cast(of(x), dtype)
        case Bits(x=x, dtype=dtype):
            return Bits(of(x), dtype)
        case Philox(counter=counter, key=key):
            return Philox(tuple(map(of, counter)), tuple(map(of, key)))
        case Load(param=param, index=index, guard=guard, fill=fill):
            return Load(param, tuple(map(of, index)), maybe(guard), maybe(fill))
        case Store(param=param, index=index, value=value, guard=guard):
            return Store(param, tuple(map(of, index)), of(value), maybe(guard))
        case Check(bad=bad, what=what):
            return Check(of(bad), what)
        case Reduce(fn=combine, x=x, over=over, order=order):
            return Reduce(combine, of(x), over, order)
        case Dot(a=a, b=b, onto=onto):
            return replace(node, a=of(a), b=of(b), onto=maybe(onto))
        case Merge(states=states, onto=onto):
            return replace(node, states=tuple(map(of, states)), onto=maybe(onto))
        case Result(of=source, index=i):
            return Result(of(source), i)
        case Keep(x=x):
            return Keep(of(x))
        case Loop() | Stream():
            raise AssertionError("regions are replayed by their own functions")


def _present(*values: Value | None) -> tuple[Value, ...]:
    return tuple(v for v in values if v is not None)


def defined(fn: Fn2, a: float | int | bool, b: float | int | bool, dtype: DType) -> bool:
    """Return whether a function of two numbers of a dtype has a value that all machines agree on."""
    match fn:
        case Fn2.DIV | Fn2.MOD if dtype.is_int:
            return a >= 0 and b > 0
        case Fn2.SHL | Fn2.SHR:
            return 0 <= b < 8 * dtype.bytes
        case _:
            return True


def const_bits(value: float | int | bool, dtype: DType) -> int:
    """Return the bit pattern of a Python number in a dtype: f32 by one rounding, no 16-bit floats."""
    match dtype:
        case DType.F32:
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        case DType.BOOL:
            return int(bool(value))
        case DType.I32 | DType.U32:
            return int(value) & 0xFFFFFFFF
        case DType.I64:
            return int(value) & 0xFFFFFFFFFFFFFFFF
        case DType.F16 | DType.BF16 | DType.I8 | DType.U8 | DType.E4M3 | DType.E5M2:
            raise ValueError("constants are f32 or integers of 32 or 64 bits; cast them")


def const_value(bits: int, dtype: DType) -> float | int | bool:
    """Return the Python number that a constant's bits stand for."""
    match dtype:
        case DType.F32:
            return float(struct.unpack("<f", struct.pack("<I", bits))[0])
        case DType.BOOL:
            return bool(bits)
        case DType.I32:
            return bits - (1 << 32) if bits >> 31 else bits
        case DType.U32:
            return bits
        case DType.I64:
            return bits - (1 << 64) if bits >> 63 else bits
        case DType.F16 | DType.BF16 | DType.I8 | DType.U8 | DType.E4M3 | DType.E5M2:
            raise ValueError("constants are f32 or integers of 32 or 64 bits; cast them")
