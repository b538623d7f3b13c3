"""Storage dtypes: every cast of i8, u8, e4m3 and e5m2 in the oracle, in torch and in generated source."""

from __future__ import annotations

import ladder
import numpy as np
import pytest
import torch

from rlk.errors import Code, LaunchError, SpecError
from rlk.interp import floats, portable
from rlk.interp.run import run
from rlk.ir import portable as definitions
from rlk.ir.dotmodel import native
from rlk.ir.numerics import numerics_id
from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Tensor,
    Variant,
    bf16,
    e4m3,
    e5m2,
    f16,
    f32,
    i8,
    i32,
    i64,
    op,
    u8,
)
from rlk.passes.pipeline import canonical
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.check import Law, check
from rlk.testing.examples import Example
from rlk.testing.generated import run_generated

T, N, K = Axis("T", dynamic=True), Axis("N"), Axis("K")
F = DTypeVar("F", (f32, bf16, f16))
S = DTypeVar("S", (i8, u8, e4m3, e5m2))
FORMATS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}
RUNS = [("triton", "sm_90a"), ("triton", "gfx942"), ("cute", "sm_90a"), ("tilelang", "gfx942")]
EDGES = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 448.0, 464.0, -465.0, 57344.0, 65536.0, -1e30, 2.0**-10,
         3 * 2.0**-10, 2.0**-17, -(2.0**-18), 127.5, -128.5, 255.9, 0.99]  # fmt: skip


@op()
def narrowed(x: Tensor[F, T, N]) -> Outputs:
    return L.out(to_i8=x.to(i8), to_u8=x.to(u8), to_e4m3=x.to(e4m3), to_e5m2=x.to(e5m2))


@op()
def widened(x: Tensor[S, T, N], y: Tensor[S, T, N]) -> Outputs:
    chosen = L.where(x.to(f32) > y.to(f32), x, y)
    floats = {"to_f32": x.to(f32), "to_bf16": x.to(bf16), "to_f16": x.to(f16)}
    whole = {"to_i32": x.to(i32), "to_i64": x.to(i64)} if x.dtype in (i8, u8) else {}
    return L.out(chosen=chosen, to_i8=x.to(i8), to_e4m3=x.to(e4m3), **floats, **whole)


def numbers(shape: tuple[int, int]) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(np.float32)
    x.flat[: len(EDGES)] = EDGES
    return x


@pytest.mark.parametrize("name", FORMATS)
def test_an_8_bit_float_is_torchs_with_saturation(name: str) -> None:
    dtype, largest = FORMATS[name]
    codes = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(codes).view(dtype).float()
    assert_same_bits(floats.float8_from_bits(codes, name), want.numpy())
    # every number of 16 bits, and the f32 beside it on both sides: among them all ties
    high = np.arange(1, 65536, dtype=np.uint32) << 16
    x = np.concatenate([high - 1, high, high + 1, high + 0x8000]).view(np.float32)
    held = torch.from_numpy(x)
    limited = torch.where(held.isnan(), held, held.clamp(-largest, largest))
    want = limited.to(dtype).view(torch.uint8).numpy()
    want = np.where(np.isnan(x), np.uint8(0x7F), want)
    got = floats.float8_bits(x, name)
    assert_same_bits(got, want)
    assert_same_bits(portable.evaluate(f"to_{name}", x).astype(np.uint8), want)
    beyond = (held * (1 + 2.0**-23)).numpy()  # the control: ties go away from zero
    assert (floats.float8_bits(beyond, name) != want).any()


@pytest.mark.parametrize(("by", "on"), RUNS, ids=[f"{by}-{on}" for by, on in RUNS])
def test_casts_have_one_value_on_all_backends(by: str, on: str) -> None:
    pytest.importorskip("triton")
    if by == "tilelang":
        ladder.require()
    width = 32 if by == "cute" else 37  # vectors of 16 bytes, and elements one by one
    program = canonical(narrowed.trace(Variant.of({"F": f32})))
    x = numbers((5, width))
    want = run(program, {"x": x})
    got = run_generated(program, {"x": x}, backend=by, on=target(on)).tensors
    for name, kind in (("to_i8", None), ("to_u8", None), ("to_e4m3", "e4m3"), ("to_e5m2", "e5m2")):
        assert_same_bits(got[name], want[name], name, kind)
    codes = np.arange(5 * width, dtype=np.uint8).reshape(5, width) + 90
    for dtype in (i8, e4m3) if by == "tilelang" else (i8, u8, e4m3, e5m2):  # that one compiles C++
        program = canonical(widened.trace(Variant.of({"S": dtype})))
        held = codes.view(np.int8) if dtype is i8 else codes
        given = {"x": held, "y": held[::-1].copy()}
        want = run(program, given).tensors
        got = run_generated(program, given, backend=by, on=target(on)).tensors
        for name in want:
            kinds = {"to_bf16": "bf16", "to_e4m3": "e4m3"}
            kind = dtype.value if name == "chosen" and dtype.is_float8 else kinds.get(name)
            assert_same_bits(got[name], want[name], f"{name} of {dtype}", kind)


@op()
def copied(x: Tensor[S, T, N]) -> Outputs:
    return L.out(y=x.whole())


def test_stored_bits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    for dtype in (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2):
        x = codes.view(dtype)
        assert_same_bits(copied(x), x)  # an infinity of e5m2 too
    with pytest.raises(LaunchError) as found:
        copied(codes.view(torch.float8_e4m3fnuz))
    assert found.value.code is Code.ARG_DTYPE


@pytest.mark.parametrize(
    "wrong",
    [
        (lambda q, w: q + q, [e4m3]),
        (lambda q, w: q < q, [e4m3]),
        (lambda q, w: -q, [e4m3]),
        (lambda q, w: L.max(q, over=N), [e4m3]),
        (lambda q, w: q / q, [i8, e4m3]),
        (lambda q, w: q.bits(i8), [i8, e4m3]),
        (lambda q, w: L.sum(q, over=N), [i8, e4m3]),
        (lambda q, w: L.exp(q), [i8, e4m3]),
    ],
)
def test_what_8_bits_lack_is_cast_first(wrong) -> None:  # type: ignore[no-untyped-def]
    @op()
    def spec(q: Tensor[S, T, N], w: Tensor[S, K, N]) -> Outputs:
        return L.out(y=wrong[0](q.whole(), w.whole()))

    for dtype in wrong[1]:
        with pytest.raises(SpecError) as found:
            spec.trace(Variant.of({"S": dtype}))
        assert found.value.code in (Code.DTYPE_WANTED, Code.QUOTIENT)
        assert "test_storage_dtypes.py" in str(found.value)


@op()
def whole_bytes(x: Tensor[S, T, N], y: Tensor[S, T, N]) -> Outputs:
    """Arithmetic of 8-bit integers, modulo 2**8, on what is loaded and on what is computed."""
    low, high = L.minimum(x, y), L.maximum(x, y)
    mixed = (x * y + 3) ^ ~x
    less = (low < 7) | (mixed >= high)
    shifted = ((x << 3) | (y >> 2)) & 0x7D
    quotients = (shifted % 11) + shifted // ((y & 7) + 1)
    extremes = {"largest": L.max(mixed, over=N), "smallest": L.min(x - y, over=N)}
    made = L.number(300, i32).to(x.dtype)  # 44: a number that the dtype lacks
    cast = {
        "half": x * 0 + made // 2,
        "below": x < made,
        "above": L.maximum(x, L.number(-1, i32).to(x.dtype)),
    }
    return L.out(mixed=mixed, less=less, turned=abs(-x) - low, quotients=quotients, **extremes, **cast)


@pytest.mark.parametrize(("by", "on"), RUNS, ids=[f"{by}-{on}" for by, on in RUNS])
def test_integers_of_8_bits_are_computed_with_modulo_256(by: str, on: str) -> None:
    pytest.importorskip("triton")
    if by == "tilelang":
        ladder.require()
    codes = np.random.default_rng(0).integers(0, 256, (2, 4, 64)).astype(np.uint8)
    for dtype, kind in ((i8, np.int8),) if by == "tilelang" else ((i8, np.int8), (u8, np.uint8)):
        program = canonical(whole_bytes.trace(Variant.of({"S": dtype})))
        x, y = (each.view(kind) for each in codes)
        want = run(program, {"x": x, "y": y}).tensors
        wide, other = x.astype(np.int64), y.astype(np.int64)
        shifted = ((wide << 3) | (other >> 2)) & 0x7D
        exact = {
            "mixed": (wide * other + 3) ^ ~wide,
            "turned": abs((-wide).astype(kind).astype(np.int64)) - np.minimum(wide, other),
            "quotients": shifted % 11 + shifted // ((other & 7) + 1),
            "half": np.full_like(wide, 22),
            "above": np.maximum(wide, np.array(-1).astype(kind)),
        }
        for name, value in exact.items():
            assert_same_bits(want[name], value.astype(kind), name)
            if name in ("mixed", "turned"):
                assert (want[name] != value).any()  # the control: some exceed 8 bits
        assert_same_bits(want["below"], wide < 44)
        assert_same_bits(want["largest"], want["mixed"].max(1))
        assert_same_bits(want["smallest"], (wide - other).astype(kind).min(1))
        got = run_generated(program, {"x": x, "y": y}, backend=by, on=target(on)).tensors
        for name in want:
            assert_same_bits(got[name], want[name], f"{name} of {dtype}")


A, W = DTypeVar("A", (e4m3, e5m2, i8, u8)), DTypeVar("W", (e4m3, e5m2))


@op()
def of_8_bits(x: Tensor[A, T, K], w: Tensor[W, N, K]) -> Outputs:
    """A product of numbers of 8 bits."""
    return L.out(y=L.dot(x, w, over=K))


@op()
def of_16_bits(x: Tensor[f16, T, K], w: Tensor[f16, N, K]) -> Outputs:
    """The same of 16 bits."""
    return L.out(y=L.dot(x, w, over=K))


def test_factors_of_8_bits_are_contracted_as_those_of_16() -> None:
    """A product of e4m3 and e5m2 factors has the bits of the product of the same numbers as f16."""
    rng = np.random.default_rng(0)
    x, w = (torch.from_numpy((rng.normal(size=(n, 300)) * 30).astype(np.float32)) for n in (5, 7))
    for left in (torch.float8_e4m3fn, torch.float8_e5m2):
        for right in (torch.float8_e4m3fn, torch.float8_e5m2):
            a, b = x.to(left), w.to(right)
            assert torch.equal(a.half().float(), a.float()) and torch.equal(b.half().float(), b.float())
            assert_same_bits(of_8_bits(a, b), of_16_bits(a.half(), b.half()))
    assert (of_8_bits(x.to(torch.float8_e5m2), b) != of_8_bits(x.to(torch.float8_e4m3fn), b)).any()


@pytest.mark.parametrize("spec", [of_8_bits, whole_bytes], ids=lambda spec: spec.name)
def test_every_law_holds(spec) -> None:  # type: ignore[no-untyped-def]
    laws = [Law.TEXT, Law.TILES, Law.ROWS, Law.SOURCE, Law.LOWERS]
    verdicts = list(check(spec, Example(), [target("sm_90a")], laws))
    assert [v for v in verdicts if v.ok is False] == [] and {v.law for v in verdicts if v.ok} == {*laws}
    # by CuTe too, which writes both factors of 8 bits first
    assert [v.note for v in verdicts if v.law is Law.LOWERS and v.ok is None] == []


def test_other_factors_of_8_bits_are_cast_first() -> None:
    for dtype in (i8, u8):
        with pytest.raises(SpecError) as found:
            of_8_bits.trace(Variant.of({"A": dtype, "W": e4m3}))
        assert found.value.code is Code.DTYPE_MIX and "test_storage_dtypes.py" in str(found.value)

    @op()
    def of_u8(q: Tensor[u8, T, N], w: Tensor[u8, K, N]) -> Outputs:
        return L.out(y=L.dot(q, w, over=N))

    with pytest.raises(SpecError) as found:
        of_u8.trace(Variant())
    assert found.value.code is Code.DTYPE_WANTED


@pytest.mark.parametrize(("by", "on"), [("triton", "sm_90a"), ("tilelang", "gfx942")])
def test_products_of_8_bits_have_the_oracles_bits(by: str, on: str) -> None:
    pytest.importorskip("triton")
    if by == "tilelang":
        ladder.require()
    program = canonical(of_8_bits.trace(Variant.of({"A": e4m3, "W": e5m2})))
    codes = np.random.default_rng(1).integers(0, 256, (16 + 32, 48)).astype(np.uint8)
    codes &= np.where(codes & 0x7C == 0x7C, 0xBB, 0xFF).astype(np.uint8)  # neither NaN nor infinity
    given = {"x": codes[:16], "w": codes[16:]}
    want = run(program, given, dots=native(on)).tensors["y"]
    got = run_generated(program, given, backend=by, on=target(on)).tensors["y"]
    assert_same_bits(got, want)


def test_the_definition_of_a_cast_is_part_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [canonical(widened.trace(Variant.of({"S": s}))) for s in (e4m3, i8)]
    before = [numerics_id((program,), "sm_90a") for program in made]
    monkeypatch.setitem(definitions.CONVERSIONS, "from_e4m3", definitions.from_e5m2)
    after = [numerics_id((program,), "sm_90a") for program in made]
    assert before[0] != after[0] and before[1] == after[1]


def test_a_literal_must_fit() -> None:
    @op()
    def spec(q: Tensor[i8, T, N]) -> Outputs:
        return L.out(y=L.where(q.to(i32) > 3, q, 128))

    with pytest.raises(SpecError) as found:
        spec.trace(Variant())
    assert found.value.code is Code.DTYPE_MIX


def test_round_is_to_the_nearest_even() -> None:
    @op()
    def rounded(x: Tensor[f32, T, N]) -> Outputs:
        return L.out(y=L.round(x))

    x = torch.from_numpy(numbers((5, 32)))
    x[1] = torch.arange(-8, 8, 0.5)
    x[2, :4] = torch.tensor([0.49999997, -0.49999997, 2.0**23 + 1, 8388607.5])
    want = torch.round(x)
    torch.testing.assert_close(rounded(x), want, rtol=0, atol=0, equal_nan=True)
    assert (torch.floor(x + 0.5) != want).any()
