"""Machine code of the contractions: products that wait for each other, and lost comparisons, are detected.

Two things happened to kernels of this shape that no result on a CPU shows (docs/measured/linear-logp.md): an
epilogue made the compiler wait after every matrix instruction; packed predicates lost a one-hot comparison.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import derived_specs
import pytest
import test_dense_rows
import torch
from gpu.test_products_together import tensor
from test_computed_factors import program, weighed
from test_top import chunked

from benchmarks import machine_code
from rlk import ops  # noqa: F401  (registers what gradients need beside saved tensors)
from rlk.backends import triton as compiling
from rlk.backends.triton import compile_triton
from rlk.lang import Variant
from rlk.lower.common.emitted import Emitted
from rlk.passes.pipeline import canonical
from rlk.runtime.binding import selection
from rlk.runtime.binding.invocation import Invocation, Tensors, geometry_of
from rlk.runtime.call import autograd
from rlk.runtime.call.dispatch import lowered
from rlk.runtime.launch.record import ModuleRecord
from rlk.runtime.reference import emit
from rlk.runtime.registry import operators
from rlk.specs.attention import prefix_attention, varlen_attention
from rlk.specs.linear_logp import linear_logp
from rlk.specs.matmul import matmul
from rlk.target.facts import target

triton = pytest.importorskip("triton")
DISASSEMBLER = next(Path(triton.__file__).parent.rglob("cuobjdump"), None)
pytestmark = pytest.mark.skipif(DISASSEMBLER is None, reason="Triton came without a disassembler")

ROWS, DEPTH, VOCABULARY = 8192, 4096, 128256
SCALARS = {"inv_temperature": 1.4, "ignore_index": -100}
LOST = re.compile(r"SEL R\d+, RZ, 0x(?:1fffe|7fff8)\b")
SPILLED = 96  # words that a kernel may keep in memory: a fold with entropy needs every register


@dataclass(frozen=True, slots=True)
class Code:
    """Counts of a kernel's matrix instructions, of waits that start a group of them, and of the rest."""

    products: int
    groups: int
    lost: int
    spilled: int

    @staticmethod
    def of(text: str) -> Code:
        spilled = text.count("STL") + text.count("LDL")
        return Code(text.count("HGMMA"), text.count("WARPGROUP.ARRIVE"), len(LOST.findall(text)), spilled)


def codes(emitted: Emitted, folder: Path) -> Iterator[tuple[str, Code]]:
    compile_triton(emitted, "sm_90a", folder)
    for file in sorted(folder.glob("*.cubin")):
        shown = subprocess.run(
            [str(DISASSEMBLER), "--dump-sass", str(file)], capture_output=True, text=True, check=True
        )
        yield file.stem, Code.of(shown.stdout)


def inputs() -> Tensors:
    return {  # memory that nobody touches
        "hidden": torch.empty(ROWS, DEPTH, dtype=torch.bfloat16),
        "weight": torch.empty(VOCABULARY, DEPTH, dtype=torch.bfloat16),
        "ids": torch.zeros(ROWS, dtype=torch.int64),
    }


def source(invocation: Invocation, tensors: Tensors, on: str = "sm_90a") -> Emitted:
    device = target(on)
    geometry = geometry_of(invocation, tensors)
    return lowered(invocation, device.softmax, geometry, tensors, device, backend="triton")[3]


def forward(needs: tuple[str, ...]) -> Emitted:
    tensors = inputs()
    statics = {"needs": needs, "keep": False, "states": False}
    return source(selection.invoke(linear_logp, tensors, SCALARS, statics, None), tensors)


def backward(cotangents: tuple[str, ...]) -> Emitted:
    tensors = inputs()
    statics = {"needs": ("entropy",), "keep": False, "states": False}
    invocation = selection.invoke(linear_logp, tensors, SCALARS, statics, None)
    rows = torch.zeros(ROWS)
    saved = {"lse": rows, "entropy": rows, "order": torch.zeros(ROWS, dtype=torch.int64)}
    saved |= dict.fromkeys(cotangents, rows)
    wanted = frozenset({"hidden", "weight"})
    return source(autograd._backward(invocation, frozenset(cotangents), wanted), tensors | saved)


FORMS = {
    "forward": lambda: forward(()),
    "forward with entropy": lambda: forward(("entropy",)),
    "gradient": lambda: backward(("d_logp",)),
    "gradient with entropy": lambda: backward(("d_logp", "d_lse", "d_entropy")),
}


@pytest.mark.parametrize("form", FORMS)
def test_products_run_on_and_no_comparison_is_packed(form: str, tmp_path: Path) -> None:
    found = {name: code for name, code in codes(FORMS[form](), tmp_path) if code.products}
    assert len(found) == (1 if form.startswith("forward") else 6), found
    for name, code in found.items():
        assert code.groups == 1, f"{name} waits {code.groups} times for {code.products} products"
        assert code.lost == 0, f"{name} packs the predicates of {code.lost} selections"
        assert code.spilled <= SPILLED, f"{name} spills {code.spilled} words"


ATTENTION = {"64": (64, 64), "96": (96, 96), "128": (128, 128), "256": (256, 256), "192 and 128": (192, 128)}


def attention(e: int, w: int, queries: int = 8192, sequences: int = 8, on: str = "sm_90a") -> Emitted:
    shapes = {"q": (queries, 8, 4, e), "k": (8192, 8, e), "v": (8192, 8, w)}
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    offsets = torch.zeros(sequences, dtype=torch.int32)
    tensors |= dict.fromkeys(("begin_q", "end_q", "begin_k", "end_k"), offsets)
    statics = {"causal": True}
    return source(selection.invoke(varlen_attention, tensors, {"scale": 0.1}, statics, None), tensors, on)


@pytest.mark.parametrize("width", ATTENTION)
def test_attention_waits_once_for_each_of_its_products(width: str, tmp_path: Path) -> None:
    """Two products a step, masked or not; the sums stay in registers."""
    ((name, code),) = codes(attention(*ATTENTION[width]), tmp_path)
    assert code.groups == 2, f"{name} waits {code.groups} times for {code.products} products"
    assert code.lost == 0 and code.spilled <= SPILLED, f"{name} spills {code.spilled} words"


@pytest.mark.parametrize("width", ["64", "128"])
def test_shared_prompts_wait_as_often(width: str, tmp_path: Path) -> None:
    """Both kernels are that of attention; the second has two states from the start, and peeled loops."""
    e, w = ATTENTION[width]
    rows = {"q": (8192, 8, 4), **dict.fromkeys(("k", "v", "k_prefix", "v_prefix"), (8192, 8))}
    tensors = {n: torch.empty(*s, w if n[0] == "v" else e, dtype=torch.bfloat16) for n, s in rows.items()}
    for names, count in (("shared q k", 8), ("prefix asks", 2)):
        bounds = [f"{end}_{name}" for name in names.split() for end in ("begin", "end")]
        tensors |= dict.fromkeys(bounds, torch.zeros(count).int())
    tensors["place"] = torch.zeros(8192).int()
    made = selection.invoke(prefix_attention, tensors, {"scale": 0.1}, {"causal": True}, None)
    for (name, code), groups in zip(codes(source(made, tensors), tmp_path), (2, 4), strict=True):
        assert code.groups == groups and code.lost == 0 and code.spilled <= SPILLED, (name, code)


def attention_gradient(e: int, w: int, rows: int = 8192, sequences: int = 8, on: str = "sm_90a") -> Emitted:
    shapes = {"q": (rows, 8, 4, e), "k": (rows, 8, e), "v": (rows, 8, w), "o": (rows, 8, 4, w)}
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    tensors |= dict.fromkeys(("begin_q", "end_q", "begin_k", "end_k"), torch.zeros(sequences).int())
    saved = tensors | {"lse": torch.empty(8, 4, rows), "d_o": tensors.pop("o")}
    invocation = selection.invoke(varlen_attention, tensors, {"scale": 0.1}, {"causal": True}, None)
    backward_of = autograd._backward(invocation, frozenset({"d_o"}), frozenset({"q", "k", "v"}))
    return source(backward_of, saved | {"o": saved["d_o"]}, on)


@pytest.mark.parametrize(
    ("width", "spilled", "groups"),
    [("64", 0, [3, 4]), ("128", SPILLED, [3, 4]), ("256", 256, [6, 12]), ("192 and 128", 128, [6, 12])],
)
def test_gradients_of_attention_wait_once_for_each_of_their_products(
    width: str, spilled: int, groups: list[int], tmp_path: Path
) -> None:
    """Three products a step of queries, and four of keys; wide rows spill, and have peeled loops."""
    found = {
        name: code for name, code in codes(attention_gradient(*ATTENTION[width]), tmp_path) if code.products
    }
    assert [code.groups for code in found.values()] == groups, found
    for name, code in found.items():
        assert code.lost == 0 and code.spilled <= spilled, f"{name} spills {code.spilled} words"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_100a", "sm_120a"])
def test_attention_compiles_for_devices_that_nobody_has_here(name: str, tmp_path: Path) -> None:
    """Not for sm_89, whose shared memory and warps are those of sm_86."""
    for emitted in (attention(128, 128, on=name), attention_gradient(128, 128, on=name)):
        compile_triton(emitted, name, tmp_path)
        assert "make_tensor_descriptor" not in emitted.source
        room = target(name).shared << 10
        assert all(kernel.shared <= room for kernel in ModuleRecord.read(tmp_path).kernels)


def test_the_marks_are_found_in_a_text_that_has_them() -> None:
    """The control: what the tests look for, as the disassembler writes it."""
    text = "WARPGROUP.ARRIVE\nHGMMA.64x256x16\nWARPGROUP.ARRIVE\n SEL R12, RZ, 0x7fff8, P0 ;\n STL [R1], R2 ;"
    assert Code.of(text) == Code(1, 2, 1, 1)


FIRST = re.compile(r"wgmma\.mma_async[^;]*?, (%?\w+), 1, 1, 0, 0;", re.DOTALL)
"""The operand of a product's instruction that says whether it adds onto the accumulator: 0 does not."""


def test_a_bias_is_no_initial_value_of_an_accumulator(tmp_path: Path) -> None:
    """Triton would fold a sum with a product into the accumulator once it has removed a loop of one step."""
    tensors = {
        "hidden": torch.empty(300, 64, dtype=torch.bfloat16), "bias": torch.empty(5000, dtype=torch.bfloat16),
        "weight": torch.empty(5000, 64, dtype=torch.bfloat16), "ids": torch.zeros(300, dtype=torch.int64),
    }  # fmt: skip
    statics = {"needs": (), "keep": False, "states": False}
    emitted = source(selection.invoke(linear_logp, tensors, SCALARS, statics, None), tensors)
    option = ", max_num_imprecise_acc=1"
    assert option in emitted.source
    found = {}
    for name, text in (("ours", emitted.source), ("folded", emitted.source.replace(option, ""))):
        (tmp_path / name).mkdir()
        compile_triton(replace(emitted, source=text), "sm_90a", tmp_path / name)
        ptx = "".join(file.read_text() for file in (tmp_path / name).glob("*.ptx"))
        found[name] = FIRST.findall(ptx)[0]
    assert found["ours"] == "0" and found["folded"] != "0", found  # the control is what Triton does by itself


@pytest.mark.parametrize("on", ["sm_90a", "sm_80"])
def test_products_of_bytes_take_k_in_ascending_order(on: str, tmp_path: Path) -> None:
    """Triton gives mma.sync the elements of K that a thread has loaded together: four of a byte, not two."""
    made, _, _ = emit(program(weighed), {"M": 16, "N": 12288, "K": 4096}, target(on), "triton")
    compile_triton(made, on, tmp_path)
    assert "mma.sync" in (tmp_path / f"{made.kernels[0].name}.ptx").read_text()
    wrong = replace(made, source=re.sub(r"= keep_k_order\((\w+)\)", r"= \1", made.source))
    assert wrong.source != made.source
    with pytest.raises(ValueError, match="other elements of K"):
        compile_triton(wrong, on, tmp_path)


def test_no_byte_of_a_float8_is_read_before_it_is_converted(tmp_path: Path) -> None:
    """ptxas makes a packing of converted bytes an operand of their conversion: all products were wrong."""
    sizes = {"P": 70, "M": 48, "D": 64, "R": 70, "Q": 41}
    for spec in (derived_specs.narrowed_again, derived_specs.narrow):
        made, _, _ = emit(canonical(spec.trace(Variant.of({}))), sizes, target("sm_90a"), "triton")
        casts = [line for line in made.source.splitlines() if "tl.float8e" in line]
        assert len(casts) >= 2 and all("byte_alone(" in line for line in casts)
        compile_triton(made, "sm_90a", tmp_path)
    wrong = replace(made, source=re.sub(r"= byte_alone\((.*)\)", r"= \1", made.source))
    assert wrong.source != made.source
    with pytest.raises(ValueError, match="before they are converted"):
        compile_triton(wrong, "sm_90a", tmp_path)


@pytest.mark.parametrize(("depth", "whole"), [(1032, True), (1034, False)])
def test_rows_at_multiples_of_16_bytes_are_loaded_by_tma(depth: int, whole: bool, tmp_path: Path) -> None:
    """A depth of 1032 is no multiple of 16, but 1032 elements of 16 bits are one of 16 bytes."""
    tensors = {n: torch.empty(rows, depth, dtype=torch.bfloat16) for n, rows in (("x", 300), ("w", 512))}
    statics = {"keep_f32": False, "round_product": False, "grad_leaves": 1}
    emitted = source(selection.invoke(matmul, tensors, {}, statics, None), tensors)
    told = {arg.name: arg.divisor for arg in emitted.kernels[0].args if arg.divisible}
    strides = {"x_t_stride": 8, "w_n_stride": 8}
    assert told == {"x_ptr": 16, "w_ptr": 16, "y_ptr": 16, "y_t_stride": 8, **(strides if whole else {})}
    compile_triton(emitted, "sm_90a", tmp_path)
    assert ("cp.async.bulk.tensor" in (tmp_path / "matmul.ptx").read_text()) is whole


USED = re.compile(r"(gdesc\[)?\bUR(\d+)")


def without_a_value(text: str) -> list[str]:
    """Return the instructions of machine code that read a uniform register before any wrote it."""
    written, found = set(range(63, 64)), []
    for code in re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*?)\s*;", text):
        op, _, operands = code.partition(" ")
        writes = re.match(r"(?:U|S2UR|R2UR|REDUX|VOTEU)", op) and re.match(r"\s*UR(\d+)", operands)
        # a product whose first factor is in registers has the descriptor of the other in the upper two
        inner = 2 if re.match(r"\s*R\d+, R\d+, gdesc", operands) else 0
        reads = [int(n) + (inner if gdesc else 0) for gdesc, n in USED.findall(operands)][bool(writes) :]
        if not written.issuperset(reads):
            found.append(code)
        if writes:
            wide = 2 if ".64" in op and not op.startswith("USHF") or ".WIDE" in op else 1
            written |= {int(writes[1]) + i for i in range(wide)}
    return found


@pytest.mark.parametrize("name", ["plain", "causal"])
def test_addresses_of_tiles_in_one_place_have_values(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ptxas 12.8, the control, wgmma reads elsewhere: on an H200 each of 7200 values was wrong."""
    given = {n: tensor(x) for n, x in test_dense_rows.case(name, 300, **test_dense_rows.ODD).items()}
    emitted = source(selection.invoke(test_dense_rows.SPECS[name], given, {}, {}, None), given)
    found = []
    for folder in (tmp_path / "ours", tmp_path / "as it comes"):
        folder.mkdir()
        compile_triton(emitted, "sm_90a", folder)
        command = [str(DISASSEMBLER), "--dump-sass", str(folder / f"{name}.cubin")]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert text.count("HGMMA") > 4
        found.append(without_a_value(text))
        monkeypatch.setattr(compiling, "_tiles_share_a_place", lambda ptx: False)
    assert found[0] == []
    assert found[1] or compiling._release(triton.knobs.nvidia.ptxas) >= compiling._SOUND


def test_sums_of_pieces_are_added_after_a_loop_of_one_step(tmp_path: Path) -> None:
    """The control: without the option Triton begins the last piece's products with the earlier sum."""
    given = {n: tensor(x) for n, x in test_dense_rows.case("decayed", 300, **test_dense_rows.ODD).items()}
    emitted = source(selection.invoke(test_dense_rows.SPECS["decayed"], given, {}, {}, None), given)
    begun = []
    for text in (emitted.source, emitted.source.replace(", max_num_imprecise_acc=1", "")):
        compile_triton(replace(emitted, source=text), "sm_90a", tmp_path)
        operand = r"wgmma\.mma_async[^;]*?m64n32[^;]*?, (%?\w+), 1, 1(?:, \d)*;"
        begun.append(re.findall(operand, (tmp_path / "decayed.ptx").read_text()).count("0"))
    assert begun == [3, 2]


def test_gradients_of_wide_rows_stay_in_registers(tmp_path: Path) -> None:
    """The control: by four warps, a row of 12288 with a sum of such rows is kept in local memory."""
    serial = machine_code.emitted(operators()["rms_norm"], grad=True, extents={"N": 8192, "T": 65536})
    beside = machine_code.emitted(operators()["rms_norm"], grad=True, extents={"N": 12288, "T": 4096})
    found = [code for each in (serial, beside) for code in machine_code.codes(*each, tmp_path)]
    assert [code.name[-1] for code in found] == ["1", "2", "1", "2", "3"]
    assert all(code.spills == 0 and code.stack == 0 for code in found), found
    source, schedules = serial
    first = replace(source.kernels[0], num_warps=4)
    wrong = replace(source, kernels=(first, *source.kernels[1:]))
    assert next(machine_code.codes(wrong, schedules, tmp_path)).spills > 100


def test_a_chain_of_maxima_is_computed_once(tmp_path: Path) -> None:
    """Each of a top's maxima is taken of the last one's result: computed again, code doubles with each."""
    made, schedules, _ = emit(
        canonical(chunked.trace(Variant())), {"T": 7, "C": 300}, target("sm_90a"), "triton"
    )
    assert sum(code.instructions for code in machine_code.codes(made, schedules, tmp_path)) < 5000


def test_widths_of_accesses_are_counted() -> None:
    text = """
        /*0000*/   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0010*/   LDG.E.U16 R5, desc[UR4][R2.64+0x10] ;
        /*0020*/   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64] ;
        /*0030*/   LDG.E R6, desc[UR4][R2.64] ;
        /*0040*/   STL.64 [R1], R4 ;
        /*0050*/   LDL.LU R4, [R1+0x4] ;
        /*0060*/   STG.E.64 desc[UR4][R2.64], R4 ;
    """
    code = machine_code.counted("k", "s", 4, {"REG": 32, "STACK": 8}, text)
    assert code.loads == {128: 2, 16: 1, 32: 1} and code.stores == {64: 1}
    assert (code.spills, code.instructions, code.registers, code.stack) == (2, 7, 32, 8)
