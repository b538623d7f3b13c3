"""Refused streams: dtypes of their bounds, folds and carries, and states that no piece has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlk.errors import Code, SpecError
from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import Block, Cast, Decl, Fold, Kernel, Let, Load, Pos, Program, Role, Stream
from rlk.ir.types import DType, TileType, TupleType
from rlk.ir.verify import verify

T = Axis("T", dynamic=True)
PIECES = Axis("S", chunk=16, piece=64, leaf="piece")
CHUNKS = Axis("S", chunk=16, piece=64)
SEGMENT = Axis("S", chunk=16, leaf="segment")
SINGLE = Axis("S", chunk=1)
SOFT = Monoid(Kind.SOFTMAX_SUM)
F32, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL


def made(
    axis: Axis, monoid: Monoid = SOFT, dtype: DType = F32, carried: DType | None = None,
    bounds: dict[str, DType] | None = None, after: tuple[TileType, ...] = (), **more: Any,
) -> Builder:  # fmt: skip
    """Return a builder with a stream over x[axis] of a dtype, and one carry that is left in another."""
    b = Builder(params={"x": Decl("x", TileType(dtype, (axis,)), Role.IN)})
    given = {name: b.const(1, kind) for name, kind in (bounds or {}).items()}
    states = tuple(b.fresh(t) for t in after)
    for value, type in zip(states, after, strict=True):
        b.open[-1].append(Let(value, Cast(b.const(0, I32), type.dtype), type))
    init = () if carried is None else (b.f32(0.0),)
    types = () if carried is None else (TileType(F32),)
    with b.region() as lets:
        x = b.let(Load("x", (b.let(Pos(axis)),)))
        held = tuple(b.fresh(t) for t in types)
        results = () if carried is None else (b.let(Cast(x, carried)),)
    fold = Fold(monoid, (x,), after=states, **more)
    b.let(Stream(axis, Block(held, tuple(lets), results), (fold,), init=init, types=types, **given))
    return b


def refused(code: Code, make: Callable[[], Builder]) -> None:
    with pytest.raises(SpecError) as caught:
        b = make()
        verify(Program("p", (Kernel("p", tuple(b.params.values()), b.body()),)))
    assert code in {d.code for d in caught.value.diagnostics}, caught.value


def accepted(make: Callable[[], Builder]) -> None:
    b = make()
    verify(Program("p", (Kernel("p", tuple(b.params.values()), b.body()),)))


@pytest.mark.parametrize("bound", ["begin", "end", "since", "until", "row", "after"])
def test_bounds_of_a_stream_are_integers(bound: str) -> None:
    accepted(lambda: made(PIECES, bounds={bound: I32}))
    accepted(lambda: made(PIECES, bounds={bound: I64}))
    for dtype in (F32, BOOL):
        refused(Code.DTYPE_WANTED, lambda dtype=dtype: made(PIECES, bounds={bound: dtype}))


@pytest.mark.parametrize("condition", ["when", "kept"])
def test_conditions_of_a_stream_are_truth_values(condition: str) -> None:
    accepted(lambda: made(PIECES, bounds={condition: BOOL}))
    for dtype in (F32, I32):
        refused(Code.DTYPE_WANTED, lambda dtype=dtype: made(PIECES, bounds={condition: dtype}))


FOLDED = {
    Kind.TOTAL: {F32, I32, I64, DType.U32}, Kind.SOFTMAX_SUM: {F32}, Kind.POWER_SUM: {F32},
    Kind.ARGMAX: {F32}, Kind.TOP: {I32}, Kind.LARGEST: {F32, I32, I64, DType.U32}, Kind.TOP_K: {F32},
}  # fmt: skip


@pytest.mark.parametrize("dtype", DType, ids=str)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_fold_takes_the_dtypes_of_its_state(kind: Kind, dtype: DType) -> None:
    for axis in (CHUNKS, PIECES):
        if dtype in FOLDED[kind]:
            accepted(lambda axis=axis: made(axis, Monoid(kind), dtype))
        else:
            refused(Code.DTYPE_WANTED, lambda axis=axis: made(axis, Monoid(kind), dtype))


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_a_step_leaves_the_dtype_that_it_holds(dtype: DType) -> None:
    if dtype is F32:
        accepted(lambda: made(SINGLE, carried=dtype))
    else:  # i8 and u8 are cast through i32
        code = Code.DTYPE_WANTED if dtype in (DType.I8, DType.U8) else Code.LOOP_TYPES
        refused(code, lambda: made(SINGLE, carried=dtype))


def test_a_stream_is_declared_with_the_types_of_its_states() -> None:
    b = made(CHUNKS)
    *lets, stream = b.body().lets
    assert isinstance(stream.type, TupleType)
    for items in (stream.type.items[:1], (TileType(I32), *stream.type.items[1:])):
        wrong = replace(stream, type=TupleType(items))
        with pytest.raises(SpecError) as caught:
            body = Block((), (*lets, wrong))
            verify(Program("p", (Kernel("p", tuple(b.params.values()), body),)))
        assert caught.value.code is Code.TYPE_WRONG


STATE = (TileType(F32),) * 2


@pytest.mark.parametrize("axis", [CHUNKS, SEGMENT, SINGLE], ids=lambda axis: f"{axis.leaf} {axis.chunk}")
def test_only_pieces_have_states_to_leave_open_or_to_go_on_with(axis: Axis) -> None:
    accepted(lambda: made(axis))
    for given in ({"open": True}, {"after": STATE * 2}, {"open": True, "after": STATE * 2}):
        accepted(lambda given=given: made(PIECES, **given))
        refused(Code.LOOP_TYPES, lambda given=given: made(axis, **given))


@pytest.mark.parametrize(
    "after",
    [STATE, STATE[:1], STATE * 3, (TileType(I32), *STATE, STATE[0]), (TileType(F32, (T,)), *STATE, STATE[0])],
    ids=["one state", "half a state", "three states", "another dtype", "other axes"],
)
def test_a_fold_goes_on_with_the_states_of_a_piece_and_of_those_before(after: tuple[TileType, ...]) -> None:
    refused(Code.LOOP_TYPES, lambda: made(PIECES, after=after))


def test_an_open_fold_yields_the_piece_and_what_is_before_it() -> None:
    stream = made(PIECES, open=True).body().lets[-1]
    assert isinstance(stream.type, TupleType) and len(stream.type.items) == 4
