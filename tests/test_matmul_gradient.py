"""Products and their gradients: bits of the definitions, in the oracle and in generated Triton source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from linear_cases import ascending, pairwise
from matmul_cases import (
    NAMES,
    TOKENS,
    Product,
    bias_gradient,
    drawn,
    forward,
    input_gradient,
    weight_gradient,
)

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.ops.products import partial_input_gradient
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LEAVES = (1, 2, 4, 8)


@pytest.fixture(params=["oracle", "generated source"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run calls in the oracle or in interpreted source; memory that nobody wrote is NaN, and seen."""
    before = dispatch.interpreter
    torch.use_deterministic_algorithms(True, warn_only=True)
    dispatch.interpret_with(interpret if request.param == "generated source" else None)
    yield request.param
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(before)


def defined(it: Product, grad_leaves: int = 1) -> dict[str, torch.Tensor]:
    """Return all gradients as they are defined."""
    dtype = it.x.dtype
    return {
        "x": input_gradient(it, grad_leaves).to(dtype),
        "w": weight_gradient(it).to(dtype),
        "bias": bias_gradient(it).to(dtype),
        "residual": it.d_y,
    }


def assert_gradients(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    for name, found in got.items():
        assert_same_bits(found, want[name], f"d {name}")


# --- gradients ---

SIZES = [(1, 16, 24), (7, 33, 9), (64, 40, 48), (70, 24, 130), (130, 8, 16), (200, 72, 40)]


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_gradients_have_the_bits_of_their_definition(
    m: int, n: int, k: int, dtype: torch.dtype, runner: str
) -> None:
    it = drawn(m, n, k, dtype, seed=m)
    assert_gradients(it.gradients(), defined(it))


@pytest.mark.parametrize("grad_leaves", LEAVES)
@pytest.mark.parametrize("m", [3, 70, 140])
def test_pieces_of_the_result_are_added_pairwise_in_the_gradient_of_the_input(
    m: int, grad_leaves: int, runner: str
) -> None:
    it = drawn(m, 80, 40, F16, seed=m)
    assert_gradients(it.gradients(grad_leaves=grad_leaves), defined(it, grad_leaves))


@pytest.mark.parametrize("leaves", LEAVES)
def test_leaves_of_the_product_change_no_gradient(leaves: int, runner: str) -> None:
    it = drawn(20, 16, 64, F16)
    assert_gradients(it.gradients(leaves=leaves), defined(it))


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS + 8, 2 * TOKENS + 100])
def test_tokens_are_summed_in_pieces(tokens: int, runner: str) -> None:
    """Beyond one piece the sums of pieces are added ascending: in f16, whose rounding hides less."""
    it = drawn(tokens, 4, 8, F16)
    assert_gradients(it.gradients(("w", "bias")), defined(it))


def test_a_gradient_of_f32_is_rounded_to_the_dtype_of_the_input(runner: str) -> None:
    it = drawn(33, 24, 16)
    sums = replace(it, d_y=torch.randn(33, 24, generator=torch.Generator().manual_seed(4)))
    got = sums.gradients(out_dtype=F32)
    rounded = replace(it, d_y=sums.d_y.bfloat16())
    assert_gradients(got, defined(rounded))


@pytest.mark.parametrize(
    "wanted", [("x",), ("w",), ("bias",), ("residual",), ("x", "bias"), ("w", "residual")]
)
def test_each_gradient_alone_has_the_bits_of_all_together(wanted: tuple[str, ...], runner: str) -> None:
    it = drawn(20, 24, 16, F16)
    assert_gradients(it.gradients(wanted), defined(it))


def test_a_row_of_the_input_gradient_does_not_know_its_neighbours(runner: str) -> None:
    it = drawn(140, 40, 48, F16)
    whole = it.gradients(("x",), grad_leaves=8)["x"]
    for rows in (slice(0, 1), slice(3, 70), slice(139, 140)):
        parts = replace(it, x=it.x[rows], residual=it.residual[rows], d_y=it.d_y[rows])
        assert_same_bits(parts.gradients(("x",), grad_leaves=8)["x"], whole[rows], f"rows {rows}")


def test_expanded_and_transposed_gradients_are_read(runner: str) -> None:
    it = drawn(40, 24, 16, F16)
    one = it.d_y[:1].expand(40, 24)
    assert_gradients(replace(it, d_y=one).gradients(), defined(replace(it, d_y=one.contiguous())))
    across = it.d_y.t().contiguous().t()
    assert_gradients(replace(it, d_y=across).gradients(), defined(it))


def test_leading_dims_are_rows(runner: str) -> None:
    it = drawn(24, 16, 8, F16)
    x = it.x.view(2, 3, 4, 8).clone().requires_grad_()
    w = it.w.clone().requires_grad_()
    found = torch.autograd.grad(ops.matmul(x, w), (x, w), it.d_y.view(2, 3, 4, 16))
    want = defined(it)
    assert_same_bits(found[0].view(24, 8), want["x"], "d x")
    assert_same_bits(found[1], want["w"], "d w")


@pytest.mark.parametrize("shape", [(0, 5, 9), (3, 0, 9), (3, 5, 0)])
def test_empty_products_have_gradients_of_zeros(shape: tuple[int, int, int]) -> None:
    it = drawn(*shape)
    got = it.gradients()
    assert {n: g.shape for n, g in got.items()} == {n: getattr(it, n).shape for n in NAMES}
    assert not got["x"].any() and not got["w"].any()
    assert_same_bits(got["residual"], it.d_y, "d residual")


# --- controls: other orders are other bits ---

WRONG: dict[str, Callable[[Product], torch.Tensor]] = {
    "pieces of the result ascending": lambda it: input_gradient(it, 8, ascending),
    "other pieces of the result": lambda it: input_gradient(it, 4),
    "one chain": lambda it: input_gradient(it),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_orders_of_the_input_gradient_are_seen(name: str) -> None:
    it = drawn(40, 640, 48, F16)
    got = partial_input_gradient(it.d_y, it.w, 8)
    assert_same_bits(got, input_gradient(it, 8), "d x")
    assert differing(got, WRONG[name](it)) > 40 * 48 // 4


def test_other_pieces_of_tokens_are_seen() -> None:
    it = drawn(2 * TOKENS + 100, 4, 8, F16)
    buffer = torch.zeros(4, 8)
    onto(it, buffer)
    assert_same_bits(buffer, weight_gradient(it), "d w")
    assert differing(buffer, weight_gradient(it, piece=4096)) > 16
    assert differing(buffer, weight_gradient(it, piece=1 << 20)) > 16
    assert differing(buffer, weight_gradient(it, pairwise_of_three)) > 4
    bias = bias_gradient(it)
    assert differing(bias, bias_gradient(it, pairwise_of_three)) + differing(bias, it.d_y.float().sum(0))


def pairwise_of_three(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] + (parts[1] + parts[2])


# --- the buffer of a weight's gradient ---


def onto(it: Product, buffer: torch.Tensor, **options: int) -> torch.Tensor:
    """Add d w onto a buffer; return d x."""
    x, w = (t.detach().clone().requires_grad_() for t in (it.x, it.w))
    ops.matmul(x, w, weight_grad_out=buffer, **options).backward(it.d_y)
    assert w.grad is None and x.grad is not None
    return x.grad


@pytest.mark.parametrize("tokens", [5, 300, TOKENS + 70])
def test_a_contribution_is_added_once(tokens: int, runner: str) -> None:
    """The pieces of tokens are added to each other first; then their sum to the buffer."""
    it, buffer = drawn(tokens, 8, 16, F16), drawn(8, 16, 1).residual.float()
    want = buffer + weight_gradient(it)
    d_x = onto(it, buffer, grad_leaves=2)
    assert_same_bits(buffer, want, "buffer")
    assert_same_bits(d_x, input_gradient(it, 2).half(), "d x")


def test_pieces_that_are_added_to_the_buffer_one_by_one_are_seen() -> None:
    it = drawn(2 * TOKENS + 70, 8, 16, F16)
    buffer = 300 * torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    start = buffer.clone()
    onto(it, buffer)
    assert_same_bits(buffer, start + weight_gradient(it), "buffer")
    assert differing(buffer, weight_gradient(it, lambda parts: ascending([start, *parts]))) > 16


def test_two_micro_batches_are_added_in_their_order(runner: str) -> None:
    first, second = drawn(40, 8, 16, F16), drawn(50, 8, 16, F16, seed=1)
    buffer = torch.full((8, 16), -0.0)
    onto(first, buffer)
    assert_same_bits(buffer, weight_gradient(first), "the first contribution")
    onto(second, buffer)
    assert_same_bits(buffer, weight_gradient(first) + weight_gradient(second), "both")


def test_no_tokens_add_nothing(runner: str) -> None:
    buffer = torch.full((8, 16), -0.0)
    x = drawn(0, 8, 16)
    onto(x, buffer)
    assert_same_bits(buffer, torch.full((8, 16), -0.0), "buffer")


def test_a_frozen_weight_leaves_its_buffer_alone() -> None:
    it, buffer = drawn(5, 8, 16), torch.ones(8, 16)
    x = it.x.clone().requires_grad_()
    ops.matmul(x, it.w, weight_grad_out=buffer).backward(it.d_y)
    assert (buffer == 1).all()
    assert_same_bits(x.grad, defined(it)["x"], "d x")


# --- leaves and parts ---


@pytest.mark.parametrize("leaves", LEAVES)
@pytest.mark.parametrize("m", [5, 140])
def test_leaves_are_equal_pieces_added_pairwise(leaves: int, m: int, runner: str) -> None:
    it = drawn(m, 24, 320, F16)
    got = ops.matmul(it.x, it.w, leaves=leaves, out_dtype=F32)
    assert_same_bits(got, forward(it, leaves), "y")
    others = [forward(it, n) for n in LEAVES if n != leaves]
    others += [forward(it, leaves, ascending)] if leaves > 2 else []
    assert all(differing(got, other) > m for other in others)


@pytest.mark.parametrize(("order", "leaves"), [("chain16", 1), ("leaf8", 8)])
def test_orders_have_the_bits_of_leaves_by_their_old_names(order: str, leaves: int) -> None:
    it = drawn(9, 24, 64)
    options = {"bias": it.bias, "residual": it.residual}
    got = ops.matmul(it.x, it.w, order=order, **options)
    assert_same_bits(got, ops.matmul(it.x, it.w, leaves=leaves, **options), order)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_parts_of_ranks_are_subtrees_of_one_rank(leaves: int, ranks: int, runner: str) -> None:
    if ranks > leaves:
        pytest.skip("a rank has at least one leaf")
    it, own = drawn(6, 16, 128, F16), leaves // ranks
    whole = ops.matmul(it.x, it.w, leaves=leaves, out_dtype=F32)
    cuts = [slice(r * 128 // ranks, (r + 1) * 128 // ranks) for r in range(ranks)]
    parts = [
        ops.matmul(
            it.x[:, c].contiguous(), it.w[:, c].contiguous(), leaves=leaves, part=(r * own, (r + 1) * own)
        )
        for r, c in enumerate(cuts)
    ]
    assert all(part.dtype is F32 for part in parts)
    assert_same_bits(pairwise(parts), whole, "y")
    assert ranks == 2 or differing(ascending(parts), whole)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_input_gradients_of_ranks_are_subtrees_of_one_rank(ranks: int, runner: str) -> None:
    it = drawn(6, 64, 48, F16)
    whole = it.gradients(("x",), grad_leaves=8)["x"]
    parts = [
        partial_input_gradient(it.d_y[:, c].contiguous(), it.w[c].contiguous(), 8 // ranks)
        for c in (slice(r * 64 // ranks, (r + 1) * 64 // ranks) for r in range(ranks))
    ]
    assert_same_bits(pairwise(parts).half(), whole, "d x")


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_rounded_product_takes_a_residual_as_two_operators_do(dtype: torch.dtype, runner: str) -> None:
    it = drawn(40, 24, 64, dtype)
    got = ops.matmul(it.x, it.w, bias=it.bias, residual=it.residual, round_product=True)
    assert_same_bits(got, ops.matmul(it.x, it.w, bias=it.bias) + it.residual, "y")
    # the control: one rounding
    assert differing(got, ops.matmul(it.x, it.w, bias=it.bias, residual=it.residual))


# --- bad calls ---

X, W = torch.ones(3, 24).bfloat16(), torch.ones(12, 24).bfloat16()
BAD = {
    "leaves=3": {"leaves": 3},
    "leaves must be a int": {"leaves": True},
    "x.shape[-1]=20": {"x": X[:, :20], "w": W[:, :20], "leaves": 8},
    "w.shape[0]=12": {"grad_leaves": 8},
    "order='leaf8'": {"leaves": 2, "order": "leaf8"},
    "part=4": {"leaves": 8, "part": 4},
    "a subtree of 4 leaves": {"leaves": 4, "part": (2, 6)},
    "part=(2, 6)": {"leaves": 8, "part": (2, 6)},
    "part=(0, 3)": {"leaves": 8, "part": (0, 3)},
    "out_dtype=torch.bfloat16": {"leaves": 8, "part": (0, 4), "out_dtype": BF16},
    "bias='a tensor'": {"leaves": 8, "part": (0, 4), "bias": W[:, 0]},
    "weight_grad_out=[24, 12]": {"weight_grad_out": torch.ones(24, 12)},
    "weight_grad_out has dtype torch.bfloat16": {"weight_grad_out": W},
    "round_product must be a bool": {"round_product": 1},
}


@pytest.mark.parametrize("text", BAD)
def test_bad_options_are_refused_by_name(text: str) -> None:
    given = {"x": X, "w": W} | BAD[text]
    with pytest.raises(LaunchError) as refused:
        ops.matmul(given.pop("x"), given.pop("w"), **given)
    assert refused.value.code in (Code.ARG_VALUE, Code.ARG_TYPE, Code.ARG_DTYPE)
    assert text in str(refused.value)


def test_a_second_derivative_is_refused() -> None:
    it = drawn(3, 4, 5)
    x, w = it.x.clone().requires_grad_(), it.w.clone().requires_grad_()
    (d_x,) = torch.autograd.grad(ops.matmul(x, w).sum(), x, create_graph=True)
    with pytest.raises(LaunchError) as refused:
        d_x.sum().backward()
    assert refused.value.code is Code.DOUBLE_BACKWARD


def test_saved_tensors_are_those_that_gradients_read() -> None:
    """A frozen weight keeps no activation."""
    it = drawn(3, 4, 5)

    def kept(x: torch.Tensor, w: torch.Tensor, **options: torch.Tensor) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: found.append(tuple(t.shape)) or t, lambda t: t
        ):
            ops.matmul(x, w, **options)
        return found

    for options in ({}, {"weight_grad_out": torch.zeros(4, 5)}):
        assert kept(it.x.clone().requires_grad_(), it.w, **options) == [(4, 5)]
        assert kept(it.x, it.w.clone().requires_grad_(), **options) == [(3, 5)]


def test_rows_of_two_strides_have_the_gradients_of_contiguous_rows(runner: object) -> None:
    """The gradient of w contracts the rows, and a kernel knows one stride of what it contracts."""
    big, w, seed = (torch.randn(*shape).bfloat16() for shape in ((4, 10, 64), (48, 64), (4, 9, 48)))

    def of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [x.detach().requires_grad_(), w.clone().requires_grad_()]
        return torch.autograd.grad(ops.matmul(*given), given, seed)

    for mine, wanted in zip(of(big[:, :-1]), of(big[:, :-1].contiguous()), strict=True):
        assert_same_bits(mine, wanted)
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_same_bits(of(big[:, :-1])[1], of(big[:, 1:])[1])
