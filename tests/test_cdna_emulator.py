"""The CDNA emulator runs hand-written kernels right, and refuses those that a device would not run right."""

from __future__ import annotations

import numpy as np
import pytest
from cdna_text import POINTER, assembly, emulated

from rlk.testing.bits import assert_same_bits
from rlk.testing.simulators.cdna import Fault, FaultKind, emulate

LANES = np.arange(64)

ADD_ONE = f"""
    {POINTER}
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    v_add_f32_e32 v2, 1.0, v2
    global_store_dword v1, v2, s[4:5]
"""

# Every wave writes its lanes' numbers to LDS and reads those of the other wave.
EXCHANGE = f"""
    {POINTER}
    v_lshlrev_b32_e32 v1, 2, v0
    v_xor_b32_e32 v3, 0x100, v1
    ds_write_b32 v1, v0
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v2, v3
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[4:5]
"""


def test_every_lane_adds_one() -> None:
    x = np.arange(64, dtype=np.float32)
    ran = emulated(ADD_ONE, x)
    assert_same_bits(x, np.arange(64, dtype=np.float32) + 1)
    assert ran.opcodes["v_add_f32"] == 1
    assert ran.instructions == 8


@pytest.mark.parametrize("schedule", range(6))
def test_waves_exchange_through_lds_in_every_schedule(schedule: int) -> None:
    x = np.zeros(128, np.int32)
    emulated(EXCHANGE, x, shared=512, waves=2, schedule=schedule)
    assert_same_bits(x, np.arange(128, dtype=np.int32) ^ 64)


def _without(text: str, line: str) -> str:
    assert line in text
    return text.replace(line, "s_nop 0", 1)


FAULTS = {
    "a missing barrier is noticed": (_without(EXCHANGE, "s_barrier"), 128, 512, FaultKind.UNINITIALISED),
    "a missing wait is a use before the load": (
        _without(ADD_ONE, "s_waitcnt vmcnt(0)"), 128, 0, FaultKind.UNFINISHED,
    ),
    "a barrier does not wait for a write": (
        EXCHANGE.replace("s_waitcnt lgkmcnt(0)\n    s_barrier", "s_barrier"), 128, 512, FaultKind.UNFINISHED,
    ),
    "an array one element short is noticed": (ADD_ONE, 127, 0, FaultKind.OUT_OF_BOUNDS),
    "LDS ends where the kernel says": (EXCHANGE, 128, 508, FaultKind.OUT_OF_BOUNDS),
    "a misaligned address is noticed": (
        ADD_ONE.replace("s[4:5]\n    s_waitcnt", "s[4:5] offset:2\n    s_waitcnt"),
        130, 0, FaultKind.MISALIGNED,
    ),
    "more LDS than a device has is refused": (ADD_ONE, 128, 65540, FaultKind.RESOURCES),
    "an instruction that is not known stops the run": ("v_no_such_thing v0, v1", 64, 0, FaultKind.UNKNOWN),
    "a loop without an end ends": (".Lagain:\ns_branch .Lagain", 64, 0, FaultKind.ENDLESS),
    "waves that part before a barrier are noticed": (
        "v_readfirstlane_b32 s6, v0\ns_cmp_eq_u32 s6, 0\ns_cbranch_scc1 .Lend\ns_barrier\n.Lend:",
        64, 0, FaultKind.BARRIER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_what_a_device_would_not_do_right_is_a_fault(what: str) -> None:
    body, elements, shared, kind = FAULTS[what]
    with pytest.raises(Fault) as caught:
        emulated(body, np.zeros(elements, np.float32), shared=shared, waves=2, limit=1000)
    assert caught.value.kind is kind, caught.value


def test_a_race_is_a_fault_where_bytes_change_and_none_where_they_do_not() -> None:
    same = f"{POINTER}\nv_mov_b32_e32 v1, 0\nv_mov_b32_e32 v2, 7\nds_write_b32 v1, v2\ns_waitcnt lgkmcnt(0)"
    emulated(same, np.zeros(1, np.int32), shared=4, waves=2)
    with pytest.raises(Fault) as caught:
        emulated(same.replace("v2, 7", "v2, v0"), np.zeros(1, np.int32), shared=4, waves=2)
    assert caught.value.kind is FaultKind.RACE


def test_a_fault_names_its_place() -> None:
    with pytest.raises(Fault) as caught:
        emulated(ADD_ONE, np.zeros(127, np.float32), waves=2)
    place = caught.value.place
    assert place is not None and place.wave == 1 and place.workgroup == (0, 0, 0)
    assert "global_load_dword v2, v1, s[4:5]" in str(caught.value)
    assert "argument 0" in str(caught.value)


def test_arguments_must_fit_the_metadata() -> None:
    text = assembly(ADD_ONE, (8, 4))
    for arguments in ([np.zeros(64)], [np.zeros(64), np.int64(1)], [np.zeros((64, 2))[:, 0], np.int32(1)]):
        with pytest.raises(Fault) as caught:
            emulate(text, "small", (1, 1, 1), (64, 1, 1), arguments)
        assert caught.value.kind is FaultKind.ARGUMENTS


def test_registers_that_nobody_set_differ_between_schedules() -> None:
    body = f"{POINTER}\nv_lshlrev_b32_e32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\nglobal_store_dword v1, v9, s[4:5]"
    made = []
    for schedule in range(2):
        made.append(np.zeros(64, np.int32))
        emulated(body, made[-1], schedule=schedule)
    assert not np.array_equal(*made)


APPROXIMATE = ADD_ONE.replace("v_add_f32_e32 v2, 1.0, v2", "{0}")


def test_only_hardware_approximations_move_under_perturbation() -> None:
    for line, moves in (("v_exp_f32_e32 v2, v2", True), ("v_mul_f32_e32 v2, v2, v2", False)):
        made = []
        for perturb in (None, 1):
            made.append(np.linspace(0.1, 0.9, 64, dtype=np.float32))
            emulated(APPROXIMATE.format(line), made[-1], perturb=perturb)
        distance = np.abs(made[0].view(np.int32) - made[1].view(np.int32))
        assert (distance.max() == 1) == moves
        assert distance.max() <= 1
