"""No pass changes a bit, no tiling either, and each comparison can fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from oracle_cases import GRADIENTS, Gradient, Inputs, params, random_inputs, variant
from random_programs import K, X, random_program, random_tensors

from rlk.errors import Code, SpecError, UnsupportedError
from rlk.interp.floats import tree_sum
from rlk.interp.run import Outcome, run
from rlk.ir.build import Builder
from rlk.ir.nodes import (
    Block,
    Check,
    Decl,
    Extent,
    Fn2,
    Keep,
    Kernel,
    Load,
    Loop,
    MathModel,
    Pos,
    Program,
    Role,
    Store,
    Stream,
)
from rlk.ir.types import DType, TileType
from rlk.ir.verify import verify
from rlk.lang import Axis, L, Op, Outputs, Scalar, Tensor, Tree, f32, i32, i64, op
from rlk.lang.op import Variant
from rlk.passes.mask import mask
from rlk.passes.pipeline import CANONICAL, canonical, specialize
from rlk.passes.rewrite import each
from rlk.passes.simplify import simplify
from rlk.passes.split_reduction import pieces
from rlk.passes.walk import walk
from rlk.specs.logp import logp
from rlk.testing.bits import assert_same_bits, differing

STAGES = ("trace", *(name for name, _ in CANONICAL))
DYNAMIC = ("T", "S", "B", "P")


def outputs_of(program: Program) -> list[str]:
    return [name for name, decl in params(program).items() if decl.role is Role.OUT]


def assert_same(got: Outcome, want: Outcome, names: list[str]) -> None:
    for name in names:
        assert_same_bits(got[name], want[name], name)
    assert got.errors == want.errors


# --- every operator, forward and backward ---


class Work:
    """A program of a case in its traced form, with inputs for all that it declares."""

    def __init__(self, case: Gradient, backward: bool) -> None:
        # a power of two: before `mask` nothing guards the padding of an axis that is reduced at once
        self.extents = {**case.extents, **({"N": 32} if "N" in case.extents else {})}
        inputs = random_inputs(case.forward(), self.extents, 5, case.given)
        chosen = variant(case.op, case.present, case.statics, DType.F32)
        self.program = case.op.trace(chosen)
        if backward:
            known = {**inputs, **run(case.forward(), inputs, extents=self.extents).tensors, **case.extra}
            vjp = case.op.gradient
            assert vjp is not None
            present = chosen.present | frozenset(case.cotangents())
            self.program = vjp.trace(Variant(chosen.dtypes, present, chosen.statics, frozenset(case.wrt)))
            inputs = known
        self.inputs = self.filled(inputs)

    def filled(self, known: Inputs) -> Inputs:
        """Add random floats for cotangents, and anything for what the program declares and never reads."""
        rng = np.random.default_rng(6)
        made: Inputs = {}
        for name, decl in params(self.program).items():
            if name in known:
                made[name] = known[name]
            elif decl.role in (Role.IN, Role.SCALAR):
                drawn = rng.normal(size=tuple(self.extents[axis.name] for axis in decl.type.axes))
                made[name] = drawn.astype(np.float32 if decl.type.dtype is DType.F32 else np.int32)
        return made

    def run(self, program: Program, **options: object) -> Outcome:
        read = {n for n, d in params(program).items() if d.role in (Role.IN, Role.SCALAR)}
        inputs = {n: x for n, x in self.inputs.items() if n in read}
        options = {"tile": {}, "extents": self.extents, **options}
        return run(program, inputs, **options)  # type: ignore[arg-type]


CASES = [(name, backward) for name in GRADIENTS for backward in (False, True)]
IDS = [f"{name}, {'backward' if backward else 'forward'}" for name, backward in CASES]


@cache
def work(name: str, backward: bool) -> Work:
    return Work(GRADIENTS[name](), backward)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_pass_changes_a_bit(case: tuple[str, bool]) -> None:
    it = work(*case)
    want = it.run(canonical(it.program))
    names = outputs_of(canonical(it.program))
    ran = 0
    for stage in STAGES:
        program = canonical(it.program, after=stage)
        if not any(isinstance(let.node, Stream | Keep) for k in program.kernels for let in walk(k.body)):
            verify(program)
            assert_same(it.run(program), want, names)
            ran += 1
    assert ran >= len(STAGES) - list(STAGES).index("expand")


@pytest.mark.parametrize("model", [MathModel.PORTABLE, MathModel.SM90])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_binding_a_signature_changes_no_bit(case: tuple[str, bool], model: MathModel) -> None:
    it = work(*case)
    program = canonical(it.program)
    static = {name: n for name, n in it.extents.items() if name not in DYNAMIC}
    bound = specialize(program, static, model)
    verify(bound)
    want = it.run(program, softmax=model)
    assert_same(it.run(bound), want, outputs_of(program))
    rng = np.random.default_rng(7)
    for _ in range(2):
        tile = {str(axis): int(rng.integers(1, 9)) for axis in axes_of(bound)}
        assert_same(it.run(bound, tile=tile), want, outputs_of(program))


def axes_of(program: Program) -> set[Axis]:
    lets = [let for k in program.kernels for let in walk(k.body)]
    return {axis for let in lets if isinstance(let.type, TileType) for axis in let.type.axes}


@pytest.mark.parametrize("case", [c for c in CASES if "N" in GRADIENTS[c[0]]().extents], ids=str)
def test_masks_hold_at_any_extent_and_tile(case: tuple[str, bool]) -> None:
    it = Work(GRADIENTS[case[0]](), case[1])
    program = canonical(it.program)
    n = 20
    short = {**it.extents, "N": n}
    cut = {name: x[..., :n] if np.shape(x)[-1:] == (32,) else x for name, x in it.inputs.items()}
    read = {name: cut[name] for name, d in params(program).items() if d.role in (Role.IN, Role.SCALAR)}
    want = run(program, read, extents=short)
    assert_same(run(program, read, extents=short, tile={"T": 3}), want, outputs_of(program))
    bound = specialize(program, {"N": n}, MathModel.PORTABLE)
    assert_same(run(bound, read, extents=short), want, outputs_of(program))


def test_cut_repeats_no_effect_and_orders_workspaces() -> None:
    cuts = 0
    for name, backward in CASES:
        whole = canonical(work(name, backward).program, after="simplify")
        program = canonical(work(name, backward).program)
        for kind in (Store, Check):
            count = [sum(isinstance(n, kind) for n in nodes(p)) for p in (whole, program)]
            assert count[0] == count[1], (name, kind)
        written: set[str] = set()
        for kernel in program.kernels:
            work_names = {d.name for d in kernel.params if d.role is Role.WORK}
            read = {let.node.param for let in walk(kernel.body) if isinstance(let.node, Load)} & work_names
            assert read <= written
            written |= work_names
        cuts += len(program.kernels) - 1
    assert cuts >= 3


def nodes(program: Program) -> Iterator[object]:
    for kernel in program.kernels:
        yield from (let.node for let in walk(kernel.body))


# --- simplify and mask on random programs ---


@pytest.mark.parametrize("seed", range(80))
def test_simplify_changes_no_bit(seed: int) -> None:
    program = random_program(seed)
    made = each(program, simplify)
    verify(made)
    assert len(list(nodes(made))) <= len(list(nodes(program)))
    assert each(made, simplify) == made
    for x, k in ((3, 8), (1, 1)):
        tensors = random_tensors(seed, x, k)
        assert_same(run(made, tensors), run(program, tensors), outputs_of(program))


@pytest.mark.parametrize("seed", range(20))
def test_mask_changes_no_bit(seed: int) -> None:
    program = random_program(seed)
    masked = each(program, mask)
    full = random_tensors(seed, 3, 8)
    assert_same(run(masked, full), run(program, full), outputs_of(program))
    tail = random_tensors(seed, 3, 5)
    want = run(masked, tail, tile={})
    assert_same(run(each(masked, simplify), tail), want, outputs_of(program))
    assert_same(run(masked, tail, tile={"X": 2}), want, outputs_of(program))


def test_a_float_is_never_folded() -> None:
    """x + 0.0 is not x: -0.0 + 0.0 is +0.0."""
    decls = (Decl("a", TileType(DType.F32, (X,)), Role.IN), Decl("y", TileType(DType.F32, (X,)), Role.OUT))
    b = Builder(params={d.name: d for d in decls})
    at = b.let(Pos(X))
    a = b.let(Load("a", (at,)))
    b.let(Store("y", (at,), b.add(a, b.f32(0.0))))
    program = Program("p", (Kernel("p", decls, b.body()),))
    a_bits = np.full(4, -0.0, np.float32)
    got = run(each(program, simplify), {"a": a_bits})["y"]
    assert_same_bits(got, run(program, {"a": a_bits})["y"])
    assert differing(got, a_bits) == 4


def test_loads_of_a_written_tensor_are_not_shared() -> None:
    decls = (Decl("a", TileType(DType.F32, (X,)), Role.IN), Decl("y", TileType(DType.F32, (X,)), Role.OUT))
    b = Builder(params={d.name: d for d in decls})
    at = b.let(Pos(X))
    b.let(Store("y", (at,), b.let(Load("a", (at,)))))
    for _ in range(2):
        b.let(Store("y", (at,), b.add(b.let(Load("y", (at,))), b.let(Load("y", (at,))))))
    program = Program("p", (Kernel("p", decls, b.body()),))
    a = np.arange(4, dtype=np.float32)
    assert run(each(program, simplify), {"a": a})["y"].tolist() == (a * 4).tolist()


def test_simplify_moves_invariants_out_of_loops() -> None:
    b = Builder(params={d.name: d for d in (Decl("y", TileType(DType.I32, (X, K)), Role.OUT),)})
    at, k = b.let(Pos(X)), b.let(Pos(K))
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        fixed = b.map2(Fn2.MUL, at, b.i32(3))
        b.let(Store("y", (at, step), b.add(b.add(fixed, step), b.map2(Fn2.MUL, at, b.i32(3)))))

    b.let(Loop(K, b.i32(0), b.let(Extent(K)), (), (), Block((step,), tuple(lets))))
    del k
    program = Program("p", (Kernel("p", tuple(b.params.values()), b.body()),))
    made = each(program, simplify)
    (loop,) = (n for n in nodes(made) if isinstance(n, Loop))
    assert sum(1 for n in nodes(made) if getattr(n, "fn", None) is Fn2.MUL) == 1
    assert not any(getattr(let.node, "fn", None) is Fn2.MUL for let in loop.body.lets)
    extents = {"X": 3, "K": 4}
    assert_same(run(made, {}, extents=extents), run(program, {}, extents=extents), ["y"])


# --- streams ---


T = Axis("T", dynamic=True)
S = Axis("S", chunk=4, dynamic=True)
LEAVES = Axis("LEAVES", chunk=4, piece=8, leaf="piece")


@op()
def segments(x: Tensor[i32, S], low: Tensor[i64, T], high: Tensor[i64, T]) -> Outputs:
    """The sum of x over four segments per row: bounded on both sides, on one, and on none."""
    both, above, below, all = L.total(), L.total(), L.total(), L.total()
    for s in L.stream(S, begin=low, end=high):
        both.absorb(x[s])
    for s in L.stream(S, begin=low):
        above.absorb(x[s])
    for s in L.stream(S, end=high):
        below.absorb(x[s])
    for s in L.stream(S):
        all.absorb(x[s])
    return L.out(both=both.value + L.pos(T) * 0, above=above.value, below=below.value, all=all.value)


def test_a_stream_covers_its_segment() -> None:
    x = np.arange(1, 24, dtype=np.int32)
    low, high = np.array([0, 3, 7, 22, 23]), np.array([23, 3, 9, 23, 23])
    program = canonical(segments.trace(segments.default_variant()))
    got = run(program, {"x": x, "low": low, "high": high})
    assert got["both"].tolist() == [x[a:b].sum() for a, b in zip(low, high)]
    assert got["above"].tolist() == [x[a:].sum() for a in low]
    assert got["below"].tolist() == [x[:b].sum() for b in high]
    assert got["all"] == x.sum()


R = Axis("R", chunk=1, dynamic=True)


@op()
def running(x: Tensor[f32, R], low: Tensor[i64, T], high: Tensor[i64, T], first: Tensor[f32, T]) -> Outputs:
    """c = (c + x) / 2 along a segment per row, up and down: what every step holds, and what the last left."""
    up, down = L.carry(first, T), L.carry(first, T)
    for r in L.stream(R, begin=low, end=high):
        up.hand((up.value + x[r]) * 0.5)
        L.place("ups", (R,), ({R: r.pos}, up.value))
    for r in L.stream(R, begin=low, end=high, reverse=True):
        down.hand((down.value + x[r]) * 0.5)
        L.place("downs", (R,), ({R: r.pos}, down.value))
    return L.out(up=up.value, down=down.value)


def step_by_step(x: np.ndarray, first: np.float32) -> tuple[list[np.float32], np.float32]:
    held = []
    for term in x:
        held.append(first)
        first = (first + term) * np.float32(0.5)
    return held, first


def test_a_carry_hands_on_what_each_step_leaves() -> None:
    rng = np.random.default_rng(0)
    x, first = (rng.standard_normal(n).astype(np.float32) for n in (30, 4))
    edges = np.array([0, 1, 1, 17, 30])
    given = {"x": x, "low": edges[:-1], "high": edges[1:], "first": first}
    traced = running.trace(running.default_variant())
    verify(traced)
    got = run(canonical(traced), given)
    for row, (a, b) in enumerate(itertools.pairwise(edges)):
        for which, part in (("up", x[a:b]), ("down", x[a:b][::-1])):
            held, last = step_by_step(part, first[row])
            made = got[f"{which}s"][a:b] if which == "up" else got[f"{which}s"][a:b][::-1]
            assert_same_bits(made, np.array(held, np.float32), which)
            assert_same_bits(got[which][row], last, which)
    # the control: the two directions are not the same
    assert differing(got["up"], got["down"])


def test_steps_that_leave_too_little_are_refused() -> None:
    traced = running.trace(running.default_variant())
    (kernel,) = traced.kernels
    lets = tuple(
        replace(x, node=replace(x.node, body=replace(x.node.body, results=())))
        if isinstance(x.node, Stream)
        else x
        for x in kernel.body.lets
    )
    with pytest.raises(SpecError) as caught:
        verify(replace(traced, kernels=(replace(kernel, body=replace(kernel.body, lets=lets)),)))
    assert caught.value.code is Code.LOOP_TYPES


@op()
def piecewise(x: Tensor[f32, LEAVES]) -> Outputs:
    """A fold that restarts at each piece."""
    total = L.total()
    for p in L.stream(LEAVES):
        total.absorb(x[p])
    return L.out(y=total.value)


@pytest.mark.parametrize("apart", [frozenset(), frozenset({"LEAVES"})], ids=["in one loop", "apart"])
def test_a_leaf_of_a_piece_is_the_sum_of_its_chunks(apart: frozenset[str]) -> None:
    """Chunks of 4 by halving, two of them ascending to a piece, pieces ascending: an order of its own."""
    x = np.random.default_rng(3).normal(size=101).astype(np.float32)
    padded = np.pad(x, (0, 3)).reshape(-1, 4)
    chunks = [tree_sum(chunk, 0, Tree.halving) for chunk in padded]
    pieces = [sum(chunks[i : i + 2], np.float32(0)) for i in range(0, len(chunks), 2)]
    want = sum(pieces, np.float32(0))
    program = canonical(piecewise.trace(piecewise.default_variant()), apart=apart)
    assert run(program, {"x": x})["y"] == want
    assert sum(chunks, np.float32(0)) != want


PIECES = Axis("PIECES", chunk=4, piece=8)


@op()
def doubled(x: Tensor[f32, PIECES]) -> Outputs:
    """Nothing combines its elements."""
    return L.out(y=x + x)


@pytest.mark.parametrize(("named", "cut"), [(set(), False), ({"T"}, False), ({"PIECES"}, True)])
def test_pieces_that_nothing_combines_are_those_of_the_named_axes(named: set[str], cut: bool) -> None:
    (kernel,) = doubled.trace(doubled.default_variant()).kernels
    made = pieces(kernel, frozenset(named))
    axes = {a for let in walk(made.body) if isinstance(let.type, TileType) for a in let.type.axes}
    assert axes == ({PIECES.pieces, PIECES.within} if cut else {PIECES})


FANNED = replace(LEAVES, name="FANNED", fan_in=4)


@op()
def fanned(x: Tensor[f32, FANNED]) -> Outputs:
    """Pieces that one loop would merge one at a time, and a second kernel by fours."""
    total = L.total()
    for p in L.stream(FANNED):
        total.absorb(x[p])
    return L.out(y=total.value)


@op()
def kept_apart(x: Tensor[f32, LEAVES]) -> Outputs:
    """A state for every lane, where one loop holds that of a single piece."""
    total, lanes = L.total(), L.total(kept=True)
    for p in L.stream(LEAVES):
        total.absorb(x[p])
        lanes.absorb(x[p])
    return L.out(y=total.value)


@pytest.mark.parametrize("operator", [fanned, kept_apart], ids=lambda operator: operator.name)
def test_a_leaf_of_a_piece_merges_whole_states_one_at_a_time(operator: Op) -> None:
    with pytest.raises(UnsupportedError) as caught:
        canonical(operator.trace(operator.default_variant()))
    assert caught.value.code is Code.CANNOT_LOWER
    assert caught.value.diagnostics[0].loc.source().startswith("for p in L.stream(")


# --- controls: what must change bits does ---


def fold_of(chunk: int = 256, split: int = 8, lanes: object = Tree.halving) -> Op:
    """Return the fold of logp, with its numerics open to change."""
    V = Axis("V", chunk=chunk, split=split)

    def lse_of(logits: Any, scale: Any) -> Outputs:
        soft, best = L.softmax_sum(lanes=lanes, entropy=True), L.argmax()
        for v in L.stream(V):
            z = logits[v] * scale
            soft.absorb(z)
            best.absorb(z)
        return L.out(scaled=soft.sum, lse=soft.lse(), entropy=soft.entropy(), argmax=best.index)

    lse_of.__annotations__ = {"logits": Tensor[f32, T, V], "scale": Scalar[f32]}
    return op()(lse_of)


def folded(spec: Op, z: np.ndarray) -> Outcome:
    return run(canonical(spec.trace(spec.default_variant())), {"logits": z, "scale": 1.0})


@cache
def scores() -> np.ndarray:
    return (np.random.default_rng(8).normal(size=(64, 8 * 1024)) * 4).astype(np.float32)


def test_the_copy_is_the_fold_of_logp() -> None:
    z = scores()
    chosen = variant(logp, (), {"needs": ("logp", "entropy", "argmax")}, DType.F32)
    ids = np.zeros(len(z), np.int64)
    shipped = run(canonical(logp.trace(chosen)), {"logits": z, "ids": ids, "ignore_index": -100})
    assert_same(folded(fold_of(), z), shipped, ["lse", "entropy", "argmax"])


OTHER_TREES = (Tree.pairwise, Tree.vector8, Tree((3, 1, 4, 0, 5, 2, 6, 7)))


@pytest.mark.parametrize(
    "change",
    [{"chunk": 128}, {"chunk": 512}, {"split": 4}, {"split": 16}, *({"lanes": t} for t in OTHER_TREES)],
    ids=str,
)
def test_other_numerics_have_other_bits(change: Inputs) -> None:
    base, other = folded(fold_of(), scores()), folded(fold_of(**change), scores())
    # the logarithm hides most last bits of the sum
    assert differing(base["scaled"], other["scaled"]) > 0
    assert differing(base["entropy"], other["entropy"]) > 0
    for name in ("lse", "entropy"):
        np.testing.assert_allclose(base[name], other[name], rtol=1e-5)
    assert_same_bits(base["argmax"], other["argmax"])


def test_swapped_chunks_have_other_bits() -> None:
    z = scores()
    size, chunk = z.shape[1] // 8, 256
    order = np.arange(z.shape[1]).reshape(-1, chunk)
    # the first and the last chunk of the first piece: their merge is not only commuted
    order[[0, size // chunk - 1]] = order[[size // chunk - 1, 0]]
    base, swapped = folded(fold_of(), z), folded(fold_of(), z[:, order.ravel()])
    assert differing(base["scaled"], swapped["scaled"]) > 0
    np.testing.assert_allclose(base["lse"], swapped["lse"], rtol=1e-5)


def test_swapped_rows_have_the_same_bits() -> None:
    z = scores()
    order = np.random.default_rng(9).permutation(len(z))
    base, moved = folded(fold_of(), z), folded(fold_of(), z[order])
    for name in ("lse", "entropy", "argmax"):
        assert_same_bits(moved[name], base[name][order])


@op()
def kept_twice(x: Tensor[f32, T], y: Tensor[f32, T]) -> Outputs:
    one, two = L.keep(x * 2.0, "one"), L.keep(y * 3.0, "two")
    return L.out(z=one + two, last=L.keep(one * two, "three") + 1.0)


def test_values_that_do_not_wait_for_each_other_are_kept_in_one_launch() -> None:
    program = canonical(kept_twice.trace(kept_twice.default_variant()))
    stores = [
        [n.param for n in nodes(replace(program, kernels=(k,))) if isinstance(n, Store)]
        for k in program.kernels
    ]
    assert [{"one", "two"} <= set(stores[0]), "three" in stores[0], len(stores)] == [True, False, 3]
