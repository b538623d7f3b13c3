"""Triton's machine code for gfx942, run without a device, has the oracle's bits in any order of waves."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rlk.backends.triton import compile_triton
from rlk.cli import check as cli
from rlk.lower.common.emitted import Emitted
from rlk.lower.triton import lower
from rlk.runtime.registry import find, operators, others
from rlk.schedule.heuristics import choose
from rlk.target.facts import target
from rlk.testing.cases import cases
from rlk.testing.check import Call, bound, calls, check_machine
from rlk.testing.examples import of_module
from rlk.testing.machine import Code, compiled

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parents[1]
GFX942 = target("gfx942")
ORDERS = range(2)
CALLED = [
    ("swiglu", "forward"), ("embedding", "gradient"), ("rms_norm", "gradient"), ("logp", "forward"),
    ("gae", "forward"), ("matmul", "forward"), ("varlen_attention", "forward"), ("policy_loss", "gradient"),
]  # fmt: skip
"""Elements, rows by index, sums through LDS, chunks, steps, products, a softmax, a mask.

`make check-machine` executes these and all others, in every variant: a test below holds it to that.
"""


def call_of(name: str, which: str) -> Call:
    op, module = find(name)
    return next(c for c in calls(cases(op, of_module(module, op))[0]) if c.label == which)


def codes(call: Call) -> tuple[Code, ...]:
    program, signature = bound(call, GFX942)
    chosen = [choose(k, GFX942, signature, call.extents) for k in program.kernels]
    return compiled(lower(program, chosen, GFX942, signature), GFX942.name)


@pytest.mark.parametrize(("name", "which"), CALLED)
def test_machine_code_has_the_oracles_bits(name: str, which: str) -> None:
    """Also: no spills or scratch, LDS within limits, MFMA where there is a dot, no bits of approximations."""
    found = check_machine(call_of(name, which), GFX942, compile_triton, ORDERS)
    assert found.ok, found.note
    assert found.count == len(ORDERS) + 1
    if name == "matmul":
        assert " 0 of them MFMA" not in found.ran


def machine_checks(makefile: str) -> list[tuple[list[str], dict[str, object]]]:
    """Return the operators that `make check-machine` runs, and the other options, of each of its commands."""
    recipe = re.search(r"^check-machine:.*\n((?:\t.*\n)+)", makefile, re.M)
    assert recipe is not None
    found = []
    for words in re.findall(r"rlk\.cli check (.*)", recipe[1]):
        parser = argparse.ArgumentParser()
        cli.add_arguments(parser)
        asked = parser.parse_args(words.split())
        found.append((cli._names(asked), {"target": asked.target, "law": asked.law}))
    return found


def test_make_check_machine_executes_every_operator() -> None:
    ((names, options),) = machine_checks((ROOT / "Makefile").read_text("utf-8"))
    assert set(names) - set(others()) == operators().keys()
    assert options == {"target": ["gfx942"], "law": ["machine"]}


def test_an_operator_that_check_machine_leaves_out_is_seen() -> None:
    """The control."""
    text = "check-machine: x\n\t$(PY) -m rlk.cli check --all --except sample --target gfx942 --law machine\n"
    ((names, _),) = machine_checks(text)
    assert operators().keys() - set(names) == {"sample"}


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
    case = next(c for c in cases(op, of_module(module, op)) if c.label == "every option")
    call = calls(case)[0]
    assert check_machine(call, GFX942, compile_triton, ()).ok

    def unmended(emitted: Emitted, on: str, folder: Path) -> None:
        plain = re.sub(r"signed_half\((\w+)\)", r"\1.to(tl.float16)", emitted.source)
        plain = plain.replace("def x.to(tl.float16):", "def signed_half(x):")
        assert plain != emitted.source
        compile_triton(replace(emitted, source=plain), on, folder)

    assert check_machine(call, GFX942, unmended, ()).worst > 0
