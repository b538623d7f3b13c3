"""The oracle computes what the nodes say, and its bits do not depend on how the work is cut."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from oracle_cases import CALLS, LOGP_SCALARS, LOGP_SIZES, Call, forward, logp_ids, params, variant

from rlk.errors import InternalError, LaunchError, SpecError, UnsupportedError
from rlk.interp import arithmetic, floats
from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.interp.run import Outcome, run, run_wide
from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Bits,
    Cast,
    Check,
    Combine,
    Decl,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Kernel,
    Load,
    MathFn,
    MathModel,
    Pos,
    Program,
    Role,
    Select,
    Store,
    Value,
)
from rlk.ir.tree import Rule
from rlk.ir.types import DType, TileType
from rlk.lang import L, Outputs, Tensor, f32, op
from rlk.passes.pipeline import canonical
from rlk.specs.logp import logp
from rlk.testing.bits import assert_same_bits, differing

f = np.float32
X, K = Axis("X"), Axis("K")
F = Axis("F", chunk=8, piece=8, fan_in=64, dynamic=True)
LOG2E, LOWEST = f(1.4426950408889634), -f(3.4028235e38)


def assert_same(a: Outcome, b: Outcome) -> None:
    assert a.tensors.keys() == b.tensors.keys() and a.errors == b.errors
    for name in a.tensors:
        assert_same_bits(a[name], b[name], name)


# --- nodes ---


def elementwise(
    make: Callable[[Builder, list[Value]], Value], inputs: list[np.ndarray], dtypes: list[DType], out: DType
) -> np.ndarray:
    """Run a kernel that stores make(loads of the inputs) over one axis."""
    decls = [Decl(f"a{i}", TileType(d, (X,)), Role.IN) for i, d in enumerate(dtypes)]
    decls.append(Decl("y", TileType(out, (X,)), Role.OUT))
    b = Builder(params={d.name: d for d in decls})
    at = b.let(Pos(X))
    loads = [b.let(Load(f"a{i}", (at,))) for i in range(len(inputs))]
    b.let(Store("y", (at,), make(b, loads)))
    program = Program("p", (Kernel("p", tuple(decls), b.body()),))
    return run(program, {f"a{i}": x for i, x in enumerate(inputs)})["y"]


A = f([1.5, -0.0, 0.0, np.nan, np.inf, -3.25, 1e-40, 7.0])
C = f([0.1, 0.0, -0.0, 1.0, -np.inf, 2.0, 3.0, -7.0])
I, J = np.array([5, -7, 2**31 - 1, 0], np.int32), np.array([3, 2, 1, 4], np.int32)
U, W = I.view(np.uint32), np.array([7, 2**31, 2**32 - 1, 3], np.uint32)

FLOAT2 = {
    Fn2.ADD: f([1.6, 0.0, 0.0, np.nan, np.nan, -1.25, 3.0, 0.0]),
    Fn2.SUB: f([1.4, -0.0, 0.0, np.nan, np.inf, -5.25, -3.0, 14.0]),
    Fn2.MUL: f([f(1.5) * f(0.1), -0.0, -0.0, np.nan, -np.inf, -6.5, f(1e-40) * f(3), -49.0]),
    Fn2.DIV: f([15.0, np.nan, np.nan, np.nan, np.nan, -1.625, 1e-40 / 3, -1]),
    Fn2.MAX: f([1.5, 0.0, 0.0, 1.0, np.inf, 2.0, 3.0, 7.0]),
    Fn2.MIN: f([0.1, -0.0, -0.0, 1.0, -np.inf, -3.25, 1e-40, -7.0]),
    Fn2.LT: A < C,
    Fn2.LE: A <= C,
    Fn2.EQ: A == C,
    Fn2.NE: A != C,
}


@pytest.mark.parametrize("fn", FLOAT2)
def test_float_functions_of_two_operands(fn: Fn2) -> None:
    out = DType.BOOL if fn.compares else DType.F32
    got = elementwise(lambda b, v: b.map2(fn, *v), [A, C], [DType.F32] * 2, out)
    assert_same_bits(got, np.asarray(FLOAT2[fn]))


INT2 = {
    Fn2.ADD: [8, -5, -(2**31), 4],
    Fn2.SUB: [2, -9, 2**31 - 2, -4],
    Fn2.MUL: [15, -14, 2**31 - 1, 0],
    Fn2.MAX: [5, 2, 2**31 - 1, 4],
    Fn2.MIN: [3, -7, 1, 0],
    Fn2.AND: [1, 0, 1, 0],
    Fn2.OR: [7, -5, 2**31 - 1, 4],
    Fn2.XOR: [6, -5, 2**31 - 2, 4],
    Fn2.SHL: [40, -28, -2, 0],
    Fn2.SHR: [0, -2, 2**30 - 1, 0],
}


@pytest.mark.parametrize("fn", INT2)
def test_integer_functions_wrap_and_shift_arithmetically(fn: Fn2) -> None:
    got = elementwise(lambda b, v: b.map2(fn, *v), [I, J], [DType.I32] * 2, DType.I32)
    assert got.dtype == np.int32 and got.tolist() == INT2[fn]


def test_unsigned_functions() -> None:
    dtypes = [DType.U32] * 2
    high = elementwise(lambda b, v: b.map2(Fn2.MULHI, *v), [U, W], dtypes, DType.U32)
    assert high.tolist() == [int(a) * int(b) >> 32 for a, b in zip(U, W)]
    small = np.array([1, 31, 4, 0], np.uint32)
    shifted = elementwise(lambda b, v: b.map2(Fn2.SHR, *v), [U, small], dtypes, DType.U32)
    assert shifted.tolist() == [int(a) >> int(b) for a, b in zip(U, small)]
    a, b = np.array([7, 8, 0, 9], np.int64), np.array([2, 3, 5, 9], np.int64)
    for fn, want in ((Fn2.DIV, a // b), (Fn2.MOD, a % b)):
        assert (
            elementwise(lambda m, v, fn=fn: m.map2(fn, *v), [a, b], [DType.I64] * 2, DType.I64) == want
        ).all()


def test_functions_of_one_operand() -> None:
    with np.errstate(invalid="ignore"):
        want = {
            Fn1.NEG: -A,
            Fn1.ABS: abs(A),
            Fn1.SQRT: np.sqrt(A),
            Fn1.FLOOR: np.floor(A),
            Fn1.ISNAN: np.isnan(A),
        }
    for fn, y in want.items():
        out = DType.BOOL if fn is Fn1.ISNAN else DType.F32
        assert_same_bits(elementwise(lambda b, v, fn=fn: b.map1(fn, *v), [A], [DType.F32], out), y, fn.value)
    assert (
        elementwise(lambda b, v: b.map1(Fn1.NOT, *v), [I], [DType.I32], DType.I32).tolist() == (~I).tolist()
    )
    truth = np.array([True, False])
    assert elementwise(lambda b, v: b.map1(Fn1.NOT, *v), [truth], [DType.BOOL], DType.BOOL).tolist() == [
        False,
        True,
    ]


def test_fma_is_not_a_product_and_a_sum() -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=1000).astype(f) for _ in range(3)]
    fused = elementwise(lambda b, v: b.let(Fma(*v)), x, [DType.F32] * 3, DType.F32)
    apart = elementwise(lambda b, v: b.add(b.mul(v[0], v[1]), v[2]), x, [DType.F32] * 3, DType.F32)
    assert_same_bits(fused, floats.fma(*x))
    assert differing(fused, apart) > 50


def test_casts_and_bits() -> None:
    x = np.concatenate([A, np.random.default_rng(1).normal(size=1000).astype(f) * f(1e4)])
    for dtype, want in ((DType.BF16, floats.bf16_bits(x)), (DType.F16, floats.f16_bits(x).view(np.float16))):
        got = elementwise(lambda b, v, d=dtype: b.let(Cast(v[0], d)), [x], [DType.F32], dtype)
        assert_same_bits(got, want, dtype.value, "bf16" if dtype is DType.BF16 else None)
        back = elementwise(lambda b, v: b.let(Cast(v[0], DType.F32)), [want], [dtype], DType.F32)
        assert_same_bits(back, arithmetic.decode(want, dtype))
    got = elementwise(lambda b, v: b.let(Bits(v[0], DType.I32)), [x], [DType.F32], DType.I32)
    assert (got == x.view(np.int32)).all()
    whole = elementwise(lambda b, v: b.let(Cast(v[0], DType.I32)), [x], [DType.F32], DType.I32)
    assert (whole == floats.to_int(x, np.int32)).all()
    assert (
        elementwise(lambda b, v: b.let(Cast(v[0], DType.F32)), [I], [DType.I32], DType.F32) == I.astype(f)
    ).all()


def test_math_models() -> None:
    x = -np.random.default_rng(2).exponential(5, 4000).astype(f)

    def exp2(model: MathModel) -> np.ndarray:
        return elementwise(lambda b, v: b.math(MathFn.EXP2, v[0], model), [x], [DType.F32], DType.F32)

    assert_same_bits(exp2(MathModel.SM90), exp2_sm90(x))
    assert_same_bits(exp2(MathModel.SOFTMAX), floats.portable("exp2")(x))
    assert differing(exp2(MathModel.SM90), exp2(MathModel.PORTABLE)) > 0
    with pytest.raises(UnsupportedError, match="tanh in the model sm90"):
        elementwise(lambda b, v: b.math(MathFn.TANH, v[0], MathModel.SM90), [x], [DType.F32], DType.F32)


def reduction(fn: Combine, x: np.ndarray, dtype: DType, order: Rule | None = None) -> np.ndarray:
    decls = (Decl("x", TileType(dtype, (X, K)), Role.IN), Decl("y", TileType(dtype, (X,)), Role.OUT))
    b = Builder(params={d.name: d for d in decls})
    at, k = b.let(Pos(X)), b.let(Pos(K))
    b.let(Store("y", (at,), b.reduce(fn, b.let(Load("x", (at, k))), K, order)))
    return run(canonical(Program("p", (Kernel("p", decls, b.body()),))), {"x": x})["y"]


@pytest.mark.parametrize("width", [1, 7, 64, 100])
@pytest.mark.parametrize("rule", list(Rule))
def test_a_sum_is_the_tree_of_the_padded_axis(width: int, rule: Rule) -> None:
    x = np.random.default_rng(3).normal(size=(4, width)).astype(f)
    full = 1 << (width - 1).bit_length()
    want = floats.tree_sum(floats.pad(x, 1, full, -0.0), 1, rule)
    assert_same_bits(reduction(Combine.ADD, x, DType.F32, rule), want)


@op()
def summed(x: Tensor[f32, F]) -> Outputs:
    total = L.total()
    for each in L.stream(F):
        total.absorb(x[each])
    return L.out(added=total.value)


def ascending(terms: np.ndarray) -> np.float32:
    return functools.reduce(lambda a, b: f(a + b), terms, f(-0.0))


@pytest.mark.parametrize("length", [1, 8, 500, 4096, 5003])
def test_a_fan_of_pieces_is_a_tree_and_fans_ascend(length: int) -> None:
    x = np.random.default_rng(length).normal(size=length).astype(f)
    chunks = floats.pad(x, 0, -(-length // 8) * 8, -0.0).reshape(-1, 8)
    sums = floats.tree_sum(chunks, 1, Rule.HALVING)
    pieces = floats.pad(sums, 0, -(-len(sums) // 64) * 64, -0.0).reshape(-1, 64)
    fans = floats.tree_sum(pieces, 1, Rule.HALVING)
    got = run(canonical(summed.trace(summed.default_variant())), {"x": x})["added"]
    assert_same_bits(got, ascending(fans))
    if length > 4096:
        assert differing(got, ascending(sums)) == 1, "one piece at a time has other bits"


def test_other_combines() -> None:
    x = np.random.default_rng(4).normal(size=(4, 13)).astype(f)
    x[0, 3], x[1] = np.nan, -0.0
    x[1, 5] = 0.0
    high, low = reduction(Combine.MAX, x, DType.F32), reduction(Combine.MIN, x, DType.F32)
    assert np.signbit(low[1]) and not np.signbit(high[1])
    assert (high == np.fmax.reduce(x, axis=1)).all() and (low == np.fmin.reduce(x, axis=1)).all()
    i = np.random.default_rng(5).integers(-(2**31), 2**31, (4, 13)).astype(np.int32)
    assert (reduction(Combine.ADD, i, DType.I32) == i.sum(1, dtype=np.int32)).all()
    assert (reduction(Combine.OR, x > 1.5, DType.BOOL) == (x > 1.5).any(1)).all()


# --- logp against a program written apart ---


def chunk_state(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(max, sum, sum of e (z - max)) of one chunk, with the formulas written out in NumPy."""
    wide = floats.pad(z, 1, 256, -np.inf)
    m = wide.max(1)
    safe = np.where(m == -np.inf, f(0), m)
    distance = wide - safe[:, None]
    e = floats.portable("exp2")(distance * LOG2E)
    return (
        m,
        floats.tree_sum(e, 1, Rule.HALVING),
        floats.tree_sum(e * np.fmax(distance, LOWEST), 1, Rule.HALVING),
    )


def merged(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    m = np.maximum(a[0], b[0])
    safe = np.where(m == -np.inf, f(0), m)
    da, db = a[0] - safe, b[0] - safe
    wa, wb = (floats.portable("exp2")(d * LOG2E) for d in (da, db))
    sa, sb = a[1] * wa, b[1] * wb
    ca, cb = (floats.fma(s, np.fmax(d, LOWEST), c) for s, d, c in ((sa, da, a[2] * wa), (sb, db, b[2] * wb)))
    return m, sa + sb, ca + cb


T, V = Axis("T", dynamic=True), Axis("V", chunk=256, split=8)


@op()
def powers(z: Tensor[f32, T, V]) -> Outputs:
    """Scores in units of ln 2, over an axis whose leaf is the chunk."""
    soft = L.power_sum()
    for v in L.stream(V):
        soft.absorb(z[v] * 1.4426950408889634, mean=z[v])
    return L.out(lse=soft.lse(), mean=soft.mean("mean"))


def test_power_sums_are_softmax_sums_of_other_units() -> None:
    z = (np.random.default_rng(7).normal(size=(5, 2100)) * 9).astype(f)
    z[2, 100:] = -np.inf
    inputs, wide = {"z": z}, z.astype(np.float64)
    want = np.logaddexp.reduce(wide, axis=1)
    mean = (np.exp(wide - want[:, None]) * np.where(np.isinf(wide), 0.0, wide)).sum(1)
    made = run_wide(canonical(powers.trace(powers.default_variant())), inputs)
    np.testing.assert_allclose(made["lse"], want, rtol=1e-12)
    np.testing.assert_allclose(made["mean"], mean, rtol=1e-12)
    bits = run(canonical(powers.trace(powers.default_variant())), inputs).tensors
    np.testing.assert_allclose(bits["lse"], want, rtol=1e-6)
    np.testing.assert_allclose(bits["mean"], mean, rtol=1e-5)


def reference_lse(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows, v = z.shape
    size = -(-v // 8)
    states = []
    for piece in range(8):
        state: tuple[np.ndarray, ...] = (
            np.full(rows, -np.inf, f),
            np.full(rows, 0.0, f),
            np.full(rows, -0.0, f),
        )
        low, high = min(v, piece * size), min(v, (piece + 1) * size)
        for start in range(low, high, 256):
            state = merged(state, chunk_state(z[:, start : min(start + 256, high)]))
        states.append(state)
    while len(states) > 1:
        states = [merged(a, b) for a, b in zip(states[::2], states[1::2])]
    m, s, c = states[0]
    log = floats.portable("log")(s)
    return np.where(m == -np.inf, m, m + log), log - c / s


@pytest.mark.parametrize("vocabulary", [1, 255, 2049, 50257])
def test_logp_is_the_fold_of_its_definition(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    z = (rng.normal(size=(5, vocabulary)) * 6).astype(f)
    ids = rng.integers(0, vocabulary, 5)
    if vocabulary > 2000:
        z[1, :300] = -np.inf  # a first chunk of nothing
    with np.errstate(all="ignore"):
        lse, entropy = reference_lse(z)
    program = canonical(logp.trace(variant(logp, (), {"needs": ("logp", "entropy")}, DType.F32)))
    got = run(program, {"logits": z, "ids": ids, "ignore_index": -100})
    assert_same_bits(got["lse"], lse, "lse")
    assert_same_bits(got["logp"], z[np.arange(5), ids] - lse, "logp")
    assert_same_bits(got["entropy"], entropy, "entropy")


def test_two_swapped_chunks_are_seen() -> None:
    rng = np.random.default_rng(6)
    z = (rng.normal(size=(32, 4096)) * 3).astype(f)
    program = canonical(logp.trace(variant(logp, (), {}, DType.F32)))
    ids = np.zeros(32, np.int64)
    order = np.r_[256:512, 0:256, 512:4096]
    plain, swapped = (run(program, {"logits": x, "ids": ids, "ignore_index": -100}) for x in (z, z[:, order]))
    # within a piece of two chunks a swap is only a commuted merge; across pieces it changes the tree
    assert differing(plain["lse"], swapped["lse"]) == 0
    order = np.r_[512:768, 256:512, 0:256, 768:4096]
    swapped = run(program, {"logits": z[:, order], "ids": ids, "ignore_index": -100})
    assert differing(plain["lse"], swapped["lse"]) > 0


def test_edges_of_logp() -> None:
    z = np.random.default_rng(7).normal(size=(4, 1000)).astype(f)
    z[0] = -np.inf
    ids = np.array([3, -100, 1000, -1])
    program = canonical(logp.trace(variant(logp, (), {"needs": ("logp", "entropy", "argmax")}, DType.F32)))
    got = run(program, {"logits": z, "ids": ids, "ignore_index": -100})
    assert got["lse"][0] == -np.inf and np.isnan(got["logp"][[0, 2, 3]]).all()
    assert got["logp"][1] == 0 and got["lse"][1] == 0 and not np.signbit(got["logp"][1])
    assert sum(got.errors.values()) == 3
    assert got["argmax"][2:].tolist() == z[2:].argmax(1).tolist()


def test_a_strided_input_is_read_in_place() -> None:
    z = np.random.default_rng(8).normal(size=(4, 3, 1001)).astype(f)
    view = z[:, 1, :-1]
    program = canonical(logp.trace(variant(logp, (), {}, DType.F32)))
    rest = {"ids": np.array([1, 2, 3, 4]), "ignore_index": -100}
    assert_same(run(program, {"logits": view, **rest}), run(program, {"logits": view.copy(), **rest}))
    assert_same(
        run(program, {"logits": view[:, ::-1], **rest}),
        run(program, {"logits": view[:, ::-1].copy(), **rest}),
    )


# --- laws of every operator ---


def parallel_axes(call: Call) -> list[str]:
    from rlk.interp.run import _plan

    names: set[str] = set()
    for kernel in call.program.kernels:
        plan = _plan(kernel)
        names |= {str(plan.order[i]) for i in plan.parallel}
    return sorted(names)


@pytest.mark.parametrize("name", CALLS)
def test_tiles_do_not_change_bits(name: str) -> None:
    call = CALLS[name]()
    whole = run(call.program, call.inputs, extents=call.extents, tile={})
    rng = np.random.default_rng(9)
    axes = parallel_axes(call)
    assert axes
    for size in (1, 3):
        tiled = run(call.program, call.inputs, extents=call.extents, tile=dict.fromkeys(axes[:1], size))
        assert_same(whole, tiled)
    for _ in range(3):
        sizes = {axis: int(rng.integers(2, 9)) for axis in axes}
        assert_same(whole, run(call.program, call.inputs, extents=call.extents, tile=sizes, threads=3))
    assert_same(whole, run(call.program, call.inputs, extents=call.extents, threads=1))


@pytest.mark.parametrize("name", [n for n in CALLS if CALLS[n]().rows])
def test_a_row_depends_on_that_row_alone(name: str) -> None:
    call = CALLS[name]()
    rows = call.extents["T"]
    batched = {
        d.name for k in call.program.kernels for d in k.params if d.type.axes and d.type.axes[0].name == "T"
    }
    whole = run(call.program, call.inputs, extents=call.extents)
    for chosen in ([0], [rows - 1], list(np.random.default_rng(10).permutation(rows)), [1, 1, 0]):
        inputs = {n: x[chosen] if n in batched else x for n, x in call.inputs.items()}
        some = run(call.program, inputs, extents={**call.extents, "T": len(chosen)})
        for output in some.tensors:
            assert_same_bits(some[output], whole[output][chosen], output)


@pytest.mark.parametrize("name", CALLS)
def test_f64_mode_is_close(name: str) -> None:
    call = CALLS[name]()
    exact = run(call.program, call.inputs, extents=call.extents)
    wide = run_wide(call.program, call.inputs, extents=call.extents)
    floats_of = {d.type.dtype for d in params(call.program).values() if d.type.dtype.is_float}
    tolerance = max({DType.F32: 1e-5, DType.F16: 4e-3, DType.BF16: 3e-2}[dtype] for dtype in floats_of)
    for output, x in exact.tensors.items():
        decl = params(call.program)[output]
        if not decl.type.dtype.is_float:
            assert (x == wide[output]).all()
            continue
        assert wide[output].dtype == np.float64
        np.testing.assert_allclose(arithmetic.decode(x, decl.type.dtype), wide[output], tolerance, tolerance)


def test_the_softmax_model_changes_only_where_it_is_asked_for() -> None:
    call = forward("logp", logp, LOGP_SIZES, {"ids": logp_ids(), **LOGP_SCALARS}, f=DType.F32)
    portable = run(call.program, call.inputs)
    assert_same(portable, run(call.program, call.inputs, softmax=MathModel.PORTABLE))
    hardware = run(call.program, call.inputs, softmax=MathModel.SM90)
    assert differing(portable["lse"], hardware["lse"]) + differing(portable["logp"], hardware["logp"]) > 0
    np.testing.assert_allclose(portable["lse"], hardware["lse"], 1e-6)


# --- memory ---

Indices = Callable[[Builder, Value, Value, Value], tuple[Value, Value]]
AT, I4 = np.array([2, 0, 3, 1], np.int32), np.arange(4)
READS: dict[str, tuple[Indices, np.ndarray, np.ndarray]] = {
    "ranges": (lambda b, i, k, at: (i, k), I4[:, None], I4),
    "ranges turned": (lambda b, i, k, at: (k, i), I4, I4[:, None]),
    "an element and a range": (lambda b, i, k, at: (b.i32(2), k), np.full((4, 1), 2), I4),
    "rows": (lambda b, i, k, at: (at, k), AT[:, None], I4),
    "rows turned": (lambda b, i, k, at: (k, at), I4, AT[:, None]),
    "rows of two axes": (lambda b, i, k, at: (b.map2(Fn2.XOR, at, k), i), AT[:, None] ^ I4, I4[:, None]),
    "a diagonal": (lambda b, i, k, at: (i, i), I4[:, None], I4[:, None]),
    "elements": (lambda b, i, k, at: (at, b.map2(Fn2.XOR, k, b.i32(3))), AT[:, None], I4 ^ 3),
}
"""Indices of a 4 x 4 tensor by positions i along X and k along K, and by at[i]; and the same for NumPy."""


def moved(indices: Indices, stores: bool) -> Program:
    """Return a program for y[i, k] = x[indices], or for y[indices] = x[i, k]."""
    both = (X, K)
    decls = (
        Decl("x", TileType(DType.I32, both), Role.IN),
        Decl("at", TileType(DType.I32, (X,)), Role.IN),
        Decl("y", TileType(DType.I32, both), Role.OUT),
    )
    b = Builder(params={d.name: d for d in decls})
    i, k = b.let(Pos(X)), b.let(Pos(K))
    given = indices(b, i, k, b.let(Load("at", (i,))))
    read, written = ((i, k), given) if stores else (given, (i, k))
    b.let(Store("y", written, b.let(Load("x", read))))
    return Program("p", (Kernel("p", decls, b.body()),))


@pytest.mark.parametrize("tile", [None, {}, {"X": 1}, {"X": 3, "K": 2}], ids=str)
@pytest.mark.parametrize("which", READS)
def test_memory_is_read_and_written_at_its_indices(which: str, tile: dict[str, int] | None) -> None:
    indices, row, column = READS[which]
    wide = np.random.default_rng(7).permutation(64).astype(np.int32).reshape(8, 8)
    for x in (wide[:4, :4].copy(), wide[:4, :4], wide[::2, 1::2], wide[:4, 4:].T):
        got = run(moved(indices, stores=False), {"x": x, "at": AT}, tile=tile)["y"]
        assert (got == np.broadcast_to(x[row, column], (4, 4))).all()
        assert (got != np.roll(x, 1, 0)).any()
        if which not in ("a diagonal", "an element and a range"):
            want = np.zeros_like(x)
            want[row, column] = x
            y = np.zeros((8, 4), np.int32)[::2]
            run(moved(indices, stores=True), {"x": x, "at": AT, "y": y}, tile=tile)
            assert (y == want).all()


def test_what_was_read_does_not_change_with_memory() -> None:
    """y is both read and written: the second store has what the first load read."""
    decls = (Decl("y", TileType(DType.F32, (X,)), Role.OUT), Decl("z", TileType(DType.F32, (X,)), Role.OUT))
    b = Builder(params={d.name: d for d in decls})
    at = (b.let(Pos(X)),)
    old = b.let(Load("y", at))
    b.let(Store("y", at, b.map1(Fn1.NEG, old)))
    b.let(Store("z", at, old))
    y = np.arange(1, 5, dtype=f)
    made = run(Program("p", (Kernel("p", decls, b.body()),)), {"y": y})
    assert made["y"].tolist() == [-1, -2, -3, -4] and made["z"].tolist() == [1, 2, 3, 4]


# --- errors ---


def store_everywhere(
    index: Callable[[Builder], Value], guard: Callable[[Builder], Value] | None = None
) -> Program:
    decls = (Decl("x", TileType(DType.F32, (X,)), Role.IN), Decl("y", TileType(DType.F32, (X,)), Role.OUT))
    b = Builder(params={d.name: d for d in decls})
    x = b.let(Load("x", (b.let(Pos(X)),)))
    b.let(Store("y", (index(b),), x, None if guard is None else guard(b)))
    return Program("p", (Kernel("p", decls, b.body()),))


def test_an_unguarded_index_out_of_range_is_refused() -> None:
    program = store_everywhere(lambda b: b.add(b.let(Pos(X)), b.i32(1)))
    with pytest.raises(LaunchError, match=r"index 0 of y is outside \[0, 4\)(.|\n)*INDEX_OUTSIDE"):
        run(program, {"x": np.ones(4, f)})
    guarded = store_everywhere(
        lambda b: b.add(b.let(Pos(X)), b.i32(1)),
        lambda b: b.map2(Fn2.LT, b.let(Pos(X)), b.sub(b.let(Extent(X)), b.i32(1))),
    )
    assert run(guarded, {"x": np.ones(4, f)})["y"][1:].tolist() == [1, 1, 1]


def test_a_second_write_is_refused() -> None:
    with pytest.raises(InternalError, match="written twice"):
        run(store_everywhere(lambda b: b.i32(0)), {"x": np.ones(4, f)})


def test_missing_and_misshaped_inputs_are_refused() -> None:
    call = CALLS["swiglu"]()
    gate, up = call.inputs["gate"], call.inputs["up"]
    with pytest.raises(LaunchError, match="up is required"):
        run(call.program, {"gate": gate})
    with pytest.raises(LaunchError, match="N = 39"):
        run(call.program, {"gate": gate, "up": up[:, :-1]})
    with pytest.raises(LaunchError, match="1 dims"):
        run(call.program, {"gate": gate, "up": up[0]})


def test_streams_must_be_expanded_first() -> None:
    with pytest.raises(SpecError, match="expanded"):
        run(
            logp.trace(variant(logp)),
            {"logits": np.ones((2, 9), f), "ids": np.zeros(2, np.int64), "ignore_index": 0},
        )


def test_checks_count_failures_once_whatever_the_tiles() -> None:
    decls = (
        Decl("x", TileType(DType.F32, (X, K)), Role.IN),
        Decl("y", TileType(DType.F32, (X, K)), Role.OUT),
    )
    b = Builder(params={d.name: d for d in decls})
    at, k = b.let(Pos(X)), b.let(Pos(K))
    b.let(Check(b.map2(Fn2.LT, at, b.i32(2)), "a small row"))
    x = b.let(Load("x", (at, k)))
    b.let(Store("y", (at, k), b.let(Select(b.map1(Fn1.ISNAN, x), b.f32(math.pi), x))))
    program = Program("p", (Kernel("p", decls, b.body()),))
    for tile in ({}, {"X": 1}, {"K": 2}, {"X": 2, "K": 1}):
        assert run(program, {"x": np.ones((5, 4), f)}, tile=tile).errors == {"a small row": 2}


@pytest.mark.parametrize("wrong", [[0, 3], [1, 2, 4], [5], [0, 1, 2, 3, 4, 5]])
def test_a_check_reports_the_last_row_whatever_the_tiles(wrong: list[int]) -> None:
    """As a device does, whose programs keep the largest row that any of them met."""
    decls = (
        Decl("x", TileType(DType.I32, (X, K)), Role.IN),
        Decl("y", TileType(DType.I32, (X, K)), Role.OUT),
    )
    b = Builder(params={d.name: d for d in decls})
    at = (b.let(Pos(X)), b.let(Pos(K)))
    x = b.let(Load("x", at))
    b.let(Check(b.map2(Fn2.LT, x, b.i32(0)), "a negative number"))
    b.let(Store("y", at, x))
    program = Program("p", (Kernel("p", decls, b.body()),))
    given = np.ones((6, 3), np.int32)
    given[wrong, np.arange(len(wrong)) % 3] = -1
    for tile in (None, {}, {"X": 1}, {"X": 4}, {"K": 1}, {"X": 2, "K": 2}):
        for threads in (1, 3):
            got = run(program, {"x": given}, tile=tile, threads=threads)
            assert got.rows == {"a negative number": wrong[-1]} and got.errors == {
                "a negative number": len(wrong)
            }


def test_an_output_may_be_given_as_a_buffer() -> None:
    call = CALLS["swiglu"]()
    buffer = np.zeros((5, 40), np.uint16)
    got = run(call.program, {**call.inputs, "y": buffer})
    assert got["y"] is buffer and buffer.any()


def test_no_rows_give_empty_outputs() -> None:
    call = CALLS["rms_norm"]()
    got = run(call.program, {**call.inputs, "x": call.inputs["x"][:0]})
    assert got["y"].shape == (0, 96) and got["rstd"].shape == (0,)
