"""Products of order leaf8: eight chains added pairwise, however many rows there are, whatever runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from linear_cases import DTYPES, product

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.interp.dot import leaf8
from rlk.runtime.binding.invocation import Invocation
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule import heuristics
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

LEAVES = 8
Factors = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(params=["oracle", "generated source"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run calls in the oracle or in interpreted source; memory that nobody wrote is NaN, and seen."""
    before = dispatch.interpreter
    torch.use_deterministic_algorithms(True, warn_only=True)
    dispatch.interpret_with(interpret if request.param == "generated source" else None)
    yield request.param
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(before)


def factors(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Factors:
    drawn = torch.Generator().manual_seed(seed)
    x, w = torch.randn(m, k, generator=drawn), torch.randn(n, k, generator=drawn)
    return x.to(dtype), w.to(dtype)


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def patterns(x: torch.Tensor) -> np.ndarray:
    """Return a tensor as the arithmetic of contractions reads it."""
    return x.view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.numpy()


def definition(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the f32 sum as the rule of contractions has it."""
    return torch.from_numpy(np.array(leaf8(patterns(x), patterns(w), DTYPES[x.dtype])))


def multiplied(x: torch.Tensor, w: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
    return ops.matmul(x, w, order="leaf8", out_dtype=torch.float32, **options)


def leaves(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """Return one chain16 for each piece of ceil(K / 8), of which the last may be short or empty."""
    size = -(-x.shape[1] // LEAVES)
    parts = [slice(i * size, (i + 1) * size) for i in range(LEAVES)]
    return [product(x[:, p], w[:, p]) for p in parts]


# --- bits of the definition ---

ROWS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 70]
LENGTHS = [1, 3, 5, 7, 8, 9, 15, 16, 63, 65, 100, 127, 129, 255, 257]
MANY = heuristics.ROWS_ALONE


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_length_has_the_bits_of_eight_chains(k: int, dtype: torch.dtype, runner: str) -> None:
    x, w = factors(9, 11, k, dtype, seed=k)
    assert_same_bits(multiplied(x, w), definition(x, w), f"K = {k}")


@pytest.mark.parametrize("m", ROWS)
def test_any_number_of_rows_has_the_bits_of_eight_chains(m: int, runner: str) -> None:
    x, w = factors(m, 37, 131, seed=m)
    assert_same_bits(multiplied(x, w), definition(x, w), f"M = {m}")


@pytest.mark.parametrize(("n", "k"), [(1, 64), (5, 19), (70, 200), (257, 8)])
def test_any_number_of_columns_has_the_bits_of_eight_chains(n: int, k: int, runner: str) -> None:
    x, w = factors(5, n, k, torch.float16)
    assert_same_bits(multiplied(x, w), definition(x, w), f"N = {n}")


@pytest.mark.parametrize("m", [MANY - 1, MANY, MANY + 6])
def test_rows_up_to_and_beyond_those_that_are_few(m: int, runner: str) -> None:
    x, w = factors(m, 6, 43)
    assert_same_bits(multiplied(x, w), definition(x, w), f"M = {m}")


@pytest.mark.parametrize(("m", "apart"), [(MANY - 1, True), (MANY, False)])
def test_pieces_stand_side_by_side_where_rows_are_few(
    m: int, apart: bool, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    """Both forms run in the tests above: all pieces and their sum, or piece after piece."""
    if runner == "oracle":
        pytest.skip("the oracle has one form")
    launched = []
    real = runtime.lowered

    def lowered(invocation: Invocation, *rest: object) -> object:
        made = real(invocation, *rest)  # type: ignore[arg-type]
        launched.append(len(made[0].kernels))
        return made

    monkeypatch.setattr(runtime, "lowered", lowered)
    multiplied(*factors(m, 6, 43))
    assert (launched == [2]) == apart


def test_leading_dims_and_strides_change_nothing(runner: str) -> None:
    x, w = factors(24, 13, 50)
    want = definition(x, w)
    assert_same_bits(multiplied(x.view(2, 3, 4, 50), w).view(24, 13), want, "four dims")
    assert_same_bits(multiplied(x[0], w), want[0], "one dim")
    assert_same_bits(multiplied(x[::3], w[::2]), want[::3, ::2], "every third row, every second column")
    wide = torch.full((24, 70), float("nan"), dtype=x.dtype)
    wide[:, 7:57] = x
    assert_same_bits(multiplied(wide[:, 7:57], w), want, "columns of a wider matrix")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m", [5, MANY + 3])
def test_bias_and_residual_are_f32_sums_and_one_rounding(m: int, dtype: torch.dtype, runner: str) -> None:
    x, w = factors(m, 7, 60, dtype)
    bias, residual = numbers(7, dtype=dtype), numbers(m, 7, dtype=dtype, seed=2)
    total = definition(x, w)
    for given in ({}, {"bias": bias}, {"residual": residual}, {"bias": bias, "residual": residual}):
        want = reduce(lambda y, part: y + part.float(), given.values(), total)
        assert_same_bits(multiplied(x, w, **given), want, f"f32 with {list(given)}")
        got = ops.matmul(x, w, order="leaf8", **given)
        assert got.dtype is dtype
        assert_same_bits(got, want.to(dtype), f"{dtype} with {list(given)}")


def test_infinities_and_nans_stay_in_their_rows(runner: str) -> None:
    x, w = factors(6, 5, 40, torch.float16)
    x[1, 3], x[2, 39], x[4, 20] = float("inf"), float("nan"), -float("inf")
    want = definition(x, w)
    assert_same_bits(multiplied(x, w), want, "y")
    assert want[[0, 3, 5]].isfinite().all() and not want[[1, 2, 4]].isfinite().any()


@pytest.mark.parametrize("k", [1, 5, 64, 129])
def test_a_row_does_not_know_its_neighbours(k: int, runner: str) -> None:
    x, w = factors(MANY + 1, 5, k)
    whole = multiplied(x, w)
    for rows in (slice(1), slice(3, 4), slice(0, 33), slice(7, 70), slice(MANY, MANY + 1)):
        assert_same_bits(multiplied(x[rows], w), whole[rows], f"rows {rows}")
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    assert_same_bits(multiplied(x[order], w), whole[order], "in another order")


@pytest.mark.parametrize("shape", [(0, 5, 9), (3, 0, 9)])
def test_no_rows_or_columns_give_none(shape: tuple[int, int, int]) -> None:
    assert multiplied(*factors(*shape)).shape == shape[:2]


# --- controls: other orders are other bits ---

WRONG: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "ascending": lambda parts: reduce(torch.add, parts),
    "halves first": lambda parts: reduce(
        torch.add, [a + b for a, b in zip(parts[:4], parts[4:], strict=True)]
    ),
    "rounded": lambda parts: pairwise([part.bfloat16().float() for part in parts]),
}


def pairwise(parts: list[torch.Tensor]) -> torch.Tensor:
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@pytest.mark.parametrize("name", WRONG)
def test_other_sums_of_the_leaves_are_seen(name: str) -> None:
    x, w = factors(33, 40, 1000)
    assert_same_bits(multiplied(x, w), pairwise(leaves(x, w)), "y")
    assert differing(multiplied(x, w), WRONG[name](leaves(x, w))) > 33 * 40 // 4


def test_other_leaves_are_seen() -> None:
    """Eight leaves of a multiple of 16, where K has none; and the whole K as one."""
    x, w = factors(33, 40, 1000)
    parts = [product(x[:, p], w[:, p]) for p in (slice(i * 128, (i + 1) * 128) for i in range(LEAVES))]
    assert differing(multiplied(x, w), pairwise(parts)) > 33 * 40 // 4
    assert differing(multiplied(x, w), ops.matmul(x, w, out_dtype=torch.float32)) > 33 * 40 // 4


def test_few_products_have_the_bits_of_both_orders() -> None:
    """K = 1 is one product: there is nothing to order."""
    x, w = factors(9, 9, 1)
    assert_same_bits(multiplied(x, w), ops.matmul(x, w, out_dtype=torch.float32), "y")


@pytest.mark.parametrize("order", ["leaf4", "", "LEAF8", 8])
def test_an_unknown_order_is_refused(order: object) -> None:
    with pytest.raises(LaunchError) as refused:
        ops.matmul(*factors(2, 3, 4), order=order)
    assert refused.value.code is Code.ARG_VALUE and f"order={order!r}" in str(refused.value)
    assert "chain16, leaf8" in str(refused.value)
