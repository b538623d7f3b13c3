"""TileLang text: what it says without its compiler, and what it refuses."""

from __future__ import annotations

import ast
import re

import ladder
import pytest

from rlk.errors import UnsupportedError
from rlk.ir.dims import Axis
from rlk.ir.tree import Rule, bind
from rlk.ir.types import DType
from rlk.lower import tilelang
from rlk.lower.common.emitted import Emitted, Signature
from rlk.lower.common.spread import Spread
from rlk.lower.tilelang.text import literal
from rlk.lower.tilelang.trees import Folding, tree
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.schedule.waves import by_waves
from rlk.target.facts import target
from rlk.testing import check


def lowered(name: str, on: str = "gfx942", schedules: list[Schedule] | None = None) -> Emitted:
    call, device = ladder.call(name), target(on)
    bound, signature = check.bound(call, device)
    chosen = [choose(k, device, signature, call.extents) for k in bound.kernels]
    placed = schedules or by_waves(bound, chosen, call.extents, device)
    return tilelang.lower(bound, placed, device, signature)


@pytest.mark.parametrize("name", ladder.CALLS)
def test_text_is_a_module_whose_names_are_all_defined(name: str) -> None:
    module = ast.parse(lowered(name).source)
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom)]
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    defined |= {alias.name for node in imports for alias in node.names}
    calls = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
    called = {node.id for node in calls if isinstance(node, ast.Name)}
    assert called <= defined | {"float", "min"}


@pytest.mark.parametrize("name", ["rms_norm forward", "policy_loss gradient"])
def test_equal_arguments_give_equal_bytes(name: str) -> None:
    assert lowered(name).source == lowered(name).source


@pytest.mark.parametrize("name", ladder.CALLS)
def test_every_float_constant_is_written_by_its_bits(name: str) -> None:
    module = ast.parse(lowered(name).source)
    calls = [n for n in ast.walk(module) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    exact = {id(inner) for call in calls if call.func.id == "f32" for inner in ast.walk(call)}
    floats = [n for n in ast.walk(module) if isinstance(n, ast.Constant) and isinstance(n.value, float)]
    assert [n.value for n in floats if id(n) not in exact] == []


def test_the_largest_negative_integer_is_no_long() -> None:
    assert "0x80000000" in literal(-(2**31), DType.I32)
    assert literal(-(2**31) + 1, DType.I32) == "tl.int32(-2147483647)"


# --- trees ---

N = Axis("N")
SUM = Folding(("x",), "add", 64)


def steps(spread: Spread, order: Rule) -> list[tuple[str, int]]:
    """Return where the terms of each step lie, and how far apart: read from a tree's text."""
    lists = [spread] if spread.count > 1 else []
    lines = tree("sum", "", SUM, spread, lists, bind(order, spread.length).order).body
    found = []
    for line in (line.text for line in lines):
        for where, pattern in (
            ("wave", r"shfl_xor\(x\[c\], (\d+), width=64\)"), ("waves", r"thread \^ (\d+)\]"),
            ("list", r"\+ (\d+)\]\)"),
        ):  # fmt: skip
            found += [(where, int(apart)) for apart in re.findall(pattern, line)]
    return found


def test_a_tree_pairs_index_bits_in_its_order_wherever_they_lie() -> None:
    threads = Spread(N, 512, tuple((bit, bit) for bit in range(7)))  # bits 7 and 8 in a list of four
    halving = [("list", 2), ("list", 1), ("waves", 64), *(("wave", 1 << b) for b in range(5, -1, -1))]
    assert steps(threads, Rule.HALVING) == halving
    assert steps(threads, Rule.PAIRWISE) == [*halving[:1:-1], ("list", 1), ("list", 1)]


def test_a_tree_of_another_rule_has_other_steps() -> None:
    spread = Spread(N, 16, ((0, 0), (1, 1)))
    assert steps(spread, Rule.HALVING) != steps(spread, Rule.PAIRWISE)


# --- what is refused ---


def test_other_devices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="this device is not supported by tilelang on sm_80"):
        lowered("swiglu forward", "sm_80")


def test_lists_longer_than_registers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="lists of 128 elements"):
        lowered("swiglu forward", schedules=[Schedule(tiles=(("N", 1024), ("T", 8)), warps=1)])


def test_signatures_say_strides_and_rows_in_two() -> None:
    call = ladder.call("logp forward")
    bound, signature = check.bound(call, ladder.MI300X)
    split = Signature(signature.extents, split_rows=True)
    chosen = [choose(k, ladder.MI300X, split, call.extents) for k in bound.kernels]
    emitted = tilelang.lower(bound, chosen, ladder.MI300X, split)
    assert {"logits_t_outer_stride", "logits_t_inner_stride", "T_inner"} <= {a.name for a in emitted.call}
