"""`L.top(k)`: the k largest scores of a streamed row and their indices, ties by the lowest index."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlk.errors import Code, SpecError
from rlk.interp.run import run
from rlk.ir import fold
from rlk.ir.nodes import Value
from rlk.ir.numerics import numerics_id
from rlk.ir.text import parse_program, print_program
from rlk.lang import Axis, L, Outputs, Ragged, Tensor, Tile, Variant, f32, i32, op
from rlk.lang.op import Op
from rlk.lang.trace import TensorArg
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import emit
from rlk.schedule.heuristics import apart
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.check import Law, check
from rlk.testing.examples import Example
from rlk.testing.generated import run_generated

K = 5
T = Axis("T", dynamic=True)
V = Axis("V", chunk=64, split=4)
C = Axis("C", chunk=64)
P = Axis("P", chunk=32, piece=64, dynamic=True)
G = Axis("G", chunk=16, piece=64, leaf="piece")
O = Axis("O", chunk=1)
B = Axis("B", dynamic=True)
S = Ragged("S", over=B, chunk=16)


def found(top: L.top) -> dict[str, Tile]:
    scores = {f"score{i}": x for i, x in enumerate(top.values)}
    return scores | {f"index{i}": n for i, n in enumerate(top.indices)}


def of(x: TensorArg, axis: Axis) -> Outputs:
    top = L.top(K)
    for v in L.stream(axis):
        top.absorb(x[v])
    return L.out(**found(top))


@op()
def split(x: Tensor[f32, T, V]) -> Outputs:
    """Four pieces, merged pairwise."""
    return of(x, V)


@op()
def chunked(x: Tensor[f32, T, C]) -> Outputs:
    """Chunks, ascending."""
    return of(x, C)


@op()
def pieces(x: Tensor[f32, T, P]) -> Outputs:
    """Pieces in memory, along a dynamic axis."""
    return of(x, P)


@op()
def restarted(x: Tensor[f32, T, G]) -> Outputs:
    """A state for each piece, in registers."""
    return of(x, G)


@op()
def singly(x: Tensor[f32, T, O]) -> Outputs:
    """One element at a time."""
    return of(x, O)


@op()
def segments(x: Tensor[f32, P], begin: Tensor[i32, B], end: Tensor[i32, B]) -> Outputs:
    """Of each sequence; indices count through all."""
    top = L.top(K)
    for s in L.stream(S, begin=begin, end=end):
        top.absorb(x.at(s.pos))
    return L.out(**found(top))


SPECS = (split, chunked, pieces, restarted, singly)


def rows(width: int) -> np.ndarray:
    """Return rows with many ties; one of -inf, one with NaN, one of zeros of both signs."""
    x = np.random.default_rng(width).integers(-20, 20, (6, width)).astype(np.float32)
    x[0], x[1, ::2], x[2], x[2, ::2] = -np.inf, np.nan, 0.0, -0.0
    return x


def expected(x: np.ndarray, low: int = 0, lowest: bool = True) -> dict[str, np.ndarray]:
    """Return the K largest of rows by a stable sort; lowest: of equal ones the lowest index."""
    y = np.where(np.isnan(x), np.float32(-np.inf), x) + np.float32(0)
    order = np.argsort(-y, axis=1, kind="stable")
    if not lowest:
        order = y.shape[1] - 1 - np.argsort(-y[:, ::-1], axis=1, kind="stable")
    order = order[:, :K]
    missing = ((0, 0), (0, K - order.shape[1]))
    scores = np.pad(np.take_along_axis(y, order, 1), missing, constant_values=-np.inf)
    indices = np.pad((order + low).astype(np.int32), missing, constant_values=2**31 - 1)
    return {f"score{i}": scores[:, i] for i in range(K)} | {f"index{i}": indices[:, i] for i in range(K)}


def same(got: object, want: dict[str, np.ndarray]) -> None:
    for name, x in want.items():
        assert_same_bits(got[name], x, name)  # type: ignore[index]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_ties_go_to_the_lowest_index_in_every_order_of_chunks(spec: Op) -> None:
    program = canonical(spec.trace(Variant()))
    for width in (301, 3):
        x = rows(width)
        same(run(program, {"x": x}), expected(x))
    wrong = expected(rows(301), lowest=False)  # the control
    assert any((run(program, {"x": rows(301)})[name] != x).any() for name, x in wrong.items())


@pytest.mark.parametrize("by", ["triton", "cute"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_generated_source_has_the_oracles_bits(spec: Op, by: str) -> None:
    pytest.importorskip("triton")
    if by == "cute" and spec is pieces:
        pytest.skip("CuTe has no second dynamic axis")
    program, x = canonical(spec.trace(Variant())), rows(171)
    same(run_generated(program, {"x": x}, backend=by, on=target("sm_90a")).tensors, expected(x))


@pytest.mark.parametrize("rows_of_call", [6, 1000])
def test_chunks_side_by_side_that_are_read_rotated(rows_of_call: int) -> None:
    """As calls of few rows run it: the index of a row comes before those of the elements that it shifts."""
    pytest.importorskip("triton")
    extents = {"T": rows_of_call, "V": 5000}
    traced = split.trace(Variant())
    program = canonical(traced, apart=apart(canonical(traced), extents))
    emitted, _, _ = emit(program, extents, target("sm_90a"), "triton")
    assert "shift = " in emitted.source or rows_of_call > 100
    x = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    found = run_generated(program, {"x": x}, on=target("sm_90a"), divisible=frozenset({"x"}))
    assert "shift = " in found.emitted.source
    same(found.tensors, expected(x))


def test_segments_have_a_top_each() -> None:
    x = rows(40)[3]
    begin, end = np.array([0, 9, 9], np.int32), np.array([9, 9, 40], np.int32)
    program, given = canonical(segments.trace(Variant())), {"x": x, "begin": begin, "end": end}
    each = [expected(x[None, a:b], int(a)) for a, b in zip(begin, end, strict=True)]
    want = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    same(run(program, given), want)
    pytest.importorskip("triton")
    same(run_generated(program, given, on=target("sm_90a")).tensors, want)


def test_an_insertion_without_the_tie_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def strictly(
        b: fold.Builder, monoid: object, state: tuple[Value, ...], element: object, *_: int
    ) -> object:
        right = b.map2
        with monkeypatch.context() as edited:
            edited.setattr(
                fold.Builder, "map2", lambda self, fn, x, y, name="": right(_loose(fn), x, y, name)
            )
            return inserted(b, monoid, state, element)  # type: ignore[arg-type]

    def _loose(fn: fold.Fn2) -> fold.Fn2:
        return fold.Fn2.LE if fn is fold.Fn2.LT else fn

    inserted = fold._inserted
    x = rows(301)
    monkeypatch.setattr(fold, "_inserted", strictly)
    made = run(canonical(chunked.trace(Variant())), {"x": x})
    assert any((made[name] != want).any() for name, want in expected(x).items())


@op(saves=("x",))
def best_two(x: Tensor[f32, T, C]) -> Outputs:
    """The gap between the two best scores."""
    top = L.top(2)
    for v in L.stream(C):
        top.absorb(x[v] * 2.0)
    return L.out(gap=top.values[0] - top.values[1])


best_two.derive_vjp("x")


def test_a_score_has_the_gradient_of_its_element() -> None:
    x = torch.from_numpy(rows(70)[3:]).requires_grad_()
    with torch.no_grad():
        x += torch.linspace(0, 0.5, 70)  # no ties
    best_two(x).sum().backward()
    got = x.grad
    best = (x.detach() * 2.0).topk(2)
    want = torch.zeros_like(x)
    want.scatter_(1, best.indices, torch.tensor([[2.0, -2.0]]).expand(3, 2))
    assert torch.equal(got, want)


@pytest.mark.parametrize("spec", [split, best_two], ids=lambda spec: spec.name)
def test_every_law_holds(spec: Op) -> None:
    laws = [Law.TEXT, Law.SLOPE, Law.TILES, Law.ROWS, Law.SOURCE, Law.LOWERS]
    verdicts = list(check(spec, Example(), [target("sm_90a")], laws))
    assert [v for v in verdicts if v.ok is False] == []
    assert {v.law for v in verdicts if v.ok} == {*laws} - ({Law.SLOPE} if spec is split else set())


def test_k_is_part_of_the_text_and_of_ids() -> None:
    def with_k(k: int) -> Op:
        @op(name="of_k")
        def spec(x: Tensor[f32, T, C]) -> Outputs:
            top = L.top(k)
            for v in L.stream(C):
                top.absorb(x[v])
            return L.out(y=top.values[0])

        return spec

    traced = with_k(12).trace(Variant())
    assert print_program(parse_program(print_program(traced))) == print_program(traced)
    one, two = (numerics_id((canonical(with_k(k).trace(Variant())),), "cpu") for k in (2, 3))
    assert one != two


@pytest.mark.parametrize("k", [0, 33, 2.0, True])
def test_k_is_a_number_of_1_to_32(k: object) -> None:
    @op()
    def spec(x: Tensor[f32, T, C]) -> Outputs:
        top = L.top(k)  # type: ignore[arg-type]
        for v in L.stream(C):
            top.absorb(x[v])
        return L.out(y=top.values[0])

    with pytest.raises(SpecError) as error:
        spec.trace(Variant())
    assert error.value.code is Code.TOP_COUNT and "test_top.py" in str(error.value)


# --- the largest and the smallest of NaN alone ---

N = Axis("N")
D = Axis("D", chunk=4, dynamic=True)


@op()
def extremes(x: Tensor[f32, T, N]) -> Outputs:
    """Of a whole row, padded to a power of two with what loses."""
    return L.out(most=L.max(x, over=N), least=L.min(x, over=N))


@op()
def extremes_of_chunks(x: Tensor[f32, T, D]) -> Outputs:
    """Of a row of any length, beginning with what loses."""
    return L.out(most=L.max(x, over=D), least=L.min(x, over=D))


@pytest.mark.parametrize("by", ["oracle", "triton", "cute"])
@pytest.mark.parametrize(("spec", "n", "is_nan"), [(extremes, 8, True), (extremes, 6, False),
                                                   (extremes_of_chunks, 8, False)])  # fmt: skip
def test_extremes_of_nan_alone_are_nan_where_nothing_pads(spec: Op, n: int, is_nan: bool, by: str) -> None:
    """Documented at `L.max` and `L.min`: another rule would be other numerics, with other ids."""
    program, x = canonical(spec.trace(Variant())), np.full((2, n), np.nan, np.float32)
    x[1, 3] = 2.5  # the control: a NaN loses to any number
    if by == "oracle":
        made = dict(run(program, {"x": x}).tensors)
    else:
        pytest.importorskip("triton")
        made = dict(run_generated(program, {"x": x}, backend=by, on=target("sm_90a")).tensors)
    for name, padding in (("most", -np.inf), ("least", np.inf)):
        first, second = made[name]
        assert second == 2.5 and (np.isnan(first) if is_nan else first == padding), (name, first)
