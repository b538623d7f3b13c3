"""Triton's machine code for gfx942, run without a device, has the oracle's bits in any order of waves."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rlk.lower.common.emitted import Emitted
from rlk.lower.triton import lower
from rlk.runtime.registry import find, operators
from rlk.runtime.toolchain import compile_triton
from rlk.schedule.heuristics import choose
from rlk.target.facts import target
from rlk.testing.cases import cases
from rlk.testing.check import Call, bound, calls, check_machine
from rlk.testing.examples import of_module
from rlk.testing.machine import Code, compiled

triton = pytest.importorskip("triton")

GFX942 = target("gfx942")
LONG = frozenset({"linear_logp"})
"""Operators with half a million instructions a call: in one order here, in all by `make check-machine`."""
ORDERS = range(4)


def call_of(name: str, which: str) -> Call:
    op, module = find(name)
    return next(c for c in calls(cases(op, of_module(module, name))[0]) if c.label == which)


def codes(call: Call) -> tuple[Code, ...]:
    program, signature = bound(call, GFX942)
    chosen = [choose(k, GFX942, signature, call.extents) for k in program.kernels]
    return compiled(lower(program, chosen, GFX942, signature), GFX942.name)


def called() -> list[tuple[str, str]]:
    """Return what is run of each operator; linear_logp_backward is what the gradient of linear_logp runs."""
    found = {n: op for n, op in operators().items() if n != "linear_logp_backward"}
    return [(n, "forward") for n in found] + [(n, "gradient") for n, op in found.items() if op.gradient]


@pytest.mark.parametrize(("name", "which"), called())
def test_machine_code_has_the_oracles_bits(name: str, which: str) -> None:
    """Also: no spills or scratch, LDS within limits, MFMA where there is a dot, no bits of approximations."""
    orders = () if name in LONG else ORDERS
    found = check_machine(call_of(name, which), GFX942, compile_triton, orders)
    assert found.ok, found.note
    assert found.count == len(orders) + 1
    if name in ("linear_logp", "matmul", "matmul_leaf8"):
        assert " 0 of them MFMA" not in found.ran


@pytest.mark.parametrize(
    ("on", "name", "right", "wrong"),
    [("gfx942", "swiglu", "v_mul_f32_e32", "v_add_f32_e32"),
     ("gfx950", "matmul", "v_permlane32_swap_b32", "v_permlane16_swap_b32"),
     ("gfx950", "varlen_attention", "ds_read_b64_tr_b16", "ds_read_b64")],
)  # fmt: skip
def test_a_wrong_instruction_fails_the_law(on: str, name: str, right: str, wrong: str) -> None:
    """The control."""

    def changed(emitted: Emitted, on: str, folder: Path) -> None:
        compile_triton(emitted, on, folder)
        for file in folder.glob("*.amdgcn"):
            file.write_text(file.read_text().replace(right, wrong))

    found = check_machine(call_of(name, "forward"), target(on), changed, ())
    assert found.ok is False and found.worst > 0


def test_a_kernel_that_spills_is_found() -> None:
    (code,) = codes(call_of("swiglu", "forward"))
    assert code.wrong("gfx942") == []
    spilled = code.assembly.replace(".vgpr_spill_count: 0", ".vgpr_spill_count: 3")
    scratch = code.assembly.replace(".private_segment_fixed_size: 0", ".private_segment_fixed_size: 16")
    assert "spills 3" in replace(code, assembly=spilled).wrong("gfx942")[0]
    assert "scratch" in replace(code, assembly=scratch).wrong("gfx942")[0]
    assert "LDS" in replace(code, record=replace(code.record, shared=65537)).wrong("gfx942")[0]
    assert "no matrix instruction" in replace(code, multiplies=True).wrong("gfx942")[0]


def test_a_zero_keeps_its_sign_when_a_product_is_cast_to_f16() -> None:
    """LLVM makes f16(a * b) a fused form that adds +0.0: where the lowering does not mend it, bits differ."""
    op, module = find("rms_norm")
    case = next(c for c in cases(op, of_module(module, op.name)) if c.label == "every option")
    call = calls(case)[0]
    assert check_machine(call, GFX942, compile_triton, ()).ok

    def unmended(emitted: Emitted, on: str, folder: Path) -> None:
        plain = re.sub(r"signed_half\((\w+)\)", r"\1.to(tl.float16)", emitted.source)
        plain = plain.replace("def x.to(tl.float16):", "def signed_half(x):")
        assert plain != emitted.source
        compile_triton(replace(emitted, source=plain), on, folder)

    assert check_machine(call, GFX942, unmended, ()).worst > 0
