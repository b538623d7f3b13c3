"""Machine code of the reference kernels by the CuTe compiler: TMA and wgmma, nothing spilled."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_computed_factors import program as factors
from test_computed_factors import weighed
from test_several_products import case
from test_several_products import program as together

from rlk.backends import cute
from rlk.backends.cubin import usage
from rlk.ir.nodes import Program
from rlk.lang import Op, Variant
from rlk.lower.common.emitted import Emitted
from rlk.lower.cute.functions import functions
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import emit, placed, reference_extents, reference_gradient, reference_variant
from rlk.runtime.registry import operators
from rlk.target.facts import target
from rlk.testing.simulators.hopper import accumulator_place

pytestmark = pytest.mark.cutlass
H200 = target("sm_90a")
VERSION = version("nvidia-cutlass-dsl") if cute.toolchain() is not None else ""
OLDER = VERSION.startswith("4.7.")
newest = pytest.mark.skipif(OLDER, reason="registers of single forms are bounded for the newest compiler")
GLOBAL = re.compile(
    r"\bACQBULK\b|\b(?:LDG?|STG?|ATOMG?|REDG?|LDGSTS|UTMALDG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED)\b"
)  # UTMAPF, which brings memory to L2, may come first
LOST = re.compile(r"SEL R\d+, RZ, 0x(?:1fffe|7fff8)\b")  # packed predicates, which lose one-hot comparisons
# bytes; the gradient of scores is long, so is the search of a sampler
STACK = {
    "linear_logp_grad_2": 256, "linear_logp_backward_1": 256, "sample_1": 8, "sample_3": 304,
    "policy_loss_of_sequences_3": 8,
    "varlen_attention": 64, "prefix_attention_1": 56, "prefix_attention_2": 24,
}  # fmt: skip

VECTORS = {"logp": (4, 0), "rms_norm": (6, 4), "rms_norm_grad_1": (4, 4), "embedding_grad": (8, 1)}
"""Reads and writes of 16 bytes that a kernel has at least."""
GROUPS = {
    "matmul_leaf2": 5,
    "matmul_leaf4": 9,
    "matmul_leaf8": 17,
    **{f"grouped_matmul_leaf{n}": 2 * n for n in (2, 4, 8)},
    "varlen_attention": 6,
    "paged_attention": 15,
    "prefix_attention_1": 6,
    "prefix_attention_2": 15,
    "varlen_attention_grad_2": 6,
    "varlen_attention_grad_3": 12,
}
"""Groups of matrix instructions: one that begins a chain and one of a loop, for each chain of a block, and,
of several chains, one more that begins the next tile beside the epilogue; of
attention one for the scores of the first step, two for each part of a loop, and one that ends, or more where
a branch leaves sums as they are, right behind which the compiler begins each instruction anew; of a gradient
as many for each part as it has contractions."""
OLD = {"varlen_attention": 160, "prefix_attention_1": 144, "sample_3": 664} if OLDER else {}
"""Bytes of stack of blocks that stay, by cutlass-dsl 4.7 (`docs/decisions/0068-*`)."""
OLD_PLAIN = {"sample"} if OLDER else set()
"""What 4.7 compiles without options: a sampler's search takes longest, and has other kinds' words."""
BARRIERS = {"logp": 1, "rms_norm": 1, "rms_norm_grad_1": 1}
"""Meetings of the warps of a block: once a row, where the rest of a tree stays inside of warps."""


WITHOUT_GRADIENT = {
    f"{name}_grad"
    for name in (
        "linear_logp_backward", "linear_logp_scores", "linear_logp_join", "matmul_backward",
        "column_sums", "group_advantage", "choose_experts",
        "scatter_rewards", "gae", "take_whole", "reported", "sample", "token_paths", "token_baseline",
        "penalize", "policy_covariance", "policy_covariance_of_sequences",
        "adamw", "square_sums", "grouped_weight_grad", "places_by_expert", "expert_offsets",
        "qk_norm_partials", "sum_of_heads", "write_cache", "cache_qkv", "paged_attention", "prefix_attention",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Code:
    """Counts of a kernel's instructions, and the bytes of its stack; reads, writes: of 16 bytes."""

    products: int
    copies: int
    groups: int
    lost: int
    reads: int
    writes: int
    barriers: int
    stack: int


def codes(emitted: Emitted, folder: Path) -> Iterator[tuple[str, Code]]:
    cute.compile_cute(emitted, "sm_90a", folder)
    for kernel in emitted.kernels:
        file = folder / f"{kernel.name}.cubin"
        text = disassembled(file)
        assert waits_first(text)
        stack = max(each.stack for each in usage(file.read_bytes()).values())
        yield (
            kernel.name,
            Code(
                text.count("HGMMA"),
                text.count("UTMALDG") + text.count("LDGSTS"),
                text.count("WARPGROUP.ARRIVE"),
                len(LOST.findall(text)),
                text.count("LDG.E.128"),
                text.count("STG.E.128"),
                text.count("BAR.SYNC"),
                stack,
            ),
        )


def waits_first(text: str) -> bool:
    """Return whether a kernel reaches no memory before those that write it have ended (decision 79)."""
    first = GLOBAL.search(text)
    return first is not None and first[0] == "ACQBULK" and ".CONSTANT" not in text


def test_a_kernel_that_does_not_wait_is_found(tmp_path: Path) -> None:
    op = operator_of("rms_norm")
    program = program_of("rms_norm")
    assert program is not None
    emitted, _, _ = emit(program, reference_extents(op, program), H200, "cute")
    late = re.sub(r" +cute.arch.griddepcontrol_.*\n", "", emitted.source)
    cute.compile_cute(replace(emitted, source=late), "sm_90a", tmp_path)
    assert not waits_first(disassembled(tmp_path / "rms_norm.cubin"))


_COMPILED: dict[str, list[tuple[str, Code]]] = {}


def codes_of(emitted: Emitted, name: str, folder: Path) -> list[tuple[str, Code]]:
    """Return the code of each kernel of a program; a text that another one has but for its name, once."""
    said = re.compile(r'#.*|"""(?:.|\n)*?"""')
    text = f"{said.sub('', emitted.source).replace(name, '*')} {[k.args for k in emitted.kernels]}"
    if text not in _COMPILED:
        _COMPILED[text] = [(kernel.replace(name, "*"), code) for kernel, code in codes(emitted, folder)]
    return [(kernel.replace("*", name), code) for kernel, code in _COMPILED[text]]


def disassembled(file: Path) -> str:
    spec = find_spec("triton")
    tool = next(Path(spec.origin).parent.rglob("cuobjdump"), None) if spec and spec.origin else None
    if tool is None:
        pytest.skip("Triton came without a disassembler")
    done = subprocess.run([str(tool), "--dump-sass", str(file)], capture_output=True, text=True, check=True)
    return done.stdout


NAMES = [each for name in operators() for each in (name, f"{name}_grad")]
KINDS = (
    "adamw", "logp", "linear_logp", "linear_logp_grad", "matmul_leaf8", "matmul_grad", "rms_norm_grad",
    "sample", "varlen_attention", "varlen_attention_grad", "paged_attention", "prefix_attention",
    "sequence_logp_grad",
)  # fmt: skip
"""What an older compiler compiles. Others have no other word of the compiler: the newest's run holds that."""


def program_of(name: str) -> Program | None:
    op = operator_of(name)
    variant = op.default_variant() if name in OLD_PLAIN else reference_variant(op)
    return placed(op, op.trace(variant)) if name in operators() else reference_gradient(op, variant)


def operator_of(name: str) -> Op:
    found = operators()
    return found.get(name) or found[name.removesuffix("_grad")]


def words(source: str) -> set[str]:
    """Return what a text takes from the modules it imports, by dotted name, and the methods it calls."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = [each for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names]
    modules = {(each.asname or each.name).partition(".")[0] for each in imports}
    dotted = {dotted_name(node) for node in nodes if isinstance(node, ast.Attribute | ast.Name)}
    called = [
        node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    methods = {f".{f.attr}" for f in called if dotted_name(f) != f"kernels.{f.attr}"}  # which are its own
    return {name for name in dotted if name.partition(".")[0] in modules} | methods


def dotted_name(node: ast.expr) -> str:
    """Return a.b.c of an expression, nothing where it begins with another one than a name."""
    if isinstance(node, ast.Attribute):
        before = dotted_name(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def test_words_are_those_of_the_compiler_and_not_of_the_kernel() -> None:
    """The control: a word that no kind has would be seen."""
    text = "import cutlass.cute as cute\n@cute.jit\ndef f(x):\n    kernels.f(x).launch()\n    cute.size(x.y)"
    assert words(text) == {"cute", "cute.jit", "cute.size", ".size", ".launch"}
    assert words("import cutlass\nx = cutlass.Float8E8M0FNU") - words_of_kinds()


@cache
def words_of_kinds() -> frozenset[str]:
    made = set()
    for name in KINDS:
        program = program_of(name)
        assert program is not None
        made |= words(emit(program, reference_extents(operator_of(name), program), H200, "cute")[0].source)
    return frozenset(made)


@pytest.mark.parametrize("name", KINDS if OLDER else NAMES)
def test_reference_kernels_compile_for_hardware(name: str, tmp_path: Path) -> None:
    op, program = operator_of(name), program_of(name)
    assert (program is None) == (name in WITHOUT_GRADIENT)
    if program is None:
        return
    emitted, _, _ = emit(program, reference_extents(op, program), H200, "cute")
    assert words(emitted.source) <= words_of_kinds(), "add it to KINDS"
    for kernel, code in codes_of(emitted, program.name, tmp_path):
        stack, groups = OLD.get(kernel, STACK.get(kernel, 0)), GROUPS.get(kernel, 2)
        assert code.stack <= stack, f"{kernel} keeps {code.stack} bytes on its stack"
        assert code.lost == 0, f"{kernel} packs the predicates of {code.lost} selections"
        reads, writes = VECTORS.get(kernel, (0, 0))
        assert code.reads >= reads and code.writes >= writes
        assert code.barriers <= BARRIERS.get(kernel, code.barriers)
        contracts = f"{kernel}_memory" in emitted.source
        assert (code.products > 0) == (code.copies > 1) == contracts
        assert code.groups <= groups, f"{kernel} waits {code.groups} times for {code.products} products"


SEVERAL = {
    "gated": ({"M": 8192, "N": 12288, "K": 4096}, 16, 3),
    "gated, few rows": ({"M": 16, "N": 12288, "K": 4096}, 16, 3),
    "three": ({"M": 8192, "N": 4096, "K": 4096}, 24, 7),
    "strangers": ({"M": 8192, "N": 4096, "K": 4096}, 16, 4),
}
"""Sizes, instructions of two K steps, and loads of one; tensors of `three` are named a and b_2."""


@newest
@pytest.mark.parametrize("name", SEVERAL)
def test_products_of_one_kernel_share_steps_and_keep_their_sums_in_registers(
    name: str, tmp_path: Path
) -> None:
    size, products, loads = SEVERAL[name]
    spec, _, _ = case(name.partition(",")[0], 1)
    emitted, _, _ = emit(together(spec), size, H200, "cute")
    ((_, code),) = codes(emitted, tmp_path)
    assert (code.stack, code.lost, code.groups) == (0, 0, 4 if name == "strangers" else 2)
    assert (code.products, code.copies) == (products, loads)


WALKED = {
    "narrow": ((256, 4096, 4096), (), False),
    "wide": ((512, 4096, 14336), (), False),
    "wide, bias": ((512, 4096, 4096), ("bias",), False),
    "one warpgroup": ((128, 4096, 4096), (), False),
    "one warpgroup, wide": ((64, 14336, 4096), (), False),
    "a step that ends short": ((512, 4096, 11008), (), False),
    "short pieces": ((512, 4096, 1280), (), False),
    "all that may follow": ((512, 4096, 4096), ("bias", "residual"), True),
}
"""Rows, columns, length, the tensors that are there, and whether results stay f32."""


@newest
@pytest.mark.parametrize("name", WALKED)
def test_blocks_that_walk_pieces_keep_their_sums_in_registers(name: str, tmp_path: Path) -> None:
    size, present, keep_f32 = WALKED[name]
    f = operators()["matmul_leaf8"].default_variant().dtypes
    variant = Variant.of(dict(f), frozenset(present), {"keep_f32": keep_f32})
    what = canonical(operators()["matmul_leaf8"].trace(variant))
    emitted, _, _ = emit(what, dict(zip("TNK", size, strict=True)), H200, "cute")
    ((_, code),) = codes(emitted, tmp_path)
    assert code.stack <= 24 * (name == "wide, bias")  # outside of loops
    most = 3 if "ends short" in name or "short pieces" in name else 2
    assert code.groups <= 8 * most + 1, f"{code.groups} waits: products that do not run ahead"


DIFFERENTIATED = {
    "d x": ("x", {"grad_leaves": 1}, 8192, 1),
    "d x by pieces": ("x", {"grad_leaves": 8}, 8192, 8),
    "d x by two pieces": ("x", {"grad_leaves": 2}, 8192, 2),
    "a part of d x": ("x", {"grad_leaves": 4, "partial": True}, 8192, 4),
    "d w": ("w", {}, 8192, 1),
    "d w of two pieces of tokens": ("w", {}, 16000, 1),
    "d w onto a buffer": ("w", {"weight_grad": True}, 8192, 1),
    "d w of two pieces onto a buffer": ("w", {"weight_grad": True}, 16000, 1),
}
"""The gradient of a product, what it is asked for, its tokens, and how many chains its blocks have."""


@newest
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_products_keep_their_sums_in_registers(name: str, tmp_path: Path) -> None:
    """Transposed factors are read as they lie: TMA copies them, wgmma takes either major."""
    wanted, options, tokens, chains = DIFFERENTIATED[name]
    op, present = operators()["matmul_backward"], {n for n in options if n == "weight_grad"}
    statics = {"wants": (wanted,)} | {n: x for n, x in options.items() if n not in present}
    what = canonical(op.trace(Variant.of(dict(op.default_variant().dtypes), present, statics)))
    emitted, _, bound = emit(what, {"T": tokens, "N": 6144, "K": 4096}, H200, "cute")
    assert len(bound.kernels) == (3 if tokens > 8192 else 1)
    if name == "d w of two pieces of tokens":  # what is before its last kernel is as it is onto a buffer
        emitted = replace(emitted, kernels=emitted.kernels[-1:])
    for _, code in codes(emitted, tmp_path):
        assert code.stack == 0 and code.products and code.copies > 1 and code.writes
        most = 2 * chains + (chains > 1)
        assert code.groups <= most, f"{code.groups} waits: products that do not run ahead"


STREAMED = {
    "heads of 64": ("varlen_attention", 64, (), 0, 6),
    "heads of 96, window": ("varlen_attention", 96, ("window",), 8, 4),
    "heads of 256": ("varlen_attention", 256, (), 32, 12),
    "heads of 128 in pages": ("paged_attention", 128, (), 80, 6),
    "heads of 64 in pages": ("paged_attention", 64, (), 0, 6),
}
"""The operator, the elements of a head, what else is given, bytes of the stack, and groups of products."""


@newest
@pytest.mark.parametrize("name", STREAMED)
def test_what_is_streamed_leaves_registers(name: str, tmp_path: Path) -> None:
    """Nothing is spilled, and products run in groups: three copies of a step, or two where all are masked."""
    op, width, more, stack, groups = STREAMED[name]
    variant = Variant.of(dict(reference_variant(operators()[op]).dtypes), {"scale", *more}, {"causal": True})
    what = canonical(operators()[op].trace(variant))
    extents = reference_extents(operators()[op], what) | {"E": width, "W": width, "T": 8192, "Q": 8192}
    emitted, _, _ = emit(what, extents, H200, "cute")
    ((_, code),) = codes(emitted, tmp_path)
    copies = 2 if more else 3
    assert code.stack <= stack and code.groups == groups
    assert code.products == copies * (width // 16 + 4) and code.writes > 0


@newest
def test_pieces_of_few_queries_leave_registers(tmp_path: Path) -> None:
    """One warpgroup multiplies for a sequence that asks for one token; another kernel merges its pieces."""
    op = operators()["paged_attention"]
    variant = Variant.of(dict(reference_variant(op).dtypes), {"scale"}, {"causal": True})
    what = canonical(op.trace(variant), apart=frozenset({"S"}))
    emitted, chosen, _ = emit(what, reference_extents(op, what) | {"T": 64, "Q": 64, "B": 64}, H200, "cute")
    assert chosen[0].tile("Q*G") == 64
    (_, pieces), (_, merged) = codes(emitted, tmp_path)
    assert pieces.stack == merged.stack == 0 and (pieces.products, merged.products) == (36, 0)


@newest
@pytest.mark.parametrize(("width", "more"), [(64, ("window",)), (96, ("softcap", "inv_softcap"))])
def test_gradients_keep_their_sums_in_registers(width: int, more: tuple[str, ...], tmp_path: Path) -> None:
    """Sums are not spilled, and no product waits for another: of queries 3 groups a step, of keys 4."""
    op = operators()["varlen_attention"]
    present = {"scale", "d_o", *more}
    variant = Variant.of(dict(reference_variant(op).dtypes), present, {"causal": True}, {"q", "k", "v"})
    assert op.gradient is not None
    what = canonical(op.gradient.trace(variant))
    extents = reference_extents(op, what) | {"E": width, "W": width, "T": 8192, "Q": 8192}
    emitted, _, _ = emit(what, extents, H200, "cute")
    _, (_, queries), (_, keys) = codes(emitted, tmp_path)
    steps, chunk = width // 16, 4  # instructions of a score, and of a sum over 64 rows
    for code, parts, of_step in (
        (queries, 3 if "window" in more else 2, 2 * steps + chunk),
        (keys, 3, 2 * (steps + chunk)),
    ):
        assert code.stack <= 16 * ("softcap" in more) and code.writes > 0
        assert code.products == parts * of_step
    assert (queries.groups, keys.groups) == (9 if "window" in more else 6, 12)


ZEROS = """
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.runtime import make_ptr


{prelude}
@cute.kernel
def chosen(x: cute.Pointer):
    least = {negative}
    x[0] = cutlass.select_(x[1] < x[2], x[3], least)
    x[4] = cutlass.select_(x[1] < x[2], x[3], Float32(0.0))


@cute.jit
def launch(x: cute.Pointer):
    chosen(x).launch(grid=(1, 1, 1), block=(1, 1, 1))


x = make_ptr(Float32, 0, cute.AddressSpace.gmem)
made = cute.compile(launch, x, options="--gpu-arch sm_90a --keep-ptx")
print(made.artifacts.PTX)
"""


@pytest.mark.parametrize(
    ("negative", "found"),
    [("negative_zero()", {"80000000", "00000000"}), ("Float32(-0.0)", {"80000000"})],
    ids=["as it is written", "as the DSL would confuse it"],
)
def test_zeros_keep_their_signs(negative: str, found: set[str], tmp_path: Path) -> None:
    file = tmp_path / "zeros.py"
    prelude = functions()["negative_zero"].source
    file.write_text(ZEROS.replace("{negative}", negative).replace("{prelude}", prelude))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert set(re.findall(r"selp\.(?:f32|b32).* 0f(\w{8}),", done.stdout)) == found, done.stdout


UNIT = """
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup


@cute.jit
def shown():
    k = OperandMajorMode.K
    print(sm90.make_trivial_tiled_mma(BFloat16, BFloat16, k, k, Float32, (1, 1, 1), tiler_mn=(64, 256){more}))


cute.compile(shown, options="--gpu-arch sm_90a")
"""


def offset(index: int, shape: Any, stride: Any) -> int:
    """Return the offset of an index in a layout: the first of nested extents runs fastest."""
    if isinstance(shape, int):
        return index * int(stride)
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        size = math.prod(np.ravel(extent).tolist())
        total += offset(index % size, extent, step)
        index //= size
    return total


def test_the_interpreter_hands_accumulators_out_as_the_compiler_does(tmp_path: Path) -> None:
    file = tmp_path / "unit.py"
    file.write_text(UNIT.replace("{more}", ""))
    assert_handed_out(file, "C", 128)


def test_weights_are_handed_out_as_the_scores_that_they_are_made_of(tmp_path: Path) -> None:
    file = tmp_path / "unit.py"
    file.write_text(UNIT.replace("{more}", ", a_source=warpgroup.OperandSource.RMEM"))
    assert_handed_out(file, "A", 8)  # of 16 columns, which an instruction takes


def assert_handed_out(file: Path, factor: str, registers: int) -> None:
    """Compare the registers of each thread with those that the interpreter gives it."""
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    found = re.search(rf"TV Layout {factor}: +(\S+):(\S+)", done.stdout)
    assert found is not None, done.stdout
    (threads, values), (by_thread, by_value) = (ast.literal_eval(text) for text in found.groups())
    for thread in range(128):
        for register in range(registers):
            at = offset(thread, threads, by_thread) + offset(register, values, by_value)
            row, column = accumulator_place(np.array(thread), register)
            assert (at % 64, at // 64) == (row, column)


VIEWS = """
import cutlass
import cutlass.cute as cute
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Int8


@cute.jit
def shown(width: cutlass.Constexpr):
    along = sm90.make_smem_layout_b(utils.LayoutEnum.ROW_MAJOR, (128, 64, width), BFloat16, 2)
    turned = sm90.make_smem_layout_b(utils.LayoutEnum.COL_MAJOR, (128, width, 64), BFloat16, 2)
    print(width, along.inner, along.outer, turned.inner, turned.outer, sep=" | ")


@cute.jit
def bytes_shown():
    for width in (64, 128):
        made = sm90.make_smem_layout_a(utils.LayoutEnum.ROW_MAJOR, (128, 16, width), Int8, 3)
        print(made.inner, made.outer, sep=" | ")
    made = sm90.make_smem_layout_b(utils.LayoutEnum.ROW_MAJOR, (128, 16, 128), BFloat16, 3)
    print(made.inner, made.outer, sep=" | ")


for width in (256, 192, 128, 112, 96, 80, 48, 16):
    cute.compile(shown, width, options="--gpu-arch sm_90a")
cute.compile(bytes_shown, options="--gpu-arch sm_90a")
"""


def test_a_tile_is_read_along_its_rows_and_across_from_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "views.py"
    file.write_text(VIEWS)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    *lines, of_bytes, twice, beside = done.stdout.splitlines()
    # as byte_places has them, and matrix_places
    assert of_bytes == "S<2,4,3> | ((8,16),(64,1),(1,3)):((64,512),(1,0),(0,8192))"
    assert twice == "S<3,4,3> | ((8,16),(128,1),(1,3)):((128,1024),(1,0),(0,16384))"
    assert beside == "S<3,4,3> | ((8,2),(64,2),(1,3)):((64,512),(1,1024),(0,2048))"
    assert len(lines) == 8
    for line in lines:
        width, one, along, two, turned = line.split(" | ")
        assert one == two
        places = []
        for layout, dims in ((along, (0, 1)), (turned, (1, 0))):
            shape, stride = (ast.literal_eval(text) for text in layout.split(":"))
            rows, elements = (
                [offset(i, shape[dim], stride[dim]) for i in range(n)]
                for dim, n in zip(dims, (64, int(width)), strict=True)
            )
            places.append((np.add.outer(rows, elements), stride[2]))
        (found, stage), (other, other_stage) = places
        assert np.array_equal(found, other) and stage == other_stage
        assert sorted(found.ravel()) == list(range(64 * int(width)))


@pytest.mark.parametrize(("rows", "product", "most"), [(16, "HMMA.16816", 220), (64, "HGMMA", 145)])
def test_int8_weights_become_registers_by_few_instructions(
    tmp_path: Path, rows: int, product: str, most: int
) -> None:
    program = factors(weighed)
    emitted, _, _ = emit(program, {"M": rows, "N": 12288, "K": 4096}, H200, "cute")
    ((_, code),) = codes(emitted, tmp_path)
    text = disassembled(tmp_path / f"{emitted.kernels[0].name}.cubin")
    pairs = 32 if rows == 16 else 16  # of a step of 128 elements or of 64: an instruction converts two
    assert code.stack == 0 and text.count(product) == {16: 16, 64: 8}[rows] and code.barriers <= 1
    loop = text[text.rindex("SYNCS.PHASECHK", 0, text.rindex(product)) : text.rindex(product)]
    assert loop.count("HADD2.BF16") == loop.count("LDS.U16") == pairs and "I2F" not in loop
    assert loop.count(";") < most
