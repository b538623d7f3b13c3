"""The emulator runs gfx950: what CDNA4 has beyond CDNA3, and those sums of products that every rule has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cdna_text import POINTER, assembly, emulated
from test_cdna_instructions import FRAME, floats, patterns
from test_cdna_route import call_of

from rlk.interp.dot import dot
from rlk.ir.dotmodel import FLOOR, NATIVE, DotModel
from rlk.ir.types import DType
from rlk.lower.common.emitted import Emitted
from rlk.runtime.toolchain import compile_triton
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.cdna import Fault, FaultKind, emulate
from rlk.testing.cdna.matrix import Shape, places, undisputed
from rlk.testing.check import check_machine

pytest.importorskip("triton")

GFX950 = target("gfx950")
LANE = np.arange(64)
ODD = {16: LANE // 16 % 2 == 1, 32: LANE >= 32}
Array = np.ndarray


def result(body: str, a: Array, b: Array, on: str = "gfx950") -> Array:
    """Return v3 after some lines, as the pattern of each lane; v1 and v2 hold the inputs."""
    out = np.zeros(64, np.uint32)
    emulated(FRAME.format(body=body), a.copy(), b.copy(), out, target=on)
    return out


# --- instructions ---


@pytest.mark.parametrize("table", [0x00, 0x6C, 0xF8, 0x0C, 0x96, 0xCA, 0xFF])
def test_a_table_gives_each_bit_of_three_sources(table: int) -> None:
    a, b = patterns()
    index = [4 * (a >> np.uint32(n) & 1) + 2 * (b >> np.uint32(n) & 1) + (0x1234 >> n & 1) for n in range(32)]
    want = sum((table >> at.astype(np.uint64) & 1) << np.uint64(n) for n, at in enumerate(index))
    want = np.asarray(want).astype(np.uint32)
    assert_same_bits(result(f"v_bitop3_b32 v3, v1, v2, 0x1234 bitop3:{table:#x}", a, b), want)
    low = result(f"v_bitop3_b16 v3, v1, v2, 0x1234 bitop3:{table:#x}", a, b)
    assert_same_bits(low & np.uint32(0xFFFF), want & np.uint32(0xFFFF))


@pytest.mark.parametrize("lanes", ODD)
def test_odd_rows_change_places_with_even_ones(lanes: int) -> None:
    a, b = patterns()
    swap, odd = f"v_permlane{lanes}_swap_b32_e32 v1, v2\nv_mov_b32_e32 v3, ", ODD[lanes]
    first, second = a.copy(), b.copy()
    first[odd], second[~odd] = b[~odd], a[odd]
    assert_same_bits(result(f"{swap}v1", a, b), first)
    assert_same_bits(result(f"{swap}v2", a, b), second)


def test_two_floats_are_rounded_to_halves() -> None:
    a, b = floats()
    with np.errstate(all="ignore"):
        low, high = (x.astype(np.float16).view(np.uint16).astype(np.uint32) for x in (a, b))
    assert_same_bits(result("v_cvt_pk_f16_f32 v3, v1, v2", a, b), low | high << np.uint32(16))


TRANSPOSED = f"""
    {POINTER}
    v_lshlrev_b32_e32 v1, 3, v0
    v_lshlrev_b32_e32 v2, 2, v0
    v_lshl_or_b32 v4, v2, 16, v2
    v_add_u32_e32 v4, 0x10000, v4
    v_add_u32_e32 v5, 0x20002, v4
    ds_write_b64 v1, v[4:5]
    s_waitcnt lgkmcnt(0)
    ds_read_b64_tr_b16 v[6:7], v1
    s_waitcnt lgkmcnt(0)
    global_store_dwordx2 v1, v[6:7], s[4:5]
"""


def test_lanes_read_columns_of_four_rows_of_sixteen() -> None:
    """LDS holds its elements' own numbers; 16 lanes read 64 of them, four a lane."""
    out = np.zeros((4, 16, 4), np.uint16)
    emulated(TRANSPOSED, out, shared=512, target="gfx950")
    want = np.arange(256).reshape(4, 4, 16).transpose(0, 2, 1)
    assert_same_bits(out, want.astype(np.uint16))


READ = "ds_read_b64_tr_b16 v[6:7], v1"


@pytest.mark.parametrize(
    ("line", "instead", "kind"),
    [
        (READ, f"{READ} offset:4", FaultKind.MISALIGNED),
        (READ, f"s_mov_b64 exec, 1\n{READ}", FaultKind.UNKNOWN),
        ("s_waitcnt lgkmcnt(0)\n    global", "global", FaultKind.UNFINISHED),
        ("ds_write_b64 v1, v[4:5]", "s_nop 0", FaultKind.UNINITIALISED),
    ],
)
def test_a_transposed_read_is_checked_like_any_other(line: str, instead: str, kind: FaultKind) -> None:
    assert line in TRANSPOSED
    with pytest.raises(Fault) as caught:
        emulated(TRANSPOSED.replace(line, instead), np.zeros(256, np.uint16), shared=520, target="gfx950")
    assert caught.value.kind is kind


@pytest.mark.parametrize("line", ["v_bitop3_b32 v3, v1, v2, v1 bitop3:0x6c", "v_permlane32_swap_b32 v1, v2"])
def test_gfx942_does_not_have_them(line: str) -> None:
    with pytest.raises(Fault) as caught:
        result(line, *patterns(), on="gfx942")
    assert caught.value.kind is FaultKind.UNKNOWN


def test_a_workgroup_has_160_kibibytes_of_lds() -> None:
    for size, fits in ((160 * 1024, True), (160 * 1024 + 1, False)):
        text, zeros = assembly("s_nop 0", shared=size), [np.zeros(1)]
        run = lambda: emulate(text, "small", (1, 1, 1), (64, 1, 1), zeros, target="gfx950")  # noqa: B023, E731
        if fits:
            run()
            continue
        with pytest.raises(Fault) as caught:
            run()
        assert caught.value.kind is FaultKind.RESOURCES


# --- sums that no rule can change ---

MODELS = (DotModel.CHAIN16, DotModel.CDNA3, DotModel.CDNA2)


def test_no_rule_of_gfx950_is_known() -> None:
    assert GFX950.name not in NATIVE


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_whole_numbers_have_one_sum_by_every_rule(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 129, (32, 32)).astype(np.float32) for _ in range(2))
    c = rng.integers(-1000, 1000, (32, 32)).astype(np.float32)
    for scale in (1, 2.0**-9):
        x, y, z = a * np.float32(scale), b, c * np.float32(scale)
        made = undisputed(x, y, z, FLOOR[dtype]).astype(np.float32)
        for model in MODELS:
            assert_same_bits(dot(x, y, model, dtype, z), made)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ([1, 2.0**-24], [1, 1], 0),  # 25 bits
        ([2.0**12, 1], [2.0**12, 1], 0),
        ([1, 1], [1, 1], 2.0**-23),
        ([2.0**-130, 0], [1, 1], 0),  # subnormal
        ([2.0**-70, 0], [2.0**-70, 0], 0),
        ([0, 0], [1, 1], -0.0),
        ([np.inf, 0], [1, 1], 0),
        ([np.nan, 0], [1, 1], 0),
    ],
)
def test_a_sum_that_a_rule_could_change_is_a_fault(a: list[float], b: list[float], c: float) -> None:
    x, y = (np.array([v], np.float32) for v in (a, b))
    with pytest.raises(Fault) as caught:
        undisputed(x, y, np.full((1, 1), c, np.float32), -126)
    assert caught.value.kind is FaultKind.UNPUBLISHED


def product(shape: Shape, on: str, whole: bool) -> tuple[Array, Array, Array]:
    """Return two factors in bf16 and what a matrix instruction makes of them, as rows and columns."""
    rng = np.random.default_rng(5)
    draw = (lambda: rng.integers(-8, 9, (shape.rows, shape.depth))) if whole else (
        lambda: rng.normal(size=(shape.rows, shape.depth)))  # fmt: skip
    bits = [draw().astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000) for _ in range(2)]
    blocks = [
        (x >> np.uint32(16)).astype(np.uint16).reshape(shape.rows, -1, shape.own).transpose(1, 0, 2)
        for x in bits
    ]
    held = [np.ascontiguousarray(x.reshape(64, shape.own)) for x in blocks]
    out = np.zeros((64, shape.results), np.float32)
    stores = "\n".join(
        f"global_store_dword v9, v{20 + n}, s[8:9] offset:{4 * n}" for n in range(shape.results)
    )
    name = f"v_mfma_f32_{shape.rows}x{shape.rows}x{shape.depth}_bf16"
    body = f"""
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_load_dwordx2 s[8:9], s[0:1], 0x10
        v_lshlrev_b32_e32 v1, 4, v0
        v_mul_u32_u24_e32 v9, {4 * shape.results}, v0
        s_waitcnt lgkmcnt(0)
        global_load_dwordx4 v[4:7], v1, s[4:5]
        global_load_dwordx4 v[12:15], v1, s[6:7]
        s_waitcnt vmcnt(0)
        {name} v[20:{19 + shape.results}], v[4:7], v[12:15], 0
        {stores}
    """
    emulated(body, *held, out, target=on)
    made = np.zeros((shape.rows, shape.rows), np.float32)
    made[places(shape)] = out.T
    return bits[0].view(np.float32), bits[1].view(np.float32), made


@pytest.mark.parametrize("shape", [Shape(16, 32, "bf16"), Shape(32, 16, "bf16")])
def test_deep_products_of_whole_numbers_run_and_others_are_refused_by_name(shape: Shape) -> None:
    a, b, made = product(shape, "gfx950", whole=True)
    assert_same_bits(made, (a @ b.T).astype(np.float32))
    with pytest.raises(Fault) as caught:
        product(shape, "gfx950", whole=False)
    assert caught.value.kind is FaultKind.UNPUBLISHED
    with pytest.raises(Fault) as caught:
        product(shape, "gfx942", whole=True)
    assert caught.value.kind is FaultKind.UNKNOWN


# --- the ladder ---


@pytest.mark.parametrize(
    ("name", "which"),
    [("rms_norm", "forward"), ("rms_norm", "gradient"), ("swiglu", "gradient"), ("logp", "forward"),
     ("policy_loss", "forward"), ("gae", "forward"), ("matmul", "forward"), ("matmul_leaf8", "forward")],
)  # fmt: skip
def test_machine_code_has_the_oracles_bits(name: str, which: str) -> None:
    """Rows, folds, scans, element by element, and products of whole numbers."""
    found = check_machine(call_of(name, which), GFX950, compile_triton, (0, 2))
    assert found.ok, found.note
    assert found.count == 3
    assert ("whole numbers" in found.ran) == name.startswith("matmul")
    assert (" 0 of them MFMA" in found.ran) != name.startswith("matmul")


def test_products_that_depend_on_a_rule_are_not_tried_and_run_by_another_devices() -> None:
    found = check_machine(call_of("varlen_attention", "forward"), GFX950, compile_triton, (2,))
    assert found.ok is None and found.worst == 0
    assert "published nowhere" in found.note and "not tried" in found.ran


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("matmul", "v_permlane32_swap_b32", "v_permlane16_swap_b32"),
     ("swiglu", "v_pk_mul_f32", "v_pk_add_f32"),
     ("varlen_attention", "ds_read_b64_tr_b16", "ds_read_b64")],
)  # fmt: skip
def test_a_wrong_instruction_fails_the_law(name: str, right: str, wrong: str) -> None:
    """The control."""

    def changed(emitted: Emitted, on: str, folder: Path) -> None:
        compile_triton(emitted, on, folder)
        texts = {file: file.read_text() for file in folder.glob("*.amdgcn")}
        assert any(right in text for text in texts.values())
        for file, text in texts.items():
            file.write_text(text.replace(right, wrong))

    found = check_machine(call_of(name, "forward"), GFX950, changed, ())
    assert found.ok is False and found.worst > 0
