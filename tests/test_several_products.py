"""Several products of one kernel that share K steps and a factor: the bits of the same products apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_computed_factors import aligned, assert_seen, small

from rlk.errors import LoweringError
from rlk.interp.run import run
from rlk.ir.nodes import Role
from rlk.ir.types import DType
from rlk.lang import Axis, L, Outputs, Ragged, Static, Tensor, Tile, Tree, Variant, bf16, i8, i32, op
from rlk.lang.op import Op
from rlk.passes.pipeline import canonical
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import run_generated

M, N, K, J = Axis("M", dynamic=True), Axis("N"), Axis("K"), Axis("J")
P = Axis("P")
H = Axis("H", extent=P // 2)
B, E = Axis("B"), Axis("E")
T = Axis("T", dynamic=True)
R = Ragged("R", over=E)
HOW = Static["one kernel", "apart"]


def silu(x: Tile) -> Tile:
    """x * sigmoid(x)."""
    return x * L.sigmoid(x)


def apart(x: Tile, how: object, name: str) -> Tile:
    """Return a product as it is, or from memory, which a kernel of its own writes."""
    return L.keep(x, name) if how == "apart" else x


@op()
def gated(
    x: Tensor[bf16, M, K], gate: Tensor[bf16, N, K], up: Tensor[bf16, N, K], how: HOW = "one kernel"
) -> Outputs:
    """SwiGLU of two weights."""
    g = apart(L.dot(x, gate, over=K), how, "g")
    return L.out(y=(silu(g) * L.dot(x, up, over=K)).to(bf16))


@op()
def saved(
    x: Tensor[bf16, M, K], gate: Tensor[bf16, N, K], up: Tensor[bf16, N, K], how: HOW = "one kernel"
) -> Outputs:
    """Both products for a gradient: results that need one of them join the one that needs both."""
    g = apart(L.dot(x, gate, over=K), how, "g")
    u = L.dot(x, up, over=K)
    return L.out(y=(silu(g) * u).to(bf16), g_saved=g.to(bf16), u_saved=u.to(bf16))


@op()
def one_tensor(x: Tensor[bf16, M, K], w: Tensor[bf16, P, K], how: HOW = "one kernel") -> Outputs:
    """Both weights in one tensor, one after the other."""
    g = apart(L.dot(x, w.at(L.pos(H), K, inside=True), over=K), how, "g")
    return L.out(y=silu(g) * L.dot(x, w.at(L.pos(H) + L.extent(H), K, inside=True), over=K))


@op()
def three(
    x: Tensor[bf16, M, K], a: Tensor[bf16, K, N], b_2: Tensor[bf16, K, N], third: Tensor[bf16, K, N],
    how: HOW = "one kernel",
) -> Outputs:  # fmt: skip
    """Weights with the contracted axis outside."""
    first, second = apart(L.dot(x, a, over=K), how, "first"), apart(L.dot(x, b_2, over=K), how, "second")
    acc_2 = L.dot(x, third, over=K)  # names that the kernel has for other things
    return L.out(y=(first * second + acc_2).to(bf16))


@op()
def one_weight(
    x: Tensor[bf16, M, K], other: Tensor[bf16, M, K], w: Tensor[bf16, N, K], how: HOW = "one kernel"
) -> Outputs:
    """Two rows of activations by one matrix, and a sum over its columns."""
    z = apart(L.dot(x, w, over=K), how, "z") - L.dot(other, w, over=K)
    return L.out(y=L.sum(z * z, over=N, tree=Tree.halving))


@op()
def along_rows(
    x: Tensor[bf16, M, J], gate: Tensor[bf16, M, N], up: Tensor[bf16, M, N], how: HOW = "one kernel"
) -> Outputs:
    """The contracted axis has a length that calls decide."""
    z = apart(L.dot(gate, x, over=M), how, "z")
    return L.out(y=z * L.dot(up, x, over=M))


@op(bounds={R: (T,)})
def experts(
    x: Tensor[bf16, T, K], gate: Tensor[bf16, E, N, K], up: Tensor[bf16, E, N, K], begin: Tensor[i32, E],
    end: Tensor[i32, E],
) -> Outputs:  # fmt: skip
    """SwiGLU of each expert's rows."""
    row, inside = begin + L.pos(R), L.pos(R) < end - begin
    rows = x.at(row, K, when=inside, inside=True)
    g, u = (L.dot(rows, w.at(E, N, K), over=K, each=(E,)) for w in (gate, up))
    L.place("y", (T, N), ({T: row}, (silu(g) * u).to(bf16)), when=inside)
    return L.out()


@op()
def lora(
    x: Tensor[bf16, M, K], w: Tensor[bf16, N, K], down: Tensor[bf16, J, K], up: Tensor[bf16, N, J],
    how: HOW = "one kernel",
) -> Outputs:  # fmt: skip
    """A product over K and one over the rank, one after the other in the same stages."""
    h = L.keep(L.dot(x, down, over=K).to(bf16), "h")
    z = apart(L.dot(x, w, over=K), how, "z")
    return L.out(y=(z + 0.5 * L.dot(h, up, over=J)).to(bf16))


@op()
def strangers(
    x: Tensor[bf16, M, K], w: Tensor[bf16, N, K], z: Tensor[bf16, M, K], v: Tensor[bf16, N, K],
    how: HOW = "one kernel",
) -> Outputs:  # fmt: skip
    """Two products that have nothing in common but the axes of their results."""
    first = apart(L.dot(x, w, over=K), how, "first")
    return L.out(y=first - L.dot(z, v, over=K))


@op()
def batches(
    x: Tensor[bf16, B, M, K], gate: Tensor[bf16, N, K], up: Tensor[bf16, N, K], how: HOW = "one kernel"
) -> Outputs:
    """The rows have two dims."""
    g = apart(L.dot(x, gate, over=K), how, "g")
    return L.out(y=(silu(g) * L.dot(x, up, over=K)).to(bf16))


def weights(*shape: int, seed: int) -> np.ndarray:
    """Return bf16 patterns of small numbers, so that silu is no line."""
    x = np.random.default_rng(seed).normal(scale=0.1, size=shape).astype(np.float32)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def case(name: str, rows: int) -> tuple[Op, dict[str, Any], dict[str, int]]:
    """Return a spec, tensors with so many rows, and extents that no tensor has."""
    x, pair = small(rows, 144), {n: weights(80, 144, seed=i) for i, n in enumerate(("gate", "up"), 1)}
    across = {n: weights(144, 80, seed=i) for i, n in enumerate(("a", "b_2", "third"), 1)}
    columns = {n: weights(rows, 80, seed=i) for i, n in enumerate(("gate", "up"), 1)}
    of_expert = {n: weights(3, 80, 144, seed=i) for i, n in enumerate(("gate", "up"), 1)}
    begin = np.array([0, 3, 3], np.int32)
    return {
        "gated": (gated, {"x": x, **pair}, {}),
        "saved": (saved, {"x": x, **pair}, {}),
        "one_tensor": (one_tensor, {"x": x, "w": weights(160, 144, seed=1)}, {"H": 80}),
        "three": (three, {"x": x, **across}, {}),
        "one_weight": (one_weight, {"x": x, "other": small(rows, 144, seed=3), "w": pair["up"]}, {}),
        "lora": (
            lora,
            {"x": x, "w": pair["up"], "down": weights(16, 144, seed=5), "up": weights(80, 16, seed=6)},
            {},
        ),
        "strangers": (
            strangers,
            {"x": x, "w": pair["up"], "z": small(rows, 144, seed=4), "v": pair["gate"]},
            {},
        ),
        "batches": (batches, {"x": small(3, rows, 144), **pair}, {}),
        "along_rows": (along_rows, {"x": small(rows, 64), **columns}, {}),
        "experts": (
            experts,
            {"x": x, **of_expert, "begin": begin, "end": np.array([3, 3, rows], np.int32)},
            {"R": rows},
        ),
    }[name]


NAMES = (
    "gated", "saved", "one_tensor", "three", "one_weight", "along_rows", "experts", "lora", "strangers",
    "batches",
)  # fmt: skip


def program(spec: Op, how: str = "one kernel") -> Any:
    """Return the canonical program of a spec."""
    has = "how" in {formal.name for formal in spec.formals}
    return canonical(spec.trace(Variant.of({}, statics={"how": how} if has else {})))


@pytest.mark.parametrize(("name", "rows"), [*((name, 70) for name in NAMES), ("gated", 5), ("experts", 9)])
def test_one_kernel_has_the_bits_of_products_apart(name: str, rows: int) -> None:
    pytest.importorskip("triton")
    spec, given, extents = case(name, rows)
    made = program(spec)
    want = run(made, given, extents=extents).tensors
    if name != "experts":
        split = run(program(spec, "apart"), given, extents=extents)
        for out in want:
            assert not differing(split[out], want[out]), out
    for backend in ("cute", "triton"):
        got = run_generated(made, given, backend=backend, divisible=aligned(made), extents=extents)
        for out, right in want.items():
            kind = "bf16" if right.dtype == np.uint16 else None
            assert_same_bits(got.tensors[out], right, f"{name} by {backend}", kind)
        if backend == "cute":
            assert len(got.emitted.kernels) == 1 + (name == "lora") and "acc_2[r, c]" in got.emitted.source


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("fragment_2, a[None, None, i, get.index], b_2[", "fragment_2, a[None, None, i, get.index], b["),
        ("acc_2[r, c]", "acc[r, c]"),
        ("cute.copy(tma_b_2, b_2_from", "cute.copy(tma_b_2, b_from"),
        ("warpgroup.wait_group(0)\n", "pass\n"),
        ("tx_count=", "tx_count=16 + "),
    ],
)
def test_a_change_of_the_second_product_is_seen(text: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    spec, given, _ = case("gated", 5)
    assert_seen(monkeypatch, program(spec), given, text, by)


# --- refusals ---


@op()
def at_run_time(
    x: Tensor[bf16, T, M], w: Tensor[bf16, T, N], z: Tensor[bf16, K, M], v: Tensor[bf16, K, N]
) -> Outputs:
    """One of the contracted axes has a length that calls decide."""
    return L.out(y=L.dot(x, w, over=T) + L.dot(z, v, over=K))


@op()
def computed(x: Tensor[bf16, M, K], w: Tensor[i8, N, K], w2: Tensor[bf16, N, K]) -> Outputs:
    """One of the weights is computed."""
    return L.out(y=L.dot(x, w.to(bf16), over=K) + L.dot(x, w2, over=K))


@op()
def two_layouts(x: Tensor[bf16, M, K], w: Tensor[bf16, N, K], w2: Tensor[bf16, K, N]) -> Outputs:
    """One of the weights is transposed."""
    return L.out(y=L.dot(x, w, over=K) + L.dot(x, w2, over=K))


@op()
def names(x: Tensor[bf16, M, K], w: Tensor[bf16, N, K], row: Tensor[bf16, N, K]) -> Outputs:
    """A name that kernels have for something else."""
    return L.out(y=L.dot(x, w, over=K) + L.dot(x, row, over=K))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (at_run_time, "two contractions of lengths that calls decide"),
        (computed, "two contractions of which a factor is computed"),
        (two_layouts, "two contractions of w and w2, whose dims have another order"),
        (names, "a tensor or number named row in a kernel with a contraction"),
    ],
)
def test_others_are_refused_at_the_line(spec: Op, said: str) -> None:
    pytest.importorskip("triton")
    made = program(spec)
    shapes = {"M": 5, "T": 9, "N": 64, "K": 64, "J": 16}
    decls = {d.name: d.type for kernel in made.kernels for d in kernel.params if d.role is Role.IN}
    kinds = {name: np.int8 if type.dtype is DType.I8 else np.uint16 for name, type in decls.items()}
    given = {n: np.zeros([shapes[a.name] for a in type.axes], kinds[n]) for n, type in decls.items()}
    with pytest.raises(LoweringError) as found:
        run_generated(made, given, backend="cute", divisible=aligned(made))
    text = str(found.value)
    assert all(part in text for part in (said, "test_several_products.py:", "L.dot(", "instead: ")), text


def test_tma_must_be_able_to_load_each_factor() -> None:
    pytest.importorskip("triton")
    spec, given, _ = case("gated", 5)
    made = program(spec)
    with pytest.raises(LoweringError, match="a factor up whose rows do not lie at multiples of 16 bytes"):
        run_generated(made, given, backend="cute", divisible=aligned(made) - {"up_n_stride"})
