"""Contractions on CDNA's matrix cores, run on a CPU: one accumulator in ascending order, in every tile."""

from __future__ import annotations

from functools import cache
from typing import Any

import ladder
import numpy as np
import pytest
from test_computed_factors import CASES, TILED, tiled
from test_computed_factors import program as factors

from rlk.backends import hip
from rlk.errors import UnsupportedError
from rlk.interp import arithmetic
from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.ir.types import DType
from rlk.lang import Axis, DTypeVar, L, Outputs, Tensor, Variant, bf16, f16, f32, op
from rlk.passes.pipeline import canonical
from rlk.schedule.heuristics import apart
from rlk.schedule.schedule import Schedule
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import Ran, run_generated
from rlk.testing.simulators.cdna import lint

T, K, N = Axis("T", dynamic=True), Axis("K"), Axis("N")
V = Axis("V", chunk=256, split=8)
F = DTypeVar("F", (f32, bf16, f16))
SMALL = Schedule(tiles=(("N", 16), ("T", 32)), warps=2, depth=16)


@op()
def product(x: Tensor[F, T, K], w: Tensor[F, N, K]) -> Outputs:
    """x w^T."""
    return L.out(y=L.dot(x, w, over=K))


@op()
def heads(x: Tensor[F, T, K], w: Tensor[F, V, K]) -> Outputs:
    """Log sum exp of x w^T; the product is never in memory."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(L.dot(x, w[v], over=K))
    return L.out(lse=soft.lse())


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


@cache
def program(spec: Any, dtype: DType) -> Program:
    traced = spec.trace(Variant.of({"F": dtype}, set(), {}))
    return canonical(traced, apart=apart(canonical(traced), {"T": 40, "K": 50, "N": 70, "V": 600}))


def drawn(rows: int, columns: int, k: int, dtype: DType, whole: bool = False) -> dict[str, Any]:
    """Return factors as memory holds them: of many magnitudes, or small whole numbers."""
    rng = np.random.default_rng(k)
    made = []
    for shape in ((rows, k), (columns, k)):
        wide = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, shape)
        x = rng.integers(-8, 9, shape) if whole else wide
        made.append(arithmetic.encode(arithmetic.Exact().cast(x.astype(np.float32), dtype), dtype))
    return dict(zip("xw", made, strict=True))


def executed(spec: Any, dtype: DType, given: dict[str, Any], **options: Any) -> Ran:
    return run_generated(program(spec, dtype), given, backend="tilelang", **options)


@pytest.mark.parametrize(("rows", "columns", "k"), [(37, 70, 45), (64, 64, 16), (1, 5, 1)])
def test_f32_products_are_chains_of_fma_in_any_order_of_waves(rows: int, columns: int, k: int) -> None:
    given = drawn(rows, columns, k, f32)
    want = run(program(product, f32), given)["y"]
    for waves in ladder.WAVES:
        assert_same_bits(executed(product, f32, given, waves=waves).tensors["y"], want)


def test_a_product_folded_where_it_stands_has_the_bits_of_the_oracle() -> None:
    given = drawn(37, 600, 45, f32)
    want = run(program(heads, f32), given)["lse"]
    for waves in ladder.WAVES:
        assert_same_bits(executed(heads, f32, given, waves=waves).tensors["lse"], want)


@pytest.mark.parametrize("dtype", [f32, bf16, f16])
def test_tiles_do_not_move_bits(dtype: DType) -> None:
    given = drawn(37, 70, 45, dtype)
    one = executed(product, dtype, given).tensors["y"]
    other = executed(product, dtype, given, schedules=[SMALL], waves=1).tensors["y"]
    assert_same_bits(one, other)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_products_of_whole_numbers_are_exact(dtype: DType) -> None:
    given = drawn(33, 20, 50, dtype, whole=True)
    x, w = (arithmetic.decode(given[name], dtype).astype(np.float64) for name in "xw")
    assert np.array_equal(executed(product, dtype, given).tensors["y"], x @ w.T)


def test_products_in_another_order_are_seen() -> None:
    given = drawn(37, 70, 45, f32)
    turned = {name: np.ascontiguousarray(x[:, ::-1]) for name, x in given.items()}
    want = run(program(product, f32), given)["y"]
    assert differing(executed(product, f32, turned).tensors["y"], want) > 0


@pytest.mark.parametrize("on", ladder.TARGETS)
@pytest.mark.parametrize("dtype", [f32, bf16, f16])
def test_products_are_matrix_instructions_without_spills(dtype: DType, on: str) -> None:
    ran = executed(product, dtype, drawn(37, 70, 45, dtype))
    source = hip.hip_source(ran.emitted.source, "product", on)
    assert list(lint.findings(source, ladder.MI300X)) == []
    assembly = hip.assembly(source, on)
    (found,) = hip.resources(assembly)
    assert "v_mfma_f32_16x16x" in assembly
    assert found.vector_spills == found.scalar_spills == found.scratch == 0


@pytest.mark.parametrize("name", ["scaled_rows", "in_f32"])
def test_a_computed_factor_has_the_bits_of_one_in_memory(name: str) -> None:
    spec, given = tiled(name, 19) if name in TILED else CASES[name]
    made, want = (
        run_generated(factors(spec, how), given, backend="tilelang").tensors["y"]
        for how in ("computed", "kept")
    )
    assert_same_bits(made, want)
    other = {**given, "w": given["w"] + np.int8(given["w"] == 3)}
    assert differing(run_generated(factors(spec), other, backend="tilelang").tensors["y"], want)


def test_tiles_smaller_than_an_instruction_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="of 8 of T in a block"):
        executed(
            product, f32, drawn(37, 70, 45, f32), schedules=[Schedule(tiles=(("N", 64), ("T", 8)), depth=16)]
        )


def test_tiles_beyond_shared_memory_are_refused() -> None:
    large = Schedule(tiles=(("N", 128), ("T", 128)), warps=8, depth=32)
    with pytest.raises(UnsupportedError, match="bytes of shared memory in a block"):
        executed(product, f32, drawn(37, 70, 45, f32), schedules=[large])
