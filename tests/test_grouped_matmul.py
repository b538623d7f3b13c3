"""Grouped products: the bits of a row are those of a product with the weight of its own expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from gpu.calls import DOT_CHANGES
from test_interpreted_ops import rescheduled
from test_machine_code import DISASSEMBLER, codes, source

from rlk import ops
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.lang import Axis, L, Outputs, Tensor, bf16, op
from rlk.lang.op import Op
from rlk.lower.common.emitted import Emitted
from rlk.passes.pipeline import canonical
from rlk.runtime.binding import selection
from rlk.runtime.call import autograd
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.reference import emit
from rlk.schedule.schedule import Schedule
from rlk.specs import grouped as spec
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
B, T, N, K, K8 = Axis("B"), Axis("T", dynamic=True), Axis("N"), Axis("K"), Axis("K", split=8)
COUNTS = (3, 0, 17, 1, 70, 0)


@pytest.fixture(params=["oracle", "generated source"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run calls in the oracle or in interpreted source; memory that nobody wrote is NaN, and seen."""
    before = dispatch.interpreter
    torch.use_deterministic_algorithms(True, warn_only=True)
    dispatch.interpret_with(interpret if request.param == "generated source" else None)
    yield request.param
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(before)


def normal(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def offsets_of(counts: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=dtype)


class Drawn:
    """Rows of experts, their weights, and a cotangent."""

    def __init__(self, counts: tuple[int, ...], n: int, k: int, dtype: torch.dtype = BF16) -> None:
        self.counts, self.offsets = counts, offsets_of(counts)
        self.x, self.w = normal(sum(counts), k, dtype=dtype), normal(len(counts), n, k, dtype=dtype, seed=1)
        self.bias = normal(len(counts), n, dtype=dtype, seed=4)
        self.d_y = normal(sum(counts), n, dtype=dtype, seed=2)

    def rows(self, expert: int) -> slice:
        return slice(int(self.offsets[expert]), int(self.offsets[expert + 1]))

    def found(self, call: Any = ops.grouped_matmul, **options: Any) -> list[torch.Tensor]:
        """Return the product, d x, d bias and d w; None where w has no gradient of its own."""
        x, w, bias = (t.clone().requires_grad_() for t in (self.x, self.w, self.bias))
        y = call(x, w, self.offsets, bias=bias, **options)
        y.backward(self.d_y.to(y.dtype))
        return [y.detach(), x.grad, bias.grad, w.grad]


def of_expert(it: Drawn, expert: int, **options: Any) -> list[torch.Tensor]:
    """Return the product of one expert's rows and its gradients, by `matmul`, in the oracle."""
    before, rows = dispatch.interpreter, it.rows(expert)
    dispatch.interpret_with(None)
    x, w, bias = (t.clone().requires_grad_() for t in (it.x[rows], it.w[expert], it.bias[expert]))
    y = ops.matmul(x, w, bias=bias, **options)
    y.backward(it.d_y[rows].to(y.dtype))
    dispatch.interpret_with(before)
    return [y.detach(), x.grad, bias.grad, w.grad]


# --- bits ---

SIZES = [
    (COUNTS, 32, 48, BF16, {}),
    (COUNTS, 33, 41, F16, {"out_dtype": F32}),
    ((0, 0, 300, 5), 272, 64, BF16, {}),
    ((8200, 1), 16, 16, BF16, {}),
    (COUNTS, 32, 48, BF16, {"leaves": 2, "grad_leaves": 8}),
    ((3, 0, 40), 40, 264, F16, {"leaves": 8, "grad_leaves": 2, "out_dtype": F32}),
]


@pytest.mark.parametrize(("counts", "n", "k", "dtype", "options"), SIZES)
def test_every_expert_has_the_bits_of_a_product_of_its_own(
    counts: tuple[int, ...], n: int, k: int, dtype: torch.dtype, options: dict[str, Any], runner: str
) -> None:
    it = Drawn(counts, n, k, dtype)
    y, d_x, d_bias, d_w = it.found(**options)
    for expert, count in enumerate(counts):
        rows = it.rows(expert)
        if count == 0:
            for d in (d_bias, d_w):
                assert not d[expert].view(torch.int16).any(), "the gradient of an expert without rows is +0"
            continue
        found = y[rows], d_x[rows], d_bias[expert], d_w[expert]
        for got, want in zip(found, of_expert(it, expert, **options), strict=True):
            assert_same_bits(got, want, f"expert {expert}")


def test_leaves_are_other_orders_and_have_a_buffer() -> None:
    """Each changes its own sum alone: the product, or d x."""
    it = Drawn((3, 0, 17), 512, 512)
    plain, buffer = it.found(), torch.zeros(3, 512, 512)
    for options, moved in (({"leaves": 4}, 0), ({"grad_leaves": 4}, 1)):
        found = it.found(**options)
        assert [bool(differing(a, b)) for a, b in zip(found, plain, strict=True)] == [
            i == moved for i in range(4)
        ]
    *found, d_w = it.found(leaves=4, weight_grad_out=buffer)
    assert d_w is None and differing(found[0], plain[0])
    assert_same_bits(buffer.to(BF16)[[0, 2]], plain[3][[0, 2]])
    for leaves, size in ((3, 96), (8, 100)):
        with pytest.raises(LaunchError, match="(?s)grouped_matmul.*leaves"):
            ops.grouped_matmul(normal(20, size), normal(3, 64, size), it.offsets, leaves=leaves)


def test_leaves_by_tilelang_are_refused_at_their_line() -> None:
    """Triton and CuTe run them."""
    leaf = spec.grouped_matmul_leaf4
    program = canonical(leaf.trace(leaf.default_variant()))
    extents = {"E": 8, "K": 1024, "N": 64, "T": 300, "R": 300}
    assert "tl.dot" in emit(program, extents, target("sm_90a"), "triton")[0].source
    assert emit(program, extents, target("sm_90a"), "cute")[0].source.count("cute.gemm") >= 4
    with pytest.raises(
        UnsupportedError, match=r"specs/grouped.py:\d+: tilelang on gfx942 lacks \d+ bytes of shared"
    ):
        emit(program, extents, target("gfx942"), "tilelang")


@pytest.mark.parametrize("counts", [(1, 0), (40, 0), (3, 37)])
def test_a_row_has_the_same_bits_beside_any_other_rows(counts: tuple[int, ...], runner: str) -> None:
    """The first row alone is that of every mix; with another expert's weight it is another."""
    it = Drawn((1, 40), 48, 64)
    alone = ops.grouped_matmul(it.x[:1], it.w[:1], offsets_of((1,)))
    mixed = ops.grouped_matmul(it.x[: sum(counts)], it.w, offsets_of(counts))
    assert_same_bits(mixed[:1], alone)
    assert differing(ops.grouped_matmul(it.x[:1], it.w, offsets_of((0, 1))), alone)


def test_pieces_of_rows_are_counted_from_the_first_row_of_an_expert() -> None:
    """d w of 8200 rows is the same wherever the expert begins; cut elsewhere it has other bits."""
    it = Drawn((8200,), 16, 16)
    behind = Drawn((5, 8200), 16, 16)
    behind.x[5:], behind.d_y[5:] = it.x, it.d_y
    (*_, want), (*_, got) = it.found(), behind.found()
    assert_same_bits(got[1], want[0])
    halves = Drawn((4100, 4100), 16, 16)
    halves.x, halves.d_y = it.x, it.d_y
    buffer = torch.zeros(2, 16, 16)
    halves.found(weight_grad_out=buffer)
    assert differing((buffer[0] + buffer[1]).to(BF16), want[0])


@pytest.mark.parametrize("change", range(1, 6))
def test_no_schedule_changes_a_bit(change: int, monkeypatch: pytest.MonkeyPatch) -> None:
    it, before = Drawn((3, 0, 140, 1), 144, 136), dispatch.interpreter
    want, used = it.found(), set[tuple[Schedule, ...]]()
    try:
        dispatch.interpret_with(interpret)
        monkeypatch.setattr(runtime, "lowered", rescheduled(DOT_CHANGES[change], used))
        for got, wanted in zip(it.found(), want, strict=True):
            assert_same_bits(got, wanted)
    finally:
        dispatch.interpret_with(before)
    assert len(used) >= 2, "the schedule was not used"


def test_a_wrong_order_in_the_source_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the interpreted source: tiles of rows that begin one row late."""
    it, before, real = Drawn(COUNTS, 32, 48), dispatch.interpreter, runtime.lowered

    def late(*args: Any, **options: Any) -> Any:
        *rest, emitted = real(*args, **options)
        text = emitted.source.replace("x_tiles.load([begin_2 + first", "x_tiles.load([begin_2 + 1 + first")
        assert text != emitted.source
        return *rest, replace(emitted, source=text)

    want = ops.grouped_matmul(it.x, it.w, it.offsets)
    try:
        dispatch.interpret_with(interpret)
        monkeypatch.setattr(runtime, "lowered", late)
        assert differing(ops.grouped_matmul(it.x, it.w, it.offsets), want)
    finally:
        dispatch.interpret_with(before)


def test_products_and_gradients_are_near_float64() -> None:
    it = Drawn((30, 0, 33), 40, 72)
    x, w, bias = (t.double().requires_grad_() for t in (it.x, it.w, it.bias))
    y = ops.grouped_matmul.reference(x, w, it.offsets, bias=bias)
    y.backward(it.d_y.double())
    for got, want in zip(it.found(), (y.detach(), x.grad, bias.grad, w.grad), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=2**-8)


# --- buffers ---


def test_a_buffer_takes_the_gradient_of_the_weights_once(runner: str) -> None:
    it = Drawn(COUNTS, 32, 48)
    start = normal(6, 32, 48, dtype=F32, seed=3)
    start[1] = -0.0
    buffer = start.clone()
    *found, d_w = it.found(weight_grad_out=buffer)
    assert d_w is None
    for got, want in zip(found, it.found(), strict=False):
        assert_same_bits(got, want)
    assert_same_bits(buffer[[1, 5]], start[[1, 5]], "an expert without rows adds nothing")
    whole = torch.zeros(32, 48)
    before = dispatch.interpreter
    dispatch.interpret_with(None)
    x, w = it.x[it.rows(4)].clone(), it.w[4].clone().requires_grad_()
    ops.matmul(x, w, weight_grad_out=whole).backward(it.d_y[it.rows(4)])
    dispatch.interpret_with(before)
    assert_same_bits(buffer[4], start[4] + whole)


# --- offsets ---


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ([0, 3, 2, 20, 21, 91, 91], Code.ARG_VALUE),
        ([1, 3, 3, 20, 21, 91, 91], Code.ARG_VALUE),
        ([0, 3, 3, 20, 21, 91, 90], Code.ARG_VALUE),
        ([0, 3, 3, 20, 21, 90, 92], Code.ARG_VALUE),
        ([0, 3, 91], Code.ARG_VALUE),
        ([], Code.ARG_VALUE),
    ],
)
def test_offsets_that_do_not_cut_the_rows_are_refused(offsets: list[int], found: Code) -> None:
    it = Drawn(COUNTS, 16, 16)
    with pytest.raises(LaunchError, match="grouped_matmul: offsets") as refused:
        ops.grouped_matmul(it.x, it.w, torch.tensor(offsets, dtype=torch.int32))
    assert refused.value.code is found


def test_other_wrong_arguments_are_refused() -> None:
    it = Drawn(COUNTS, 16, 16)
    for match, call in {
        "offsets has dtype": lambda: ops.grouped_matmul(it.x, it.w, it.offsets.float()),
        "x": lambda: ops.grouped_matmul(it.x[None], it.w, it.offsets),
        "w": lambda: ops.grouped_matmul(it.x, it.w[0], it.offsets),
        "out_dtype": lambda: ops.grouped_matmul(it.x, it.w, it.offsets, out_dtype=F16),
        "weight_grad_out": lambda: ops.grouped_matmul(it.x, it.w, it.offsets, weight_grad_out=it.w),
    }.items():
        with pytest.raises(LaunchError, match=f"grouped_matmul.*{match}"):
            call()


def test_wrong_offsets_of_a_device_write_no_other_memory(runner: str) -> None:
    """The spec alone, as a device runs it: rows beyond those of x are not there."""
    it = Drawn((2, 3), 16, 16)
    begin, end = torch.tensor([-1, 2], dtype=torch.int32), torch.tensor([2, 90], dtype=torch.int32)
    y = spec.grouped_matmul(it.x, it.w, begin, end)
    assert_same_bits(y, ops.grouped_matmul(it.x, it.w, it.offsets))
    d_w = spec.grouped_weight_grad(it.d_y, it.x, begin, end, torch.zeros(2, 16, 16))
    assert_same_bits(d_w[1].to(BF16), it.found()[-1][1])


def test_nothing_is_nothing(runner: str) -> None:
    x, w = normal(0, 16), normal(3, 8, 16)
    assert ops.grouped_matmul(x, w, offsets_of((0, 0, 0))).shape == (0, 8)
    assert ops.grouped_matmul(x, w[:0], torch.zeros(1, dtype=torch.int64)).shape == (0, 8)
    assert not ops.grouped_matmul(normal(2, 0), w[..., :0], offsets_of((1, 0, 1))).any()


# --- batches ---


@op()
def batched(x: Tensor[bf16, B, T, K], w: Tensor[bf16, B, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K, each=(B,)))


@op()
def batched_by_pieces(x: Tensor[bf16, B, T, K8], w: Tensor[bf16, B, N, K8]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K8, each=(B,)))


@op()
def batched_rows(x: Tensor[bf16, T, B, K], w: Tensor[bf16, B, K, N]) -> Outputs:
    L.place("y", (B, T, N), ({}, L.dot(x, w, over=K, each=(B,))))
    return L.out()


@pytest.mark.parametrize(
    ("spec", "x", "w"),
    [
        (batched, (3, 70, 40), (3, 48, 40)),
        (batched, (3, 7, 41), (3, 33, 41)),
        (batched_by_pieces, (3, 70, 136), (3, 48, 136)),
        (batched_rows, (70, 3, 40), (3, 40, 48)),
    ],
)
def test_each_index_of_a_batch_has_the_bits_of_a_product_of_its_own(
    spec: Op, x: tuple[int, ...], w: tuple[int, ...], runner: str
) -> None:
    """Specs with factors of three dims, by TMA and, with rows of 41 elements, by pointers."""
    a, b = normal(*x), normal(*w, seed=1)
    made = spec(a, b)
    dispatch.interpret_with(None)
    for i in range(3):
        rows, weight = (a[:, i], b[i].t()) if spec is batched_rows else (a[i], b[i])
        order = "leaf8" if spec is batched_by_pieces else "chain16"
        want = ops.matmul(rows, weight.contiguous(), out_dtype=F32, order=order)
        assert_same_bits(made[i], want, f"index {i}")
    assert differing(made[0], made[1])


# --- torch ---


@pytest.mark.parametrize(("buffer", "leaves"), [(False, 1), (True, 1), (True, 4)])
def test_a_compiled_call_has_the_bits_of_an_eager_one(buffer: bool, leaves: int) -> None:
    """fullgraph: the host reads no offset."""
    torch._dynamo.reset()
    it = Drawn(COUNTS, 16, 24)
    compiled = torch.compile(ops.grouped_matmul, fullgraph=True, backend="aot_eager")
    made = []
    for call in (compiled, ops.grouped_matmul):
        onto = {"weight_grad_out": torch.linspace(-1, 1, it.w.numel()).view(it.w.shape)} if buffer else {}
        made.append([t for t in (*it.found(call, leaves=leaves, **onto), *onto.values()) if t is not None])
    for got, want in zip(*made, strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("buffer", [False, True])
def test_a_compiled_function_takes_another_number_of_leaves(buffer: bool) -> None:
    """Each is a constant of a graph of its own; the bits of a gradient differ between them."""
    torch.compiler.reset()
    it = Drawn(COUNTS, 512, 24, F16)  # sums long enough to differ once they are rounded

    def d_x(grad_leaves: int, compiles: bool) -> torch.Tensor:
        x, w = it.x.clone().requires_grad_(), it.w.clone().requires_grad_()
        onto = {"weight_grad_out": torch.zeros(w.shape)} if buffer else {}
        y = (compiled if compiles else run)(x, w, grad_leaves, onto)
        return torch.autograd.grad(y.float().square().sum(), x)[0]

    def run(x: torch.Tensor, w: torch.Tensor, grad_leaves: int, onto: dict[str, Any]) -> torch.Tensor:
        return ops.grouped_matmul(x, w, it.offsets, grad_leaves=grad_leaves, **onto)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    made = [d_x(count, True) for count in (1, 4)]
    for count, got in zip((1, 4), made, strict=True):
        assert_same_bits(got, d_x(count, False))
    assert differing(*made)


def test_torch_accepts_the_registration() -> None:
    it, buffer = Drawn((2, 0, 5), 16, 24), torch.zeros(3, 16, 24)
    x, w, bias = (t.clone().requires_grad_() for t in (it.x, it.w, it.bias))
    inputs = [x, w, it.offsets[:-1], it.offsets[1:], bias]
    statics = False, 1, "auto"  # keep_f32, grad_leaves, math
    torch.library.opcheck(torch.ops.rlk.grouped_matmul.default, (*inputs, *statics))
    torch.library.opcheck(torch.ops.rlk.grouped_matmul_onto.default, (*inputs, *statics, 1, buffer))
    into = torch.ops.rlk.grouped_matmul_weight_grad_into.default
    torch.library.opcheck(into, (it.d_y, it.x, *inputs[2:4], buffer.clone()))


# --- machine code ---


def sources(tokens: int) -> Iterator[Emitted]:
    """Yield the source of the product and of its gradients, of 128 experts."""
    x, w, d_y = (torch.empty(s, dtype=BF16) for s in ((tokens, 2048), (128, 1536, 2048), (tokens, 1536)))
    offsets = torch.zeros(129, dtype=torch.int32)
    tensors = {"x": x, "w": w, "begin": offsets[:-1], "end": offsets[1:]}
    call = selection.invoke(spec.grouped_matmul, tensors, {}, {"keep_f32": False, "grad_leaves": 1}, None)
    yield source(call, tensors)
    wanted = frozenset({"x", "w"})
    yield source(autograd._backward(call, frozenset({"d_y"}), wanted), tensors | {"d_y": d_y})


@pytest.mark.skipif(DISASSEMBLER is None, reason="Triton came without a disassembler")
def test_kernels_for_hopper_load_tiles_by_tma_and_spill_nothing(tmp_path: Path) -> None:
    for emitted, loops in zip(sources(65536), ((1,), (1, 2)), strict=True):
        assert "block_shape=[1, " in emitted.source, "the weights of experts are tiles of three dims"
        folder = tmp_path / str(len(loops))
        folder.mkdir()
        for (name, code), groups in zip(codes(emitted, folder), loops, strict=True):
            assert code.products and code.groups == groups, f"{name} waits {code.groups} times"
            assert code.spilled == 0, f"{name} spills {code.spilled} words"
