"""Reductions of a whole dynamic axis: a stream of its chunks, of any length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlk.errors import Code, LoweringError, SpecError
from rlk.interp.run import run
from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Scalar,
    Tensor,
    Tree,
    Variant,
    bf16,
    f16,
    f32,
    i8,
    i32,
    i64,
    op,
    u32,
)
from rlk.lang.op import Op
from rlk.passes.pipeline import canonical
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.check import Law, check
from rlk.testing.examples import Example
from rlk.testing.generated import run_generated

T = Axis("T", chunk=1, piece=64, dynamic=True)
R = Axis("R", chunk=64, dynamic=True)
N = Axis("N", chunk=256, dynamic=True)
W = Axis("W", chunk=8192, dynamic=True)
C = Axis("C", chunk=256)
H = Axis("H")
F = DTypeVar("F", (bf16, f16, f32))


@op(saves=("x", "weight", "rstd"), returns=("y",))
def rms(x: Tensor[F, T, N], weight: Tensor[F, N], eps: Scalar[f32, 0.0:] = 1e-6) -> Outputs:
    """RMS norm of rows of any width."""
    z = x.to(f32)
    rstd = L.rsqrt(L.sum(z * z, over=N, tree=Tree.halving) / L.extent(N).to(f32) + eps)
    return L.out(y=(z * rstd * weight.to(f32)).to(x.dtype), rstd=rstd)


rms.derive_vjp("x", "weight")


@op()
def by_sum(x: Tensor[f32, R, N]) -> Outputs:
    """A sum of squares."""
    return L.out(y=L.sum(x * x, over=N, tree=Tree.vector8))


@op()
def by_stream(x: Tensor[f32, R, N]) -> Outputs:
    """The same, written as a stream."""
    total = L.total(lanes=Tree.vector8)
    for n in L.stream(N):
        total.absorb(x[n] * x[n])
    return L.out(y=total.value)


@op()
def in_a_row(x: Tensor[f32, R, C]) -> Outputs:
    """The same of a static axis, which a program has whole."""
    return L.out(y=L.sum(x * x, over=C, tree=Tree.vector8))


@op()
def normed(x: Tensor[f32, R, W]) -> Outputs:
    """Rows of a dynamic axis, divided by their sums."""
    return L.out(y=x / L.sum(abs(x), over=W, tree=Tree.halving))


@op()
def in_registers(x: Tensor[f32, R, H]) -> Outputs:
    """The same of a static axis."""
    return L.out(y=x / L.sum(abs(x), over=H, tree=Tree.halving))


@op()
def extremes(x: Tensor[f32, R, N], n: Tensor[i32, R, N]) -> Outputs:
    """Every reduction but sums of floats."""
    whole = {
        "words": L.min(n.to(u32), over=N),
        "wide": L.max(n.to(i64), over=N),
        "brief": L.max(n.to(i8), over=N),
    }
    found = {"most": L.max(n, over=N), "least": L.min(n, over=N), "added": L.sum(n, over=N)}
    return L.out(high=L.max(x, over=N), low=L.min(x, over=N), some=L.any(n > 98, over=N), **found, **whole)


def expected(x: np.ndarray, n: np.ndarray) -> dict[str, np.ndarray]:
    whole = {
        "words": n.view(np.uint32).min(1),
        "wide": n.max(1).astype(np.int64),
        "brief": n.astype(np.int8).max(1),
    }
    found = {"most": n.max(1), "least": n.min(1), "added": n.sum(1, dtype=np.int32)}
    # NaN loses, also to nothing; -0.0 < +0.0, the order of the patterns as integers of sign and magnitude
    floats = {"high": _largest(x), "low": -_largest(-x)}
    return {**floats, "some": (n > 98).any(1), **found, **whole}


def _largest(x: np.ndarray) -> np.ndarray:
    bits = np.where(np.isnan(x), np.float32(-np.inf), x).view(np.int32)
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).max(1)
    return np.where(keys < 0, keys ^ 0x7FFFFFFF, keys).view(np.float32)


@pytest.mark.parametrize("by", [None, "triton", "cute"])
def test_extremes_and_integers_need_no_order(by: str | None) -> None:
    rng = np.random.default_rng(0)
    program = canonical(extremes.trace(Variant()))
    for width in (601, 256, 1):
        x, n = (
            rng.normal(size=(6, width)).astype(np.float32),
            rng.integers(-100, 100, (6, width)).astype(np.int32),
        )
        x[1:3, width // 2 : width - 1] = np.nan
        x[3] = np.where(np.arange(width) < width // 2, np.float32(-0.0), np.float32(0.0))
        x[4], x[5] = x[3][::-1], np.nan
        n[0] = abs(n[0])
        if by is None:
            got = run(program, {"x": x, "n": n}).tensors
        else:
            pytest.importorskip("triton")
            got = run_generated(program, {"x": x, "n": n}, backend=by, on=target("sm_90a")).tensors
        for name, want in expected(x, n).items():
            made = got[name].numpy() if isinstance(got[name], torch.Tensor) else got[name]
            assert_same_bits(made, want, name)


def test_a_sum_is_that_of_a_stream() -> None:
    """The tree is that of a chunk; along a static axis it is that of the whole row."""
    x = np.random.default_rng(0).normal(size=(4, 3000)).astype(np.float32)
    one, two, whole = (
        run(canonical(spec.trace(spec.default_variant())), {"x": x})["y"]
        for spec in (by_sum, by_stream, in_a_row)
    )
    assert_same_bits(one, two)
    assert (whole != one).any()


def test_rows_may_be_of_any_width() -> None:
    """No backend holds a row of 200,003 elements; each lowers the stream of it."""
    pytest.importorskip("triton")
    x = np.random.default_rng(0).normal(size=(2, 200_003)).astype(np.float32)
    program = canonical(normed.trace(Variant()))
    want = run(program, {"x": x})["y"]
    exact = x / np.abs(x.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(want, exact, rtol=2e-6)
    assert_same_bits(run_generated(program, {"x": x}, on=target("sm_90a")).tensors["y"], want)
    with pytest.raises(LoweringError) as found:  # the control
        run_generated(canonical(in_registers.trace(Variant())), {"x": x}, on=target("sm_90a"))
    assert "131072" in str(found.value) and "dynamic=True), along which" in str(found.value)


def test_gradients_are_derived() -> None:
    x, weight = (torch.randn(*shape, requires_grad=True) for shape in ((70, 700), (700,)))
    rms(x, weight).square().sum().backward()
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    (
        exact[0] * torch.rsqrt(exact[0].square().mean(1, keepdim=True) + 1e-6) * exact[1]
    ).square().sum().backward()
    for each, wanted in zip((x, weight), exact, strict=True):
        torch.testing.assert_close(each.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


@op(saves=("x",), returns=("high",))
def spread(x: Tensor[f32, R, N]) -> Outputs:
    """The range of each row."""
    return L.out(high=L.max(x, over=N) - 2.0 * L.min(x, over=N))


spread.derive_vjp("x")


def test_the_first_of_the_largest_has_the_gradient() -> None:
    """Of -0.0 and +0.0, which compare equal, the first has it, though the largest is +0.0."""
    x = torch.randn(3, 601)
    x[1] = torch.cat([torch.full((300,), -0.0), torch.zeros(301)])
    x[2, 7:500] = torch.nan
    x.requires_grad_()
    spread(x).sum().backward()
    want = torch.zeros(3, 601)
    for row in range(3):
        z = x.detach()[row]
        want[row, z.nan_to_num(-torch.inf).argmax()] += 1
        want[row, z.nan_to_num(torch.inf).argmin()] -= 2
    assert torch.equal(x.grad, want)


def test_every_law_holds() -> None:
    laws = [Law.TEXT, Law.SLOPE, Law.TILES, Law.ROWS, Law.LOWERS]
    verdicts = list(check(rms, Example(), [target("sm_90a")], laws))
    assert [v for v in verdicts if v.ok is False] == [] and {v.law for v in verdicts if v.ok} == {*laws}
    lowered = {v.backend for v in verdicts if v.law is Law.LOWERS and v.ok}
    assert lowered == {"triton", "tilelang"}
    notes = [v.note for v in verdicts if v.law is Law.LOWERS and v.ok is None]
    assert notes and all("test_whole_axes.py" in note for note in notes)


def nested(x: object) -> object:
    total = L.total()
    for _ in L.stream(Axis("M", chunk=16)):
        total.absorb(L.sum(x, over=N, tree=Tree.halving))  # type: ignore[arg-type]
    return total.value


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda x: L.sum(L.keep(x * x, "kept"), over=N, tree=Tree.halving), Code.WHOLE_OF_STREAM),
        (lambda x: L.sum(x * x, over=N), Code.FLOAT_SUM_NEEDS_TREE),
        (nested, Code.STREAM_NESTED),
        (lambda x: L.sum(x.to(bf16), over=N, tree=Tree.halving), Code.DTYPE_WANTED),
        (lambda x: L.max(x.to(bf16), over=N), Code.DTYPE_WANTED),
    ],
)
def test_what_cannot_be_computed_again_is_refused_at_its_line(wrong, code: Code) -> None:  # type: ignore[no-untyped-def]
    @op()
    def spec(x: Tensor[f32, R, N]) -> Outputs:
        return L.out(y=wrong(x.whole()))

    with pytest.raises(SpecError) as found:
        spec.trace(Variant())
    assert found.value.code is code and "test_whole_axes.py" in str(found.value)


def test_products_and_tables_are_read_chunk_by_chunk() -> None:
    @op()
    def spec(x: Tensor[bf16, R, H], w: Tensor[bf16, N, H]) -> Outputs:
        z = L.table(L.dot(x, w, over=H) * 0.5, "scores")
        return L.out(y=L.sum(z.at(R, N), over=N, tree=Tree.halving), again=L.max(L.dot(x, w, over=H), over=N))

    rng = np.random.default_rng(0)
    x, w = (torch.from_numpy(rng.normal(size=(n, 32)).astype(np.float32)).bfloat16() for n in (5, 600))
    made = spec(x, w)
    z = x.double() @ w.double().T
    torch.testing.assert_close(made.y.double(), z.sum(1) * 0.5, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(made.again.double(), z.amax(1), rtol=1e-5, atol=1e-5)


SPECS: tuple[Op, ...] = (rms, extremes)
"""For tests on devices."""


@op()
def scored(h: Tensor[bf16, R, H], w: Tensor[bf16, N, H]) -> Outputs:
    """Products with any number of rows, whose chunks run side by side."""
    return L.out(y=L.sum(L.dot(h, w, over=H), over=N, tree=Tree.halving))


def test_chunks_of_products_of_a_dynamic_axis_stay_inside_of_memory() -> None:
    """Their number is a quotient of the extent, in the text of kernels and of the host."""
    pytest.importorskip("triton")
    laws = [Law.SOURCE, Law.SIMULATED]
    verdicts = list(check(scored, Example(), [target("sm_90a")], laws))
    assert [v for v in verdicts if v.ok is False] == [] and {v.law for v in verdicts if v.ok} == {*laws}


@op()
def shares(x: Tensor[f32, R]) -> Outputs:
    """Elements divided by their sum, which is over the rows of the call."""
    total = L.total()
    for r in L.stream(R):
        total.absorb(abs(x[r]))
    return L.out(y=x / total.value)


def test_elements_that_read_a_sum_over_all_are_no_rows() -> None:
    (verdict,) = check(shares, Example(), [target("sm_90a")], [Law.ROWS])
    assert verdict.ok is None and "not independent" in verdict.note
