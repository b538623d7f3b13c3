"""Gathers at computed indices: outside of a tensor nothing is read, also along the axis that is indexed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from rlk.errors import NOWHERE, Code, SpecError
from rlk.interp.run import run
from rlk.ir.nodes import Extent, Load, MathModel
from rlk.lang import Axis, L, Op, Outputs, Scalar, Tensor, f32, i32, op
from rlk.lang.reserved import check_free
from rlk.lower.cute.functions import functions as cute
from rlk.lower.tilelang.functions import functions as tilelang
from rlk.lower.triton.functions import functions as triton
from rlk.passes.pipeline import canonical
from rlk.passes.walk import walk
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits

T, N = Axis("T", dynamic=True), Axis("N")
X = np.arange(1.0, 7.0, dtype=np.float32)


@op()
def following(x: Tensor[f32, T]) -> Outputs:
    return L.out(y=x.at(L.pos(T) + 1, fill=-7.0))


@op()
def preceding(x: Tensor[f32, T]) -> Outputs:
    return L.out(y=x.at(L.pos(T) - 1, fill=-7.0))


@op()
def permuted(x: Tensor[f32, T], ids: Tensor[i32, T]) -> Outputs:
    return L.out(y=x.at(ids, fill=-7.0))


@op()
def promised_elsewhere(x: Tensor[f32, T], ids: Tensor[i32, T]) -> Outputs:
    return L.out(y=x.at(ids, inside=(Axis("Q"),)))


@op()
def trusted(x: Tensor[f32, T]) -> Outputs:
    return L.out(y=x.at(L.pos(T) + 1, fill=-7.0, inside=True))


@op()
def trusted_rows(x: Tensor[f32, T, N], rows: Tensor[i32, T], ids: Tensor[i32, T]) -> Outputs:
    return L.out(y=x.at(rows, ids, fill=-7.0, inside=(T,)))


@op()
def own(x: Tensor[f32, T]) -> Outputs:
    return L.out(y=x.at(L.pos(T), fill=-7.0))


def guarded(spec: Op) -> list[bool]:
    """Return whether each load of x has a guard."""
    (kernel,) = canonical(spec.trace(spec.default_variant())).kernels
    loads = [let.node for let in walk(kernel.body) if isinstance(let.node, Load) and let.node.param == "x"]
    return [load.guard is not None for load in loads]


IDS = np.array([3, -1, 6, 0, 2**30, 5], np.int32)
CASES = [
    (following, {"x": X}, [2, 3, 4, 5, 6, -7]),
    (preceding, {"x": X}, [-7, 1, 2, 3, 4, 5]),
    (permuted, {"x": X, "ids": IDS}, [4, -7, -7, 1, -7, 6]),
]


@pytest.mark.parametrize(("spec", "given", "wanted"), CASES, ids=[spec.name for spec, _, _ in CASES])
def test_an_index_out_of_bounds_gives_the_fill(spec: Op, given: dict, wanted: list[float]) -> None:
    program = canonical(spec.trace(spec.default_variant()))
    made = run(program, given, softmax=MathModel.PORTABLE)["y"]
    assert made.tolist() == wanted
    assert_same_bits(generated.run_generated(program, given).tensors["y"], made)


def test_a_promise_of_one_dim_leaves_the_others_guarded() -> None:
    program = canonical(trusted_rows.trace(trusted_rows.default_variant()))
    given = {
        "x": X.reshape(3, 2),
        "rows": np.array([2, 0, 1], np.int32),
        "ids": np.array([1, 2, -1], np.int32),
    }
    made = run(program, given, softmax=MathModel.PORTABLE)["y"]
    assert made.tolist() == [6, -7, -7]
    assert_same_bits(generated.run_generated(program, given).tensors["y"], made)
    compared = {let.node.axis for let in walk(program.kernels[0].body) if isinstance(let.node, Extent)}
    assert compared == {N}  # no index of T is compared
    with pytest.raises(SpecError, match="Q"):
        promised_elsewhere.trace(promised_elsewhere.default_variant())


def test_only_the_position_itself_and_a_promise_need_no_guard() -> None:
    assert all(map(guarded, (following, preceding, permuted)))
    assert guarded(own) == [False] and guarded(trusted) == [False]


@pytest.mark.parametrize(
    "name", ["c", "thread", "block", "tl", "mul", "range", "T", "x_ptr", "portable_rsqrt", "sum_over_n"]
)
def test_names_that_generated_kernels_use_are_refused(name: str) -> None:
    """`c` made CuTe divide by the counter of a loop, without an error."""
    scope = {"Tensor": Tensor, "Scalar": Scalar, "Outputs": Outputs, "L": L, "f32": f32, "T": T, "N": N}
    exec(
        f"def spec(x: Tensor[f32, T, N], {name}: Scalar[f32]) -> Outputs:\n    return L.out(y=x * {name})",
        scope,
    )
    with pytest.raises(SpecError, match=f"{name}: generated kernels use this name") as caught:
        op()(scope["spec"]).default_variant()
    assert caught.value.diagnostics[0].code is Code.RESERVED_NAME


def test_functions_of_preludes_are_reserved() -> None:
    names = {*cute(), *triton(), *tilelang("amd"), *tilelang("nvidia")}
    assert len(names) > 40
    for name in names:
        with pytest.raises(SpecError, match=f"{name}: generated"):
            check_free(name, (), NOWHERE)
    check_free("gain", (T,), NOWHERE)
