"""Single instructions of the CDNA emulator have the values that NumPy gives, lane by lane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cdna_text import POINTER, emulated

from rlk.interp.floats import fma
from rlk.testing.bits import assert_same_bits

LANE = np.arange(64)
F, U, I = np.float32, np.uint32, np.int32
Array = np.ndarray

# v1 and v2 hold two inputs, v3 the result; s[20:21] is the last argument's address, where it goes.
FRAME = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    s_load_dwordx2 s[6:7], s[0:1], 0x8
    s_load_dwordx2 s[20:21], s[0:1], 0x10
    v_lshlrev_b32_e32 v9, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dword v1, v9, s[4:5]
    global_load_dword v2, v9, s[6:7]
    v_mov_b32_e32 v3, -1
    s_waitcnt vmcnt(0)
    {body}
    global_store_dword v9, v3, s[20:21]
"""


def result(body: str, a: Array, b: Array, perturb: int | None = None) -> Array:
    """Return v3 after some lines, as the pattern of each lane."""
    out = np.zeros(64, U)
    emulated(FRAME.format(body=body), a.copy(), b.copy(), out, perturb=perturb)
    return out


def floats() -> tuple[Array, Array]:
    """Return two inputs with every kind of float in them."""
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e-45, 3.4e38, 2.0**-126, 1.5], F)
    a, b = (np.ldexp(rng.normal(size=64), rng.integers(-60, 60, 64)).astype(F) for _ in range(2))
    a[:10], b[5:15] = special, special
    return a, b


def patterns() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return tuple(rng.integers(0, 1 << 32, 64, U) for _ in range(2))  # type: ignore[return-value]


def halves(x: Array, shift: int) -> Array:
    """Return 16 bits of each pattern as f16."""
    return (x.view(U) >> U(shift)).astype(np.uint16).view(np.float16)


FLOATS: dict[str, Callable[[Array, Array], Array]] = {
    "v_add_f32_e32 v3, v1, v2": lambda a, b: a + b,
    "v_sub_f32_e64 v3, |v1|, -v2": lambda a, b: np.abs(a) + b,
    "v_mul_f32_e32 v3, -0.5, v1": lambda a, b: F(-0.5) * a,
    "v_fma_f32 v3, v1, -v2, 1.0": lambda a, b: fma(a, -b, np.ones(64, F)),
    "v_floor_f32_e32 v3, v1": lambda a, b: np.floor(a),
    "v_rndne_f32_e32 v3, v1": lambda a, b: np.rint(a),
    "v_ldexp_f32 v3, v1, -3": lambda a, b: (a.astype(float) / 8).astype(F),
    "v_fma_mix_f32 v3, v1, v2, neg(0) op_sel:[1,0,0] op_sel_hi:[1,1,0]": lambda a, b: (
        halves(a, 16).astype(F) * halves(b, 0).astype(F)
    ),
    "v_fma_mix_f32 v3, v1, -v2, v1 op_sel_hi:[1,0,0]": lambda a, b: fma(halves(a, 0).astype(F), -b, a),
    "v_pk_max_f16 v3, v1, v2 op_sel:[0,1] op_sel_hi:[1,0]\nv_cvt_f32_f16_e32 v3, v3": lambda a, b: (
        np.fmax(halves(a, 0), halves(b, 16)).astype(F)
    ),
    "v_cvt_pk_f16_f32 v3, v1, v2\nv_lshrrev_b32_e32 v3, 16, v3\nv_cvt_f32_f16_e32 v3, v3": lambda a, b: (
        b.astype(np.float16).astype(F)
    ),
    "v_pk_min_f16 v3, v1, v2\nv_lshrrev_b32_e32 v3, 16, v3\nv_cvt_f32_f16_e32 v3, v3": lambda a, b: (
        np.fmin(halves(a, 16), halves(b, 16)).astype(F)
    ),
    "v_cvt_f16_f32_e32 v3, v1\nv_cvt_f32_f16_e32 v3, v3": lambda a, b: a.astype(np.float16).astype(F),
    "v_mov_b32_e32 v4, v1\nv_mov_b32_e32 v5, v2\nv_pk_add_f32 v[4:5], v[4:5], v[4:5] op_sel:[0,1] "
    "op_sel_hi:[1,0] neg_lo:[0,1]\nv_mov_b32_e32 v3, v4": lambda a, b: a - b,
}  # fmt: skip
WHOLE: dict[str, Callable[[Array, Array], Array]] = {
    "v_add_u32_e32 v3, v1, v2": lambda a, b: a + b,
    "v_mul_hi_u32 v3, v1, v2": lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(U),
    "v_ashrrev_i32_e32 v3, 5, v1": lambda a, b: (a.view(I) >> 5).view(U),
    "v_ashrrev_i16_e32 v3, 5, v1": lambda a, b: (
        (a.astype(np.uint16).view(np.int16) >> 5).view(np.uint16).astype(U)
    ),
    "v_bcnt_u32_b32 v3, v1, v2": lambda a, b: b + np.array([x.bit_count() for x in a.tolist()], U),
    "v_bfe_i32 v3, v1, 4, 9": lambda a, b: (a.view(I) << 19 >> 23).view(U),
    "v_bfrev_b32_e32 v3, v1": lambda a, b: np.array([int(f"{x:032b}"[::-1], 2) for x in a.tolist()], U),
    "v_lshrrev_b32_e32 v3, v2, v1\nv_ffbh_u32_e32 v3, v3": lambda a, b: np.array(
        [32 - (x >> (n & 31)).bit_length() if x >> (n & 31) else -1 for x, n in zip(a.tolist(), b.tolist())]
    ).astype(U),
    "v_mov_b32_e32 v3, 0\nv_ffbh_u32_e32 v3, v3": lambda a, b: np.full(64, 0xFFFFFFFF, U),
    "v_perm_b32 v3, v1, v2, 0x07060100": lambda a, b: a & U(0xFFFF0000) | b & U(0xFFFF),
    "v_lshl_add_u32 v3, v1, 3, v2": lambda a, b: (a << U(3)) + b,
    "v_mad_u64_u32 v[4:5], s[8:9], v1, v2, 0\nv_mov_b32_e32 v3, v5": lambda a, b: (
        a.astype(np.uint64) * b >> np.uint64(32)
    ).astype(U),
    "v_and_b32_sdwa v3, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_2": (
        lambda a, b: a >> U(16) & (b >> U(16) & U(255))
    ),
    "v_or_b32_sdwa v3, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD": (
        lambda a, b: (a | b) << U(16)
    ),
    "v_mov_b32_e32 v3, v2\nv_mov_b32_sdwa v3, v1 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1": (
        lambda a, b: b & U(0xFFFF00FF) | a >> U(8) & U(0xFF00)
    ),
    "v_cmp_gt_i32_e32 vcc, v1, v2\nv_cndmask_b32_e32 v3, v1, v2, vcc": lambda a, b: np.where(
        a.view(I) > b.view(I), b, a
    ),
    "v_mbcnt_lo_u32_b32 v3, -1, 0\nv_mbcnt_hi_u32_b32 v3, -1, v3": lambda a, b: LANE.astype(U),
    "v_readfirstlane_b32 s8, v1\nv_mov_b32_e32 v3, s8": lambda a, b: np.full(64, a[0]),
}  # fmt: skip
ROW = LANE - LANE % 16
# Where a lane has no source it keeps -1, or with bound_ctrl the operation has a zero.
MOVES: dict[str, Callable[[Array], Array]] = {
    "quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": lambda a: a[LANE ^ 1],
    "row_shr:3 row_mask:0xf bank_mask:0xf": lambda a: np.where(LANE % 16 >= 3, a[LANE - 3], U(0xFFFFFFFF)),
    "row_shl:5 row_mask:0xf bank_mask:0xf bound_ctrl:1": lambda a: np.where(
        LANE % 16 < 11, a[np.minimum(LANE + 5, 63)], U(0)
    ),
    "row_ror:4 row_mask:0xf bank_mask:0xf": lambda a: a[ROW + (LANE - 4) % 16],
    "row_bcast:15 row_mask:0xa bank_mask:0xf": lambda a: np.where(LANE // 16 % 2, a[ROW - 1], U(0xFFFFFFFF)),
    "row_bcast:31 row_mask:0xc bank_mask:0xf": lambda a: np.where(LANE >= 32, a[31], U(0xFFFFFFFF)),
    "row_half_mirror row_mask:0xf bank_mask:0xf": lambda a: a[LANE ^ 7],
    "row_mirror row_mask:0x3 bank_mask:0xf": lambda a: np.where(LANE < 32, a[LANE ^ 15], U(0xFFFFFFFF)),
}


@pytest.mark.parametrize("body", FLOATS)
def test_floats_round_once(body: str) -> None:
    a, b = floats()
    with np.errstate(all="ignore"):
        want = FLOATS[body](a, b)
    assert_same_bits(result(body, a, b).view(F), want.astype(F))


@pytest.mark.parametrize("body", WHOLE)
def test_whole_numbers_wrap(body: str) -> None:
    a, b = patterns()
    with np.errstate(all="ignore"):
        assert_same_bits(result(body, a, b), WHOLE[body](a, b).astype(U))


@pytest.mark.parametrize("pattern", MOVES)
def test_dpp_takes_its_first_source_from_other_lanes(pattern: str) -> None:
    a, b = patterns()
    assert_same_bits(result(f"v_mov_b32_dpp v3, v1 {pattern}", a, b), MOVES[pattern](a))


def test_dpp_reads_before_it_writes() -> None:
    """A sum with the lane to the left in place: each lane sees what the other held before."""
    a, b = patterns()
    got = result(
        "v_add_u32_dpp v1, v1, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1\nv_mov_b32_e32 v3, v1",
        a,
        b,
    )
    with np.errstate(all="ignore"):
        assert_same_bits(got, np.where(LANE % 16 > 0, a + a[LANE - 1], a))


def test_lanes_that_are_not_active_keep_what_they_hold() -> None:
    a, b = patterns()
    got = result("s_mov_b64 exec, 0xff00\nv_add_u32_e32 v3, v1, v2\ns_mov_b64 exec, -1", a, b)
    active = (LANE >= 8) & (LANE < 16)
    with np.errstate(all="ignore"):
        assert_same_bits(got, np.where(active, a + b, U(0xFFFFFFFF)))


# What LLVM writes for an f32 division: an approximate reciprocal, refined, and scaled where it must be.
DIVISION = """
    v_div_scale_f32 v4, s[8:9], v2, v2, v1
    v_div_scale_f32 v5, vcc, v1, v2, v1
    v_rcp_f32_e32 v6, v4
    v_fma_f32 v7, -v4, v6, 1.0
    v_fmac_f32_e32 v6, v7, v6
    v_mul_f32_e32 v7, v5, v6
    v_fma_f32 v8, -v4, v7, v5
    v_fmac_f32_e32 v7, v8, v6
    v_fma_f32 v4, -v4, v7, v5
    v_div_fmas_f32 v4, v4, v6, v7
    v_div_fixup_f32 v3, v4, v2, v1
"""


@pytest.mark.parametrize("perturb", [None, 1, 2, 3])
def test_a_division_is_correctly_rounded_whatever_its_reciprocal_is(perturb: int | None) -> None:
    a, b = floats()
    with np.errstate(all="ignore"):
        assert_same_bits(result(DIVISION, a, b, perturb).view(F), a / b)


def test_a_reciprocal_alone_depends_on_the_hardware() -> None:
    """The control: what the division does not depend on does move."""
    a, b = floats()
    made = [result("v_rcp_f32_e32 v3, v2", a, b, perturb) for perturb in (None, 1)]
    assert not np.array_equal(*made)


def test_lds_reads_two_places_and_narrow_ones() -> None:
    body = f"""
        {POINTER}
        v_lshlrev_b32_e32 v1, 2, v0
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        s_lshr_b64 exec, exec, 1
        ds_read2_b32 v[2:3], v1 offset1:1
        ds_read_u8 v4, v1 offset:4
        s_waitcnt lgkmcnt(0)
        v_lshl_add_u32 v2, v3, 8, v2
        v_lshl_add_u32 v2, v4, 16, v2
        global_store_dword v1, v2, s[4:5]
    """
    out = np.zeros(63, I)
    emulated(body, out, shared=256)
    lane = np.arange(63)
    assert_same_bits(out, (lane + (lane + 1) * 256 + (lane + 1) * 65536).astype(I))


@pytest.mark.parametrize(("line", "want"), [
    ("global_atomic_smax v9, v2, s[4:5]", 63),
    ("global_atomic_add v9, v2, s[4:5]", 7 + sum(range(64))),
    ("global_atomic_cmpswap v9, v[2:3], s[4:5]", 5),
    ("global_atomic_cmpswap v2, v9, v[2:3], s[4:5] sc0", 5),
])  # fmt: skip
def test_atomics_take_every_lane_once(line: str, want: int) -> None:
    """The swap finds 7 and writes lane 5's number: the other lanes expect what is never there."""
    body = f"""
        {POINTER}
        v_mov_b32_e32 v9, 0
        v_mov_b32_e32 v2, v0
        v_cmp_eq_u32_e32 vcc, 5, v0
        v_mov_b32_e32 v4, 7
        v_cndmask_b32_e32 v3, -1, v4, vcc
        s_waitcnt lgkmcnt(0)
        {line}
    """
    out = np.array([7], I)
    emulated(body, out)
    assert out[0] == want


@pytest.mark.parametrize("number", [0, 8, 31])
def test_single_bits_are_tested_and_written(number: int) -> None:
    word = 0x80000100
    body = f"""
    s_mov_b32 s12, {word:#x}
    s_bitcmp1_b32 s12, {number}
    s_cselect_b32 s13, 1, 0
    s_bitcmp0_b32 s12, {number}
    s_cselect_b32 s14, 2, 0
    s_or_b32 s13, s13, s14
    s_bitset0_b32 s12, {number}
    s_lshl_b32 s14, s12, 2
    s_or_b32 s13, s13, s14
    s_bitset1_b32 s12, 1
    s_xor_b32 s13, s13, s12
    v_mov_b32_e32 v3, s13
    """
    bit = word >> number & 1
    left = word & ~(1 << number)
    want = ((1 if bit else 2) | left << 2 & 0xFFFFFFFF) ^ (left | 2)
    assert (result(body, *patterns()) == U(want)).all()


def test_clamp_cuts_to_the_unit_and_does_not_guess_of_negative_zero() -> None:
    a, b = floats()
    got = result("v_max_f32_e64 v3, v1, v1 clamp", a, b).view(F)
    unsure = (a == 0) & np.signbit(a)
    want = np.where(np.isnan(a), F(0), np.clip(a, F(0), F(1)))
    assert unsure.any() and np.isnan(got[unsure]).all()
    assert_same_bits(got[~unsure], want[~unsure])


@pytest.mark.parametrize("forward", [True, False])
def test_branches_by_address_reach_their_label(forward: bool) -> None:
    jump = """
    s_getpc_b64 s[8:9]
    .Lpost{n}:
    s_add_u32 s8, s8, (.L{to}-.Lpost{n})&4294967295
    s_addc_u32 s9, s9, (.L{to}-.Lpost{n})>>32
    s_setpc_b64 s[8:9]
    """
    there, skipped = "v_mov_b32_e32 v3, 7", "v_mov_b32_e32 v3, 8"
    if forward:
        body = [jump.format(n=1, to="end"), skipped, ".Lend:", "v_add_u32_e32 v3, 1, v3"]
    else:
        body = ["s_branch .Lfirst", ".Lback:", there, "s_branch .Lend", ".Lfirst:"]
        body += [jump.format(n=1, to="back"), skipped, ".Lend:"]
    a, b = patterns()
    assert set(result("\n".join(body), a, b)) == ({0} if forward else {7})
