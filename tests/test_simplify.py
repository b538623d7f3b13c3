"""Folded and dropped nodes leave every result: every function of integers, and loops without a store."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Block,
    Cast,
    Check,
    Decl,
    Extent,
    Fn2,
    Kernel,
    Load,
    Loop,
    Map2,
    Pos,
    Program,
    Role,
    Store,
    const_bits,
    const_value,
    defined,
)
from rlk.ir.types import DType, TileType
from rlk.passes.rewrite import each
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk

X, K = Axis("X"), Axis("K")
NUMBERS = (0, 1, 2, 3, 7, 31, 32, 33, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -1, -2, -7, -(2**31))
KINDS = (DType.I32, DType.I64, DType.U32, DType.BOOL)
OF_BOOL = (Fn2.AND, Fn2.OR, Fn2.XOR, Fn2.LT, Fn2.LE, Fn2.EQ, Fn2.NE)


def numbers(dtype: DType) -> list[int]:
    """Return the numbers of a dtype that those of NUMBERS are, modulo 2**n."""
    return list(dict.fromkeys(int(const_value(const_bits(n, dtype), dtype)) for n in NUMBERS))


def accepted(fn: Fn2, dtype: DType) -> bool:
    return dtype is DType.U32 if fn is Fn2.MULHI else fn in OF_BOOL if dtype is DType.BOOL else True


CASES = [(fn, dtype) for fn, dtype in itertools.product(Fn2, KINDS) if accepted(fn, dtype)]


def applied(fn: Fn2, dtype: DType, pairs: list[tuple[int | None, int | None]]) -> Program:
    """Return a program of y0, y1, ...: fn of each pair, in which None is the loaded number."""
    decls = [Decl("x", TileType(DType.I64, (X,)), Role.IN)]
    b = Builder(params={d.name: d for d in decls})
    at = b.let(Pos(X))
    loaded = b.let(Cast(b.let(Load("x", (at,))), dtype))
    for i, pair in enumerate(pairs):
        u, v = (loaded if n is None else b.const(n, dtype) for n in pair)
        made = b.let(Cast(b.map2(fn, u, v), DType.I64))
        b.params[f"y{i}"] = Decl(f"y{i}", TileType(DType.I64, (X,)), Role.OUT)
        b.let(Store(f"y{i}", (at,), made))
    return Program("p", (Kernel("p", tuple(b.params.values()), b.body()),))


def same(fn: Fn2, dtype: DType, pairs: list[tuple[int | None, int | None]], x: list[int]) -> int:
    """Compare a program with its simplified form; return how many functions of two are left of it."""
    program = applied(fn, dtype, pairs)
    made = each(program, simplify)
    inputs = {"x": np.array(x, np.int64)}
    want, got = (run(p, inputs, extents={"X": len(x)}) for p in (program, made))
    for i, pair in enumerate(pairs):
        assert got[f"y{i}"].tolist() == want[f"y{i}"].tolist(), (pair, x)
    return sum(isinstance(let.node, Map2) for let in walk(made.kernels[0].body))


@pytest.mark.parametrize(("fn", "dtype"), CASES, ids=lambda v: v.value)
def test_folded_constants_are_what_the_oracle_computes(fn: Fn2, dtype: DType) -> None:
    every = numbers(dtype)
    pairs = [(a, b) for a, b in itertools.product(every, every) if defined(fn, a, b, dtype)]
    assert pairs and same(fn, dtype, pairs, [0]) == 0  # all are folded


@pytest.mark.parametrize(("fn", "dtype"), CASES, ids=lambda v: v.value)
def test_a_neutral_constant_is_neutral_on_its_side(fn: Fn2, dtype: DType) -> None:
    """x - 0 is x, 0 - x is not."""
    for n, left in itertools.product(numbers(dtype), (False, True)):
        pair = (n, None) if left else (None, n)
        x = [m for m in numbers(dtype) if defined(fn, *((n, m) if left else (m, n)), dtype)]
        if x:
            same(fn, dtype, [pair], x)


def test_neutral_constants_leave_nothing_to_compute() -> None:
    for fn, pair in ((Fn2.ADD, (None, 0)), (Fn2.ADD, (0, None)), (Fn2.SUB, (None, 0)), (Fn2.MUL, (1, None))):
        assert same(fn, DType.I32, [pair], [5]) == 0
    assert same(Fn2.SUB, DType.I32, [(0, None)], [5]) == 1


def checked(stores: bool) -> Program:
    """Return a program whose loop checks x and, or not, stores it."""
    decls = [
        Decl("x", TileType(DType.I32, (X, K)), Role.IN),
        Decl("y", TileType(DType.I32, (X, K)), Role.OUT),
    ]
    b = Builder(params={d.name: d for d in decls})
    at = b.let(Pos(X))
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        x = b.let(Load("x", (at, step)))
        b.let(Check(b.map2(Fn2.LT, x, b.i32(0)), "a negative number"))
        if stores:
            b.let(Store("y", (at, step), x))
    b.let(Loop(K, b.i32(0), b.let(Extent(K)), (), (), Block((step,), tuple(lets))))
    if not stores:
        b.let(Store("y", (at, at), b.let(Load("x", (at, at)))))
    return Program("p", (Kernel("p", tuple(decls), b.body()),))


@pytest.mark.parametrize("stores", [True, False])
def test_a_loop_that_holds_only_checks_is_kept(stores: bool) -> None:
    x = np.array([[1, -1, 3], [4, 5, 6], [-7, -8, 9]], np.int32)
    program = checked(stores)
    want, got = (run(p, {"x": x}) for p in (program, each(program, simplify)))
    assert want.errors == got.errors == {"a negative number": 3}
    assert want.rows == got.rows == {"a negative number": 2}


def test_a_loop_without_effect_is_dropped() -> None:
    b = Builder(params={"y": Decl("y", TileType(DType.I32, (X,)), Role.OUT)})
    at = b.let(Pos(X))
    with b.region() as lets:
        step, held = b.fresh(TileType(DType.I32)), b.fresh(TileType(DType.I32, (X,)))
        results = (b.add(held, step),)
    b.let(Loop(K, b.i32(0), b.i32(3), (at,), (b.tile(held),), Block((step, held), tuple(lets), results)))
    b.let(Store("y", (at,), at))
    made = each(Program("p", (Kernel("p", tuple(b.params.values()), b.body()),)), simplify)
    assert not any(isinstance(let.node, Loop) for let in made.kernels[0].body.lets)
