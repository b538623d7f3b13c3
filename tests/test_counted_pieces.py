"""Integers kept for each piece of single elements, by one program or by vectors: the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir.nodes import Program, Stream
from rlk.lang import Axis, L, Op, Outputs, Tensor, Tree, Variant, bf16, f32, i8, i32, op
from rlk.passes.expand import counts_pieces
from rlk.passes.pipeline import canonical
from rlk.schedule.axes import roles
from rlk.schedule.heuristics import apart
from rlk.target.facts import target
from rlk.testing.bits import differing

T = Axis("T", dynamic=True)
U = Axis("U", chunk=1, split=16)
PIECES = frozenset({"U"})
Rows = Tensor[f32, T, U]


@op()
def counted(x: Rows, bound: Tensor[f32, T]) -> Outputs:
    """The piece with the most elements above a bound, and their places, each times its piece's number."""
    above, places = L.total(kept=True), L.total(kept=True)
    for u in L.stream(U):
        over = x[u] > bound
        above.absorb(over.to(i32))
        places.absorb(L.where(over, u.pos, 0))
    piece = L.pos(U.pieces)
    most = L.max(above.value * 16 + piece, over=U.pieces)
    return L.out(most=most, places=L.sum(places.value * (piece + 1), over=U.pieces))


@op()
def summed(x: Rows) -> Outputs:
    """A float sum by pieces, whose order is its own."""
    total = L.total(kept=True)
    for u in L.stream(U):
        total.absorb(x[u])
    return L.out(total=L.sum(total.value, over=U.pieces, tree=Tree.halving))


N, K = Axis("N"), Axis("K")


@op()
def counted_beside(x: Rows, bound: Tensor[f32, T], a: Tensor[bf16, T, K], w: Tensor[i8, N, K]) -> Outputs:
    """Counts of pieces, and a product whose factor is written first where it has many rows."""
    above = L.total(kept=True)
    for u in L.stream(U):
        above.absorb((x[u] > bound).to(i32))
    most = L.keep(L.max(above.value, over=U.pieces), "most")
    return L.out(most=most, y=L.dot(a, w.to(bf16), over=K))


def traced(spec: Op) -> Program:
    return spec.trace(Variant.of({}, frozenset(), {}))


def inputs(size: int) -> dict[str, object]:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((3, size)).astype(np.float32)
    x[0, size // 2] = np.nan
    return {"x": x, "bound": np.float32([-0.5, 0.0, 1.0])}


@pytest.mark.parametrize("size", [1, 15, 16, 500, 513, 1300])
def test_vectors_of_a_piece_count_what_single_elements_count(size: int) -> None:
    given = inputs(size)
    serial, parallel = canonical(traced(counted)), canonical(traced(counted), apart=PIECES)
    assert (len(serial.kernels), len(parallel.kernels)) == (1, 2)
    one, two = run(serial, given), run(parallel, given)
    for name in ("most", "places"):
        assert not differing(one[name], two[name]), name
    # the control: an element that moves to another piece is counted there
    x = given["x"]
    assert isinstance(x, np.ndarray)
    other = run(parallel, {**given, "x": np.roll(x, -(-size // 16), axis=1)})
    assert size < 500 or differing(one["places"], other["places"])


@pytest.mark.parametrize("size", [15, 1300])
@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_generated_source_counts_the_same(size: int, backend: str) -> None:
    pytest.importorskip("triton")
    from rlk.testing.generated import run_generated

    want = run(canonical(traced(counted)), inputs(size))
    got = run_generated(canonical(traced(counted), apart=PIECES), inputs(size), backend=backend)
    for name in ("most", "places"):
        assert not differing(got.tensors[name], want[name]), name


def test_pieces_of_integers_are_programs_of_their_own() -> None:
    for rows in (1, 1 << 20):
        assert apart(canonical(traced(counted)), {"T": rows, "U": 1300}) == PIECES
    first, _ = canonical(traced(counted), apart=PIECES).kernels
    assert U.pieces in roles(first, {"U": 1300}).parallel


def test_what_an_order_decides_stays_in_one_loop() -> None:
    assert apart(canonical(traced(summed)), {"T": 1, "U": 1300}) == frozenset()
    (kernel,) = traced(counted).kernels
    stream = next(x.node for x in kernel.body.lets if isinstance(x.node, Stream))
    (floats,) = (x.node for x in traced(summed).kernels[0].body.lets if isinstance(x.node, Stream))
    zero = kernel.body.lets[0].value
    assert counts_pieces(stream) and not counts_pieces(floats)
    for change in (
        {"axis": replace(U, chunk=2)}, {"axis": replace(U, split=None)}, {"when": zero}, {"reverse": True},
        {"folds": tuple(replace(f, kept=False) for f in stream.folds)},
    ):  # fmt: skip
        assert not counts_pieces(replace(stream, **change)), change  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_schedules_of_a_written_factor_beside_them_can_be_given_back(backend: str) -> None:
    torch = pytest.importorskip("torch")
    from rlk.runtime.binding.candidates import formed
    from rlk.runtime.binding.invocation import geometry_of
    from rlk.runtime.binding.selection import invoke
    from rlk.runtime.binding.shape_buckets import sizes_of
    from rlk.runtime.call.dispatch import lowered

    on = target("sm_90a")
    sizes = {"x": (4096, 1300), "bound": (4096,), "a": (4096, 1024), "w": (1024, 1024)}
    dtypes = {"a": torch.bfloat16, "w": torch.int8}
    tensors = {n: torch.empty(s, dtype=dtypes.get(n), device="meta") for n, s in sizes.items()}
    invocation = invoke(counted_beside, tensors, {}, {}, None)
    call = invocation, on.softmax, geometry_of(invocation, tensors), tensors, on
    program, _, shipped, emitted = lowered(*call, None, backend)
    assert len(shipped) == len(program.kernels) == 4 and emitted.backend == backend
    assert lowered(*call, shipped, backend)[3].source == emitted.source
    held = sizes_of(invocation, call[2])
    few, schedules = formed(invocation, on.softmax, held, on, shipped[:2])
    assert len(few.kernels) == 2
    assert lowered(*call, schedules, backend)[0] == few  # the serial form, with no factor written
