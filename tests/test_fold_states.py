"""Merging the identity leaves every bit of a state, on either side, and merging is commutative."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir import fold, online
from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import Decl, Kernel, Load, Pos, Program, Role, Store
from rlk.ir.types import DType, TileType
from rlk.lang import L, Outputs, Tensor, Tree, f32, i64, op
from rlk.passes.pipeline import canonical
from rlk.testing.bits import assert_same_bits, differing

X = Axis("X")
T, N, V = Axis("T", dynamic=True), Axis("N"), Axis("V", chunk=4, split=2)
S = Axis("S", chunk=4, dynamic=True)
NUMPY = {DType.F32: np.float32, DType.I32: np.int32, DType.I64: np.int64, DType.U32: np.uint32}
INF = float("inf")
FLOATS = (0.0, -0.0, 1.5, -2.25, 1e-45, -3e38, INF, -INF)
CENTRED = (0.0, -1e-45, -2.25, -3e38)
"""The largest score's term is +0.0, so that no centred sum of what exists is -0.0."""
SUMS = (0.0, -0.0, 1.5, -2.25, 1e-45, -1e-45, 3e38)

MONOIDS = {
    "total f32": (Monoid(Kind.TOTAL), (DType.F32,), [(x,) for x in FLOATS]),
    "total i32": (Monoid(Kind.TOTAL), (DType.I32,), [(0,), (7,), (-(2**31),), (2**31 - 1,)]),
    "total i64": (Monoid(Kind.TOTAL), (DType.I64,), [(0,), (-7,), (2**63 - 1,)]),
    "total u32": (Monoid(Kind.TOTAL), (DType.U32,), [(0,), (2**32 - 1,)]),
    **{
        f"{kind.value} f32": (
            Monoid(kind, ("y",)), (DType.F32,) * 3,
            [(m, s, y) for m in (0.0, -1e4, 80.0) for s in SUMS[2:3] + SUMS[6:] for y in SUMS],
        )
        for kind in (Kind.SOFTMAX_SUM, Kind.POWER_SUM)
    },
    **{
        f"centred {kind.value} f32": (
            Monoid(kind, ("y",), centred=True), (DType.F32,) * 4,
            [
                *((m, s, c, -2.25) for m in (0.0, -3e38, 3e38) for s in (1.0, 3e38) for c in CENTRED),
                (-INF, 0.0, -0.0, -0.0),  # a chunk of nothing
            ],
        )
        for kind in (Kind.SOFTMAX_SUM, Kind.POWER_SUM)
    },
    "argmax": (
        Monoid(Kind.ARGMAX), (DType.F32, DType.I32),
        [(x, i) for x in (1.5, -2.25, -3e38, INF) for i in (0, 5, 2**31 - 2)] + [(-INF, 2**31 - 1)],
    ),
    "largest": (Monoid(Kind.LARGEST), (DType.F32,), [(x,) for x in (1.5, 0.0, -0.0, -3e38, INF, -INF)]),
    "top": (
        Monoid(Kind.TOP), (DType.I32,) * 3,
        [(-(2**31),) * 3, (2**31 - 1, 0, -(2**31)), (3, 3, -5), (0, -1, -(2**31))],
    ),
}  # fmt: skip


def merged(monoid: Monoid, dtypes: tuple[DType, ...], one: list[tuple], two: list[tuple] | None) -> list:
    """Return the components of the merge of states one by one; two: None stands for the identity."""
    decls = [Decl(f"{n}{i}", TileType(d, (X,)), Role.IN) for n in "ab" for i, d in enumerate(dtypes)]
    decls += [Decl(f"{n}{i}", TileType(d, (X,)), Role.OUT) for n in "yz" for i, d in enumerate(dtypes)]
    b = Builder(params={d.name: d for d in decls})
    at = b.let(Pos(X))
    a, c = (tuple(b.let(Load(f"{n}{i}", (at,))) for i in range(len(dtypes))) for n in "ab")
    c = fold.init(b, monoid, dtypes[0]) if two is None else c
    for name, pair in (("y", (a, c)), ("z", (c, a))):
        for i, value in enumerate(fold.merge(b, monoid, *pair)):
            b.let(Store(f"{name}{i}", (at,), value))
    given = {"a": one, "b": one if two is None else two}
    inputs = {
        f"{n}{i}": np.array([s[i] for s in states], NUMPY[d])
        for n, states in given.items() for i, d in enumerate(dtypes)
    }  # fmt: skip
    made = run(Program("p", (Kernel("p", tuple(decls), b.body()),)), inputs)
    return [[made[f"{n}{i}"] for i in range(len(dtypes))] for n in "yz"]


@pytest.mark.parametrize("name", MONOIDS)
def test_the_identity_leaves_every_bit_of_a_state(name: str) -> None:
    monoid, dtypes, states = MONOIDS[name]
    for got in merged(monoid, dtypes, states, None):
        for i, dtype in enumerate(dtypes):
            assert_same_bits(got[i], np.array([s[i] for s in states], NUMPY[dtype]), monoid.state[i])


@pytest.mark.parametrize("name", MONOIDS)
def test_merging_is_commutative(name: str) -> None:
    monoid, dtypes, states = MONOIDS[name]
    one, two = zip(*itertools.product(states, states))
    forth, back = merged(monoid, dtypes, list(one), list(two))
    for x, y in zip(forth, back, strict=True):
        assert_same_bits(x, y)


@pytest.mark.parametrize("kind", [Kind.SOFTMAX_SUM, Kind.POWER_SUM])
def test_a_piece_without_elements_changes_nothing_but_the_sign_of_a_zero(kind: Kind) -> None:
    """So a piece that no row sees may be merged or left out: `x + 0.0` makes -0.0 to 0.0."""
    nan = float("nan")
    sums = [(s, y) for s in (0.0, -0.0, 1e-45, 1.5, 3e38, INF, nan) for y in (*SUMS, INF, -INF, nan)]
    states = [(m, s, y) for m in (0.0, -0.0, 1e-45, -3e38, 3e38) for s, y in sums]
    states += [(-INF, 0.0, 0.0), (-INF, -0.0, -0.0), (INF, nan, nan)]  # no key at all; a score of inf
    given = np.array(states, np.float32).T
    want = [given[0], given[1] + np.float32(0), given[2] + np.float32(0)]

    def made(empty: tuple[float, ...]) -> list:
        return merged(Monoid(kind, ("y",)), (DType.F32,) * 3, states, [empty] * len(states))[0]

    for got, expected in zip(made((-INF, 0.0, 0.0)), want, strict=True):
        assert_same_bits(got, expected)
    assert differing(made((0.0, 0.0, 0.0))[1], want[1]), "the control: an empty piece has a maximum of -inf"


@op()
def totals(x: Tensor[f32, T, V], y: Tensor[f32, T, N], z: Tensor[f32, S], low: Tensor[i64, T]) -> Outputs:
    streamed, ragged = L.total(), L.total()
    for v in L.stream(V):
        streamed.absorb(x[v])
    for s in L.stream(S, begin=low, end=low + 3):
        ragged.absorb(z[s])
    return L.out(streamed=streamed.value, whole=L.sum(y, over=N, tree=Tree.halving), ragged=ragged.value)


@pytest.mark.parametrize("width", [1, 3, 5, 8, 13])
def test_a_sum_of_negative_zeros_is_a_negative_zero(width: int) -> None:
    """Padding, missing elements and the first state are all the identity: -0.0, not +0.0."""
    program = canonical(totals.trace(totals.default_variant()))
    low = np.array([0, 2], np.int64)

    def sums(first: float) -> dict[str, np.ndarray]:
        x, z = np.full((2, width), -0.0, np.float32), np.full(5, -0.0, np.float32)
        x[:, 0] = z[2] = first
        return run(program, {"x": x, "y": x, "z": z, "low": low}).tensors

    for name, made in sums(-0.0).items():
        assert_same_bits(made, np.full(2, -0.0, np.float32), name)
    assert all(differing(made, np.full(2, -0.0, np.float32)) for made in sums(0.0).values()), "the control"


@pytest.mark.parametrize("name", ["total f32", "total i32", "argmax", "top"])
def test_a_fold_of_nothing_is_the_identity(name: str) -> None:
    monoid, dtypes, _ = MONOIDS[name]
    b = Builder()
    began, first = online.start(b, monoid, dtypes[0]), fold.init(b, monoid, dtypes[0])
    nodes = {let.value: let.node for let in b.body().lets}
    assert [nodes[v] for v in began] == [nodes[v] for v in first]
