"""The emulator runs gfx950: what CDNA4 has beyond CDNA3, and those sums of products that every rule has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cdna_text import POINTER, emulated
from test_cdna_instructions import FRAME, patterns
from test_cdna_route import call_of

from rlk.backends.triton import compile_triton
from rlk.interp.dot import dot
from rlk.ir.dotmodel import FLOOR, DotModel
from rlk.ir.types import DType
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.check import check_machine
from rlk.testing.simulators.cdna import Fault, FaultKind
from rlk.testing.simulators.cdna.matrix import undisputed

pytest.importorskip("triton")

GFX950 = target("gfx950")
LANE = np.arange(64)
Array = np.ndarray


def result(body: str, a: Array, b: Array, on: str = "gfx950") -> Array:
    """Return v3 after some lines, as the pattern of each lane; v1 and v2 hold the inputs."""
    out = np.zeros(64, np.uint32)
    emulated(FRAME.format(body=body), a.copy(), b.copy(), out, target=on)
    return out


def kind_of(run: Callable[[], object]) -> FaultKind:
    """Return the kind of the fault that a run ends with."""
    with pytest.raises(Fault) as caught:
        run()
    return caught.value.kind


# --- instructions ---


@pytest.mark.parametrize("table", [0x00, 0x6C, 0xF8, 0x0C, 0x96, 0xCA, 0xFF])
def test_a_table_gives_each_bit_of_three_sources(table: int) -> None:
    a, b = (np.unpackbits(x.view(np.uint8)) for x in patterns())
    c = np.unpackbits(np.full(64, 0x1234, np.uint32).view(np.uint8))
    want = np.packbits(table >> 4 * a + 2 * b + c & 1).view(np.uint32)
    line = f"v3, v1, v2, 0x1234 bitop3:{table:#x}"
    assert_same_bits(result(f"v_bitop3_b32 {line}", *patterns()), want)
    low = np.uint32(0xFFFF)
    assert_same_bits(result(f"v_bitop3_b16 {line}", *patterns()) & low, want & low)


@pytest.mark.parametrize("lanes", [16, 32])
def test_odd_rows_change_places_with_even_ones(lanes: int) -> None:
    a, b = patterns()
    swap, odd = f"v_permlane{lanes}_swap_b32_e32 v1, v2\nv_mov_b32_e32 v3, ", LANE & lanes > 0
    first, second = a.copy(), b.copy()
    first[odd], second[~odd] = b[~odd], a[odd]
    assert_same_bits(result(f"{swap}v1", a, b), first)
    assert_same_bits(result(f"{swap}v2", a, b), second)


TRANSPOSED = f"""
    {POINTER}
    v_lshlrev_b32_e32 v1, 3, v0
    s_waitcnt lgkmcnt(0)
    global_load_dwordx2 v[4:5], v1, s[4:5]
    s_waitcnt vmcnt(0)
    ds_write_b64 v1, v[4:5]
    s_waitcnt lgkmcnt(0)
    ds_read_b64_tr_b16 v[6:7], v1
    s_waitcnt lgkmcnt(0)
    global_store_dwordx2 v1, v[6:7], s[4:5]
"""


def test_lanes_read_columns_of_four_rows_of_sixteen() -> None:
    """16 lanes read 64 elements, four a lane."""
    out = np.arange(256, dtype=np.uint16).reshape(4, 16, 4)
    want = out.reshape(4, 4, 16).transpose(0, 2, 1).copy()
    emulated(TRANSPOSED, out, shared=512, target="gfx950")
    assert_same_bits(out, want)


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
    text, out = TRANSPOSED.replace(line, instead), np.zeros(256, np.uint16)
    assert kind_of(lambda: emulated(text, out, shared=520, target="gfx950")) is kind


DEEP = "v_mfma_f32_{0}x{0}x{1}_bf16 v[20:{2}], v[4:7], v[4:7], 0\nv_mov_b32_e32 v3, v{2}"
OF_16, OF_32 = DEEP.format(16, 32, 23), DEEP.format(32, 16, 35)


@pytest.mark.parametrize("line", ["v_bitop3_b32 v3, v1, v2, v1", "v_permlane16_swap_b32 v1, v2", OF_16])
def test_gfx942_does_not_have_them(line: str) -> None:
    assert kind_of(lambda: result(line, *patterns(), on="gfx942")) is FaultKind.UNKNOWN


def test_a_workgroup_has_160_kibibytes_of_lds() -> None:
    size, given = 160 * 1024, np.zeros(1)
    emulated("s_nop 0", given, shared=size, target="gfx950")
    more = kind_of(lambda: emulated("s_nop 0", given, shared=size + 1, target="gfx950"))
    assert more is FaultKind.RESOURCES


# --- sums that no rule can change ---


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("scale", [1, 2.0**-9])
def test_whole_numbers_have_one_sum_by_every_rule(dtype: DType, scale: float) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-n, n, (32, 32)).astype(np.float32) for n in (128, 128, 1000))
    a, c = a * np.float32(scale), c * np.float32(scale)
    made = undisputed(a, b, c, FLOOR[dtype]).astype(np.float32)
    for model in (DotModel.CHAIN16, DotModel.CDNA3, DotModel.CDNA2):
        assert_same_bits(dot(a, b, model, dtype, c), made)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ([2.0**12, 1], [2.0**12, 1], 0),  # 25 bits
        ([1, 1], [1, 1], 2.0**-23),
        ([2.0**-130, 0], [1, 1], 0),  # subnormal
        ([2.0**-70, 0], [2.0**-70, 0], 0),
        ([0, 0], [1, 1], -0.0),
        ([np.inf, np.nan], [1, 1], 0),
    ],
)
def test_a_sum_that_a_rule_could_change_is_a_fault(a: list[float], b: list[float], c: float) -> None:
    x, y, z = (np.array([v], np.float32) for v in (a, b, [c]))
    assert kind_of(lambda: undisputed(x, y, z, -126)) is FaultKind.UNPUBLISHED


@pytest.mark.parametrize(("product", "depth"), [(OF_16, 32), (OF_32, 16)])
def test_deep_products_of_whole_numbers_run_and_others_are_refused_by_name(product: str, depth: int) -> None:
    def made(factors: int) -> Array:
        moves = [f"v_mov_b32_e32 v{n}, {factors:#x}" for n in range(4, 8)]
        return result("\n".join([*moves, product]), *patterns()).view(np.float32)

    assert (made(0x40404040) == 9 * depth).all()  # threes
    assert kind_of(lambda: made(0x35803F80)) is FaultKind.UNPUBLISHED  # 1 and 2**-20


# --- the ladder ---


@pytest.mark.parametrize(
    ("name", "which"),
    [("rms_norm", "gradient"), ("swiglu", "gradient"), ("logp", "forward"), ("policy_loss", "forward"),
     ("gae", "forward"), ("matmul", "forward"), ("matmul_leaf8", "forward")],
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
