"""A contraction that is added onto a sum takes its pieces one by one, in any order of loops around it."""

from __future__ import annotations

import numpy as np
import pytest

from rlk.errors import Code, SpecError, UnsupportedError
from rlk.interp.dot import dot
from rlk.interp.floats import bf16_bits
from rlk.interp.run import run
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import MathModel, Phase
from rlk.ir.text import parse_program, print_program
from rlk.ir.types import DType
from rlk.lang import Axis, L, Op, Outputs, Tensor, bf16, f32, op
from rlk.passes.piecewise_launch import sweep
from rlk.passes.pipeline import canonical, specialize
from rlk.testing.bits import assert_same_bits, differing

P = Axis("P", piece=3, dynamic=True)
E = Axis("E", split=4)
N = Axis("N")
K = Axis("K")
SIZES = {"N": 20, "K": 17, "E": 24}


@op()
def added(x: Tensor[bf16, P, N], w: Tensor[bf16, P, K], z: Tensor[f32, N, K]) -> Outputs:
    L.place("y", (N, K), ({}, L.dot(x, w, over=P, onto=z)))
    return L.out()


@op()
def head(a: Tensor[bf16, P, K], b: Tensor[bf16, E, K], z: Tensor[f32, E, K]) -> Outputs:
    """Two results of a product that is kept: one merges its pieces, the other adds its own onto a sum."""
    kept = L.keep(L.dot(a, b, over=K).to(bf16), "kept")
    L.place("left", (P, K), ({}, L.dot(kept, b, over=E)))
    L.place("right", (E, K), ({}, L.dot(kept, a, over=P, onto=z)))
    return L.out()


def drawn(*shape: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 2.0 ** np.arange(shape[-1])).astype(
        np.float32
    )


def inputs(rows: int) -> dict[str, np.ndarray]:
    return {
        "x": bf16_bits(drawn(rows, 20, seed=1)),
        "w": bf16_bits(drawn(rows, 17, seed=2)),
        "z": drawn(20, 17, seed=3),
    }


def products(given: dict[str, np.ndarray], rows: int) -> list[np.ndarray]:
    """Return the product of each piece of three rows."""
    cuts = [slice(i, i + 3) for i in range(0, rows, 3)]
    return [dot(given["x"][c].T, given["w"][c].T, DotModel.CHAIN16, DType.BF16) for c in cuts]


def canonical_of(spec: Op) -> object:
    return canonical(spec.trace(spec.default_variant()))


@pytest.mark.parametrize("rows", [1, 3, 4, 11])
def test_pieces_are_added_to_the_sum_ascending(rows: int) -> None:
    given = inputs(rows)
    want = given["z"]
    for product in products(given, rows):
        want = want + product
    got = run(canonical_of(added), given)["y"]
    assert_same_bits(got, want, f"{rows} rows")


def test_a_sum_added_afterwards_is_seen() -> None:
    """The control: the pieces first, then the sum."""
    given = inputs(11)
    found = products(given, 11)
    total = found[0]
    for product in found[1:]:
        total = total + product
    assert differing(run(canonical_of(added), given)["y"], given["z"] + total) > 10


@pytest.mark.parametrize("rows", [2, 7])
def test_loops_of_launches_have_the_bits_of_the_oracle(rows: int) -> None:
    pytest.importorskip("triton")
    from rlk.testing.generated import run_generated

    given = {
        "a": bf16_bits(drawn(rows, 17, seed=4) / 2.0**12),
        "b": bf16_bits(drawn(24, 17, seed=5) / 2.0**12),
    }
    given["z"] = drawn(24, 17, seed=6) / 2.0**10
    program = canonical_of(head)
    want, got = run(program, given), run_generated(program, given)
    for name in ("left", "right"):
        assert_same_bits(got.tensors[name], want[name], name)


def test_one_nest_of_loops_serves_both_results() -> None:
    bound = specialize(canonical_of(head), {"K": 17, "E": 24}, MathModel.PORTABLE)
    program = sweep(bound, {**SIZES, "P": 7})
    assert parse_program(print_program(program)) == program
    loops = {launch.kernel: [(str(t.axis), t.only) for t in launch.turns] for launch in program.launches}
    assert loops["head_3_first"] == [("P.piece", Phase.FIRST), ("E.piece", None)]
    assert loops["head_3_rest"] == [("P.piece", Phase.REST), ("E.piece", None)]
    assert len({turns[0][0] for turns in loops.values()}) == 1
    assert len(program.launches) == len(loops)
    assert not any("merged_3" in d.name for k in program.kernels for d in k.params)


def test_what_cannot_be_added_to_is_refused() -> None:
    @op()
    def pairwise(a: Tensor[bf16, E, N], b: Tensor[bf16, E, K], z: Tensor[f32, N, K]) -> Outputs:
        return L.out(y=L.dot(a, b, over=E, onto=z))

    @op()
    def narrow(x: Tensor[bf16, P, N], w: Tensor[bf16, P, K], z: Tensor[f32, N]) -> Outputs:
        return L.out(y=L.dot(x, w, over=P, onto=z))

    @op()
    def rounded(x: Tensor[bf16, P, N], w: Tensor[bf16, P, K], z: Tensor[f32, N, K]) -> Outputs:
        return L.out(y=L.dot(x, w, over=P, onto=z).to(bf16))

    for spec, code in ((pairwise, Code.DOT_ONTO), (narrow, Code.DTYPE_WANTED)):
        with pytest.raises(SpecError) as refused:
            spec.trace(spec.default_variant())
        assert refused.value.code is code
    with pytest.raises(UnsupportedError):
        sweep(canonical_of(rounded), {**SIZES, "P": 7})


def test_one_call_of_many_rows_adds_its_pieces_to_each_other_first() -> None:
    """A call's contribution is one sum: to a buffer of sums, calls of a piece each add another."""
    import torch

    from rlk import ops

    torch.manual_seed(0)
    rows, depth, vocabulary = 8192 + 300, 16, 24
    hidden = torch.randn(rows, depth).bfloat16()
    weight = torch.randn(vocabulary, depth).bfloat16().requires_grad_()
    ids, seed = torch.randint(vocabulary, (rows,)), torch.randn(rows)
    whole = torch.randn(vocabulary, depth)
    parted, fresh = whole.clone(), torch.full_like(whole, -0.0)

    def add(part: slice, buffer: torch.Tensor) -> None:
        ops.linear_logp(hidden[part], weight, ids[part], weight_grad_out=buffer).logp.backward(seed[part])

    add(slice(rows), whole)
    start = parted.clone()
    for part in (slice(8192), slice(8192, rows)):
        add(part, parted)
        add(part, fresh)
    assert_same_bits(whole, start + fresh, "one call")
    assert differing(whole, parted) > 0, "the control: pieces one by one"
