"""The lowering of a call on Hopper where the user names none, and equal bits of both lowerings."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from test_several_products import case
from test_several_products import program as program_of

from rlk import lang
from rlk.backends import cute
from rlk.errors import Code, UnsupportedError
from rlk.ir.nodes import MathModel, Program
from rlk.ops import linear_logp, swiglu
from rlk.runtime.binding import selection
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call import dispatch as dispatching
from rlk.runtime.call.dispatch import lowered
from rlk.runtime.reference import placed, reference_extents, reference_gradient, reference_variant
from rlk.runtime.registry import operators
from rlk.schedule.attention import ROWS_OF_WARPGROUP
from rlk.schedule.backend_choice import MANY_ROWS, by_cute_first
from rlk.target.facts import target

H200 = target("sm_90a")
FASTEST = ("cute", "triton")
LEAVES = ("", "_leaf2", "_leaf4", "_leaf8")
ALWAYS = {"matmul", "matmul_leaf2", "matmul_leaf4", "matmul_leaf8", "linear_logp_scores"}
ALWAYS |= {"grouped_matmul", "grouped_weight_grad", *(f"grouped_matmul{leaves}_grad" for leaves in LEAVES)}
OF_MANY_QUERIES = {"varlen_attention", "varlen_attention_grad", "prefix_attention"}
OF_MANY_ROWS = {"linear_logp", "linear_logp_grad", "linear_logp_backward", "matmul_backward"}
OF_MANY_ROWS |= {f"matmul{leaves}_grad" for leaves in LEAVES}


@cache
def programs() -> dict[str, tuple[Program, dict[str, int]]]:
    """Return every reference program and its extents."""
    found = {}
    for op in operators().values():
        variant = reference_variant(op)
        for program in (placed(op, op.trace(variant)), reference_gradient(op, variant)):
            if program is not None:
                found[program.name] = program, reference_extents(op, program)
    return found


@pytest.mark.parametrize("rows", [1, MANY_ROWS, MANY_ROWS + 1])
def test_contractions_of_many_rows_and_products_alone_are_cutes(rows: int) -> None:
    wanted = ALWAYS | OF_MANY_QUERIES | (OF_MANY_ROWS if rows > MANY_ROWS else set())
    found = {n for n, (p, extents) in programs().items() if by_cute_first(p, H200, {**extents, "T": rows})}
    assert found == wanted


@pytest.mark.parametrize("rows", [1, ROWS_OF_WARPGROUP, ROWS_OF_WARPGROUP + 1])
def test_attention_is_cutes_where_sequences_have_many_rows(rows: int) -> None:
    for name in OF_MANY_QUERIES | {"paged_attention"}:
        program, sizes = programs()[name]
        shared = 1 if name.endswith("grad") else sizes["G"]  # rows of a query; a key has one
        each = -(-rows // shared)
        count = {axis: each * sizes[of] for axis, of in (("Q", "B"), ("J", "B"), ("C", "N")) if of in sizes}
        assert by_cute_first(program, H200, {**sizes, **count}) == (rows > ROWS_OF_WARPGROUP), name


def asked(
    monkeypatch: pytest.MonkeyPatch,
    spec: Any,
    tensors: dict[str, torch.Tensor],
    backend: str | tuple[str, ...],
) -> bool:
    """Return whether lowering a call asks the CuTe lowering."""
    asked = []

    def refusing(*args: Any, **options: Any) -> None:
        asked.append(args)
        raise UnsupportedError(Code.UNSUPPORTED, what="it", backend="cute", target="", alternatives="triton")

    monkeypatch.setattr("rlk.lower.cute.lower", refusing)
    invocation = selection.invoke(spec, tensors, {}, {}, None)
    geometry = geometry_of(invocation, tensors)
    _, _, _, emitted = lowered(invocation, MathModel.SM90, geometry, tensors, H200, backend=backend)
    assert emitted.backend == "triton"
    return bool(asked)


def test_a_call_asks_the_lowering_that_is_faster_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, faster in ((8, False), (MANY_ROWS + 1, True)):
        head = {
            "hidden": torch.zeros(rows, 64, dtype=torch.bfloat16),
            "weight": torch.zeros(512, 64, dtype=torch.bfloat16),
            "ids": torch.zeros(rows, dtype=torch.int64),
        }
        spec = linear_logp.specs[0]  # type: ignore[attr-defined]
        assert asked(monkeypatch, spec, head, FASTEST) is faster
        assert asked(monkeypatch, spec, head, "cute")
        assert not asked(monkeypatch, spec, head, "triton")
    elements = {"gate": torch.zeros(2000, 64), "up": torch.zeros(2000, 64)}
    assert not asked(monkeypatch, swiglu.specs[0], elements, FASTEST)  # type: ignore[attr-defined]


def test_calls_on_a_device_ask_the_faster_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute, "compiles", lambda: True)
    assert dispatching.asked_for(H200) == FASTEST
    assert dispatching.asked_for(target("gfx942")) == ("triton",)


def test_several_products_in_one_kernel_are_cutes_but_not_of_batches() -> None:
    for name, wanted in (("gated", True), ("lora", True), ("strangers", True), ("batches", False)):
        program = program_of(case(name, 16)[0])
        extents = {
            axis.name: 128 for kernel in program.kernels for d in kernel.params for axis in d.type.axes
        }
        assert by_cute_first(program, H200, extents) == wanted, name
    derived = lang.op(saves=("x", "gate", "up"))(case("gated", 16)[0].fn)
    derived.derive_vjp("x", "gate", "up")
    gradient = reference_gradient(derived, derived.default_variant())
    assert gradient is not None and not by_cute_first(gradient, H200, {"M": 128, "N": 128, "K": 128})
