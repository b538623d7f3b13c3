"""TileLang text: what it says without its compiler, and what it refuses."""

from __future__ import annotations

import ast
import re
from collections import Counter

import ladder
import pytest
from attention_cases import batch, packed
from attention_cases import of as attention

from rlk.errors import UnsupportedError
from rlk.ir.dims import Axis
from rlk.ir.tree import Rule, bind
from rlk.ir.types import DType
from rlk.lower import tilelang
from rlk.lower.common.emitted import Emitted, Signature
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.tilelang.text import literal
from rlk.lower.tilelang.trees import Folding, tree
from rlk.passes.pipeline import launched
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.schedule.tilelang_tiles import by_tilelang_tiles
from rlk.target.facts import target
from rlk.testing import check


def lowered(name: str, on: str = "gfx942", schedules: list[Schedule] | None = None) -> Emitted:
    call, device = ladder.call(name), target(on)
    bound, signature = check.bound(call, device)
    chosen = [choose(k, device, signature, call.extents) for k in bound.kernels]
    placed = schedules or by_tilelang_tiles(bound, chosen, call.extents, device)
    return tilelang.lower(bound, placed, device, signature)


@pytest.mark.parametrize("name", ladder.CALLS)
def test_text_is_a_module_whose_names_are_all_defined(name: str) -> None:
    module = ast.parse(lowered(name).source)
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom)]
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    defined |= {alias.name for node in imports for alias in node.names}
    calls = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
    called = {node.id for node in calls if isinstance(node, ast.Name)}
    assert called <= defined | {"float", "min", "range"}


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


# --- lists ---


def misread(source: str) -> set[str]:
    """Return what a module reads that is not there: a counter outside of its loop, a list as one element."""
    module, found = ast.parse(source), set[str]()
    for kernel in (node for node in module.body if isinstance(node, ast.FunctionDef)):
        lists = {
            ast.unparse(a.targets[0])
            for a in ast.walk(kernel)
            if isinstance(a, ast.Assign)
            and ast.unparse(a.value).startswith(("tl.alloc_local", "tl.alloc_shared"))
        }
        loops = [node for node in ast.walk(kernel) if isinstance(node, ast.For)]
        counted = {
            id(n) for loop in loops for n in ast.walk(loop) if ast.unparse(loop.target) == ast.unparse(n)
        }
        counters = {ast.unparse(loop.target) for loop in loops} | {"c"} - {a.arg for a in kernel.args.args}
        handed = {id(a) for call in ast.walk(kernel) if isinstance(call, ast.Call) for a in call.args}
        handed |= {id(n.value) for n in ast.walk(kernel) if isinstance(n, ast.Attribute | ast.Subscript)}
        for name in (node for node in ast.walk(kernel) if isinstance(node, ast.Name)):
            if name.id in counters and id(name) not in counted:
                found.add(f"{name.id} outside of its loop")
            if name.id in lists and id(name) not in handed and isinstance(name.ctx, ast.Load):
                found.add(f"{name.id} as one element")
    return found


@pytest.mark.parametrize("name", ladder.CALLS)
def test_lists_are_read_by_elements_in_their_loops(name: str) -> None:
    assert misread(lowered(name).source) == set()


def test_elements_outside_of_loops_and_lists_as_elements_are_seen() -> None:
    source = lowered("rms_norm forward").source
    assert misread(source.replace("for c in tl.unroll(8):", "if True:"))
    assert misread(source.replace("mean[c] + eps_value", "mean + eps_value"))


ROWS, FEW, HEAD = 128, 16, 16


def test_threads_beyond_the_rows_of_a_tile_copy_them_again_and_none_behind_it() -> None:
    """A block of 512 threads copies tiles of 16 rows of 16 elements: twice as many threads as elements."""
    device, static = target("gfx942"), {"H": 1, "G": 2, "E": HEAD, "W": HEAD}
    known = {**static, "B": 2, **dict.fromkeys("TSQXJZ", 256), "R": 512}
    program = attention(packed(batch((9, 3), (70, 3), e=HEAD, w=HEAD)), numerics=(FEW, 256))
    bound, signature = (
        launched(program, static, device.softmax, known),
        Signature(tuple(sorted(static.items()))),
    )
    chosen = [choose(k, device, signature, known).with_tile("Q*G", ROWS) for k in bound.kernels]
    source = tilelang.lower(bound, chosen, device, signature).source
    (threads,) = map(int, re.findall(r"threads=(\d+)", source))
    copies = re.findall(r"row = (.+?)(?:  #.*)?\n +at = (.+?)(?:  #.*)?\n", source)
    assert threads == 4 * ROWS and len(copies) == 2
    for copy in copies:
        made = [tuple(eval(text, {"thread": thread, "c": 0}) for text in copy) for thread in range(threads)]
        assert Counter(made) == {(row, at): 2 for row in range(FEW) for at in range(HEAD)}


# --- trees ---

N = Axis("N")
SUM = Folding(("x",), "add", 64)


def steps(spread: ThreadValues, order: Rule) -> list[tuple[str, int]]:
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
    threads = ThreadValues(N, 512, tuple((bit, bit) for bit in range(7)))  # bits 7 and 8 in a list of four
    halving = [("list", 2), ("list", 1), ("waves", 64), *(("wave", 1 << b) for b in range(5, -1, -1))]
    assert steps(threads, Rule.HALVING) == halving
    assert steps(threads, Rule.PAIRWISE) == [*halving[:1:-1], ("list", 1), ("list", 1)]


def test_a_tree_of_another_rule_has_other_steps() -> None:
    spread = ThreadValues(N, 16, ((0, 0), (1, 1)))
    assert steps(spread, Rule.HALVING) != steps(spread, Rule.PAIRWISE)


# --- what is refused ---


def test_other_devices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="tilelang on sm_80 lacks kernels for this target"):
        lowered("swiglu forward", "sm_80")


def test_lists_longer_than_registers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="registers for 128 elements of T, N in a thread"):
        lowered("swiglu forward", schedules=[Schedule(tiles=(("N", 1024), ("T", 8)), warps=1)])


def test_signatures_say_strides_and_rows_in_two() -> None:
    call = ladder.call("logp forward")
    bound, signature = check.bound(call, ladder.MI300X)
    split = Signature(signature.extents, split_rows=True)
    chosen = [choose(k, ladder.MI300X, split, call.extents) for k in bound.kernels]
    emitted = tilelang.lower(bound, chosen, ladder.MI300X, split)
    assert {"logits_t_outer_stride", "logits_t_inner_stride", "T_inner"} <= {a.name for a in emitted.call}
