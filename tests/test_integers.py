"""One rule for integers on every lowering: what wraps, what is refused, and what padding may not change."""

from __future__ import annotations

from collections.abc import Callable

import ladder
import numpy as np
import pytest

from rlk.errors import Code, SpecError
from rlk.interp.run import run
from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.nodes import Cast, Combine, Decl, Fn2, Kernel, Load, Pos, Program, Role, Store, Value
from rlk.ir.tree import Rule
from rlk.ir.types import DType, TileType
from rlk.lang import L, Outputs, Tensor, i64, op, u32
from rlk.lang.types import DType as Named
from rlk.passes import mask, pipeline
from rlk.passes.pipeline import canonical
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.check import Law, check
from rlk.testing.examples import Example
from rlk.testing.generated import run_generated

X, K = Axis("X", dynamic=True), Axis("K")
NUMPY = {DType.I32: np.int32, DType.I64: np.int64, DType.U32: np.uint32, DType.F32: np.float32}
BACKENDS = ("oracle", "triton", "cute", "tilelang")


def kernel(axes: tuple[Axis, ...], held: DType, make: Callable[[Builder, list[Value]], Value]) -> Program:
    """Return a program of a and b over the axes: y[X] = make(a, b), integers computed in the dtype `held`."""
    kept = held if held is DType.F32 else DType.I64
    decls = tuple(Decl(n, TileType(kept, axes), Role.IN) for n in "ab")
    decls += (Decl("y", TileType(kept, (X,)), Role.OUT),)
    b = Builder(params={d.name: d for d in decls})
    at = tuple(b.let(Pos(axis)) for axis in axes)
    made = make(b, [b.let(Cast(b.let(Load(n, at)), held)) for n in "ab"])
    b.let(Store("y", at[:1], b.let(Cast(made, kept))))
    return canonical(Program("p", (Kernel("p", decls, b.body()),)))


def computed(program: Program, a: np.ndarray, b: np.ndarray, by: str) -> np.ndarray:
    if by == "tilelang":
        ladder.require()
    if by != "oracle":
        pytest.importorskip("triton")
        return np.asarray(run_generated(program, {"a": a, "b": b}, backend=by).tensors["y"])
    return run(program, {"a": a, "b": b})["y"]


# --- padding ---


def rows(dtype: DType, width: int) -> np.ndarray:
    """Return rows of one number each, and a mixed one: padding that counts is seen in some of them."""
    if dtype is DType.F32:
        ends = [np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38]
        return np.array([[x] * width for x in ends], np.float32)
    limits = np.iinfo(NUMPY[dtype])
    half = limits.max // 2
    ends = [
        limits.max,
        limits.max - 1,
        half + 1,
        half,
        0,
        limits.min,
        limits.min + 1,
        -3 if limits.min else 3,
    ]
    mixed = np.random.default_rng(width).integers(limits.min, limits.max, width, NUMPY[dtype])
    return np.array([[x] * width for x in ends] + [mixed.astype(np.int64)], np.int64)


@pytest.mark.parametrize("by", BACKENDS)
@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("fn", [Combine.ADD, Combine.MAX, Combine.MIN], ids=lambda fn: fn.value)
def test_what_lies_beyond_an_axis_enters_no_reduction(fn: Combine, dtype: DType, by: str) -> None:
    order = Rule.HALVING if dtype is DType.F32 and fn is Combine.ADD else None
    program = kernel((X, K), dtype, lambda b, v: b.reduce(fn, v[0], K, order))
    for width in (1, 3, 7):
        x = rows(dtype, width)
        if by == "tilelang" and fn is Combine.ADD and dtype in (DType.I32, DType.I64):
            # TVM takes it that no signed sum leaves its range, and computes one that is widened in i64
            x = x[[abs(sum(row)) < np.iinfo(NUMPY[dtype]).max for row in x.tolist()]]
        held = x.astype(NUMPY[dtype])
        reduce = {Combine.ADD: np.add, Combine.MAX: np.maximum, Combine.MIN: np.minimum}[fn].reduce
        with np.errstate(over="ignore"):
            # -0.0, not 0.0, is what NumPy's sum would have to begin with
            want = held[:, 0] * width if order is not None else reduce(held, axis=1, dtype=held.dtype)
        assert_same_bits(computed(program, x, x, by), want.astype(x.dtype), f"width {width}")


@op()
def least(x: Tensor[i64, X, K]) -> Outputs:
    return L.out(y=L.min(x.to(u32), over=K).to(i64))


def test_an_element_of_padding_that_counts_is_found_by_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example(lambda rng: {"x": rng.integers(0, 9, (4, 7))})  # too small for any result to tell
    laws = {Law.TILES, Law.ROWS}
    assert all(v.ok for v in check(least, example, [target("sm_90a")], laws))
    right = mask.identity

    def signed(b: Builder, fn: Combine, dtype: Named) -> Value:
        return b.const(2**31 - 1, dtype) if fn is Combine.MIN else right(b, fn, dtype)

    monkeypatch.setattr(mask, "identity", signed)
    monkeypatch.setattr(pipeline, "_known", {})  # without the program that was made before
    found = list(check(least, example, [target("sm_90a")], laws))
    assert found and not any(v.ok for v in found)
    assert all("beyond axis K 2147483647 enters a min, not 4294967295" in v.note for v in found)


# --- quotients and shifts ---

DEFINED = {
    DType.I32: ([7, 0, 6, 2**31 - 1, 2**31 - 1], [2, 3, 7, 1, 2**31 - 1]),
    DType.I64: ([7, 0, 6, 2**62 + 1, 2**63 - 1], [2, 3, 7, 3, 2**63 - 1]),
    DType.U32: ([7, 2**32 - 1, 2**31, 2**32 - 1, 0], [2, 2, 3, 2**31, 2**32 - 1]),
}
UNDEFINED = {
    DType.I32: [(-7, 2), (7, -2), (7, 0), (-(2**31), -1)],
    DType.I64: [(-7, 2), (7, -2), (7, 0), (-(2**63), -1)],
    DType.U32: [(7, 0)],
}


@pytest.mark.parametrize("by", BACKENDS)
@pytest.mark.parametrize("dtype", DEFINED, ids=str)
@pytest.mark.parametrize("fn", [Fn2.DIV, Fn2.MOD], ids=lambda fn: fn.value)
def test_quotients_are_those_of_counts(fn: Fn2, dtype: DType, by: str) -> None:
    a, b = (np.array(x, np.int64) for x in DEFINED[dtype])
    want = [x // y if fn is Fn2.DIV else x % y for x, y in zip(a.tolist(), b.tolist())]
    assert computed(kernel((X,), dtype, lambda m, v: m.map2(fn, *v)), a, b, by).tolist() == want


@pytest.mark.parametrize("dtype", UNDEFINED, ids=str)
@pytest.mark.parametrize("fn", [Fn2.DIV, Fn2.MOD], ids=lambda fn: fn.value)
def test_quotients_on_which_machines_differ_are_refused(fn: Fn2, dtype: DType) -> None:
    program = kernel((X,), dtype, lambda m, v: m.map2(fn, *v))
    for a, b in UNDEFINED[dtype]:
        with pytest.raises(SpecError, match=rf"{fn.value} of {a} by {b} is not defined") as caught:
            run(program, {"a": np.array([1, a]), "b": np.array([1, b])})
        assert caught.value.code is Code.INTEGER_UNDEFINED


@pytest.mark.parametrize("by", BACKENDS)
@pytest.mark.parametrize("dtype", DEFINED, ids=str)
@pytest.mark.parametrize("fn", [Fn2.SHL, Fn2.SHR], ids=lambda fn: fn.value)
def test_shifts_are_by_less_than_the_width(fn: Fn2, dtype: DType, by: str) -> None:
    limits, bits = np.iinfo(NUMPY[dtype]), 8 * dtype.bytes
    numbers = [limits.min, limits.max, 5, 0]
    a, b = (np.array(x, np.int64) for x in zip(*((x, n) for x in numbers for n in (0, 1, 7, bits - 1))))
    shift = np.left_shift if fn is Fn2.SHL else np.right_shift
    want = shift(a.astype(NUMPY[dtype]), b.astype(NUMPY[dtype])).astype(np.int64)
    program = kernel((X,), dtype, lambda m, v: m.map2(fn, *v))
    assert computed(program, a, b, by).tolist() == want.tolist()
    if by == "oracle":
        for wrong in (bits, bits + 1, -1)[: 2 if dtype is DType.U32 else 3]:
            with pytest.raises(SpecError, match=f"{dtype} is shifted by 0 to {bits - 1}"):
                run(program, {"a": a, "b": np.full_like(b, wrong)})


def test_constants_are_divided_where_that_is_defined_alone() -> None:
    for fn, a, b, folds in (
        (Fn2.DIV, 7, 2, True), (Fn2.DIV, -7, 2, False), (Fn2.DIV, 7, 0, False), (Fn2.MOD, 7, -2, False),
        (Fn2.MOD, 7, 2, True), (Fn2.SHL, 1, 31, True), (Fn2.SHL, 1, 32, False), (Fn2.SHR, 1, -1, False),
    ):  # fmt: skip
        program = kernel((X,), DType.I32, lambda m, v, fn=fn, a=a, b=b: m.add(
            v[0], m.map2(fn, m.i32(a), m.i32(b)))
        )  # fmt: skip
        left = any(getattr(let.node, "fn", None) is fn for let in program.kernels[0].body.lets)
        assert left is not folds, (fn, a, b)
