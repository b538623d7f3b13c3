"""Results of streams, materialized for outputs along the streamed axis: no tile runs a stream again."""

from __future__ import annotations

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir.nodes import Kernel, Loop, Program, Store
from rlk.ir.types import TileType
from rlk.lang import Axis, L, Op, Outputs, Tensor, Variant, f32, op
from rlk.passes import pipeline
from rlk.passes.pipeline import canonical
from rlk.passes.rewrite import each
from rlk.passes.stream_results import kept
from rlk.passes.walk import walk
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.generated import run_generated

T, V = Axis("T", dynamic=True), Axis("V", chunk=32, split=4)


@op()
def softmax(z: Tensor[f32, T, V]) -> Outputs:
    soft, total = L.softmax_sum(), L.total()
    for v in L.stream(V):
        soft.absorb(z[v])
        total.absorb(z[v])
    c = soft.lse()  # a name of generated kernels' own; that of p has none
    return L.out(p=L.exp(z - soft.lse()), lse=c, twice=z * 2.0, rest=z - c, half=total.value * 0.5)


@op()
def written(z: Tensor[f32, T, V]) -> Outputs:
    """The same as an author cuts it."""
    soft, total = L.softmax_sum(), L.total()
    for v in L.stream(V):
        soft.absorb(z[v])
        total.absorb(z[v])
    lse = soft.lse()
    L.place("lse", (T,), ({}, lse))
    L.place("half", (T,), ({}, total.value * 0.5))
    lse = L.keep(lse, "lse_kept")
    return L.out(p=L.exp(z - lse), twice=z * 2.0, rest=z - lse)


@op()
def in_two_streams(z: Tensor[f32, T, V]) -> Outputs:
    """Nothing lies along the whole axis."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(z[v])
    lse = soft.lse()
    for v in L.stream(V):
        L.emit(p=L.exp(z[v] - lse))
    return L.out(lse=lse)


def runs_again(kernel: Kernel) -> bool:
    """Return whether a kernel both stores along the whole axis and loops along it."""
    types = {let.value: let.type for let in walk(kernel.body)}
    stores = [let.node for let in kernel.body.lets if isinstance(let.node, Store)]
    found = [types[i] for store in stores for i in store.index]
    along = any(isinstance(t, TileType) and V in t.axes for t in found)
    return along and any(isinstance(let.node, Loop) for let in kernel.body.lets)


def traced(spec: Op) -> Program:
    return spec.trace(Variant())


def test_no_tile_of_an_output_runs_a_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program = canonical(traced(softmax))
    assert len(program.kernels) == 2 and not any(map(runs_again, program.kernels))
    z = np.random.default_rng(0).normal(size=(5, 301)).astype(np.float32)
    model = target("sm_90a").softmax
    want, got = run(program, {"z": z}, softmax=model).tensors, run_generated(program, {"z": z}).tensors
    by_hand = run(canonical(traced(written)), {"z": z}, softmax=model).tensors
    for name in ("p", "lse", "twice", "rest", "half"):
        assert_same_bits(got[name], want[name], name)
        assert_same_bits(by_hand[name], want[name], name)
    # the control: without the pass, with the same bits
    monkeypatch.setattr(pipeline, "CANONICAL", pipeline.CANONICAL[1:])
    plain = canonical(traced(softmax))
    assert any(map(runs_again, plain.kernels))
    assert_same_bits(run(plain, {"z": z}, softmax=model)["p"], want["p"])


def test_what_needs_no_cut_is_left_as_it_is() -> None:
    for spec in (written, in_two_streams):
        program = traced(spec)
        assert each(program, kept) == program
