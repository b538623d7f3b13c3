"""Random programs of tile IR: every elementwise node, reductions, loops and stores over two axes."""

from __future__ import annotations

import random

import numpy as np

from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Combine,
    Decl,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Kernel,
    Load,
    Loop,
    MathFn,
    MathModel,
    Pos,
    Program,
    Role,
    Store,
    Value,
)
from rlk.ir.tree import Rule
from rlk.ir.types import DType, TileType

X, K = Axis("X", dynamic=True), Axis("K")
FLOAT2 = (Fn2.ADD, Fn2.SUB, Fn2.MUL, Fn2.DIV, Fn2.MAX, Fn2.MIN)
INT2 = (Fn2.ADD, Fn2.SUB, Fn2.MUL, Fn2.MAX, Fn2.MIN, Fn2.AND, Fn2.OR, Fn2.XOR)
BOOL2 = (Fn2.AND, Fn2.OR, Fn2.XOR)
COMPARES = (Fn2.LT, Fn2.LE, Fn2.EQ, Fn2.NE)
MATH = (MathFn.EXP2, MathFn.EXP2, MathFn.EXP2, MathFn.LOG, MathFn.TANH, MathFn.RSQRT)
FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-40, float("inf"), float("nan"))
INTS = (0, 1, -1, 7, 2**31 - 1)


class Writer:
    """Grows a kernel by random nodes over the values that are in scope."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        decls = [
            Decl("a", TileType(DType.F32, (X, K)), Role.IN),
            Decl("c", TileType(DType.F32, (X,)), Role.IN),
            Decl("n", TileType(DType.I32, (X, K)), Role.IN),
        ]
        self.b = Builder(params={d.name: d for d in decls})
        at, k = self.b.let(Pos(X)), self.b.let(Pos(K))
        self.a = self.b.let(Load("a", (at, k)))
        n = self.b.let(Load("n", (at, k)))
        truth = self.b.map2(Fn2.LT, n, self.b.i32(3))
        self.scope: dict[DType, list[Value]] = {
            DType.F32: [self.a, self.b.let(Load("c", (at,)))],
            DType.I32: [n, at, self.b.let(Extent(K))],
            DType.BOOL: [truth, self.b.const(True, DType.BOOL), self.b.const(False, DType.BOOL)],
        }

    def any(self, dtype: DType) -> Value:
        """Return a value in scope, recent ones more often."""
        known = self.scope[dtype]
        return self.rng.choice(known[-6:] if self.rng.random() < 0.7 else known)

    def keep(self, value: Value) -> None:
        self.scope[self.b.tile(value).dtype].append(value)

    def node(self) -> None:
        b, pick, any = self.b, self.rng.choice, self.any
        f, i, t = DType.F32, DType.I32, DType.BOOL
        made = (
            lambda: b.map2(pick(FLOAT2), any(f), any(f)),
            lambda: b.map2(pick(INT2), any(i), any(i)),
            lambda: b.map2(pick(BOOL2), any(t), any(t)),
            lambda: b.map2(pick(COMPARES), any(f), any(f)),
            lambda: b.map2(pick(COMPARES), any(i), any(i)),
            lambda: b.map1(pick((Fn1.NEG, Fn1.ABS, Fn1.SQRT, Fn1.FLOOR, Fn1.ISNAN)), any(f)),
            lambda: b.map1(pick((Fn1.NEG, Fn1.NOT)), any(i)),
            lambda: b.map1(Fn1.NOT, any(t)),
            lambda: b.math(pick(MATH), any(f), MathModel.PORTABLE),
            lambda: b.let(Fma(any(f), any(f), any(f))),
            lambda: b.select(any(t), any(f), any(f)),
            lambda: b.select(any(t), any(i), any(i)),
            lambda: b.let(Cast(b.let(Cast(any(f), pick((DType.BF16, DType.F16)))), f)),
            lambda: b.let(Cast(any(i), f)),
            lambda: b.let(Bits(any(f), i)),
            lambda: b.let(Bits(any(i), f)),
            lambda: b.f32(pick(FLOATS)),
            lambda: b.i32(pick(INTS)),
            lambda: b.map2(Fn2.DIV, b.map2(Fn2.AND, any(i), b.i32(1023)), b.i32(pick((1, 7)))),
            lambda: b.map2(pick((Fn2.SHL, Fn2.SHR)), any(i), b.i32(pick((0, 3)))),
        )
        self.keep(pick(made)())

    def reduce(self) -> None:
        x = self.b.add(self.a, self.any(DType.F32))
        fn = self.rng.choice((Combine.ADD, Combine.MAX, Combine.MIN))
        order = self.rng.choice(list(Rule)) if fn is Combine.ADD else None
        self.keep(self.b.reduce(fn, x, K, order))

    def loop(self, depth: int) -> None:
        """Carry two floats over both axes; the body sees everything in scope."""
        b = self.b
        type = TileType(DType.F32, (X, K))
        init = (self.any(DType.F32), self.any(DType.F32))
        start, stop = b.i32(0), b.i32(self.rng.randrange(3))
        outer = {dtype: list(known) for dtype, known in self.scope.items()}
        with b.region() as lets:
            step, *carried = (b.fresh(t) for t in (TileType(DType.I32), type, type))
            self.keep(b.add(step, b.i32(2)))
            for value in carried:
                self.keep(value)
            self.nodes(8, depth + 1)
            results = tuple(b.add(self.any(DType.F32), self.a) for _ in carried)
        self.scope = outer
        made = b.let(Loop(K, start, stop, init, (type, type), Block((step, *carried), tuple(lets), results)))
        for value in b.results(made):
            self.keep(value)

    def nodes(self, count: int, depth: int = 0) -> None:
        for _ in range(count):
            chance = self.rng.random()
            if chance < 0.06 and depth < 2:
                self.loop(depth)
            elif chance < 0.12:
                self.reduce()
            else:
                self.node()

    def store(self, name: str, value: Value) -> None:
        tile = self.b.tile(value)
        axes = tuple(axis for axis in (X, K) if axis in tile.axes)
        self.b.params[name] = Decl(name, TileType(tile.dtype, axes), Role.OUT)
        self.b.let(Store(name, tuple(self.b.let(Pos(axis)) for axis in axes), value))


def random_program(seed: int, size: int = 30) -> Program:
    """Return a program whose outputs y0, y1, ... are the last values of every dtype."""
    writer = Writer(seed)
    writer.nodes(size)
    writer.reduce()
    lasts = [known[-k] for known in writer.scope.values() for k in (1, 2)]
    for i, value in enumerate(lasts):
        writer.store(f"y{i}", value)
    return Program("random", (Kernel("random", tuple(writer.b.params.values()), writer.b.body()),))


def random_tensors(seed: int, x: int, k: int) -> dict[str, np.ndarray]:
    """Draw the inputs of a random program."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(x, k)).astype(np.float32)
    a.flat[:: max(1, a.size // 5)] = -0.0
    return {
        "a": a,
        "c": rng.normal(size=x).astype(np.float32),
        "n": rng.integers(-5, 9, (x, k)).astype(np.int32),
    }
