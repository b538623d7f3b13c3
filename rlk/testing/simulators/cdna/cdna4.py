"""Instructions of gfx950 that gfx942 lacks: bitop3, row swaps, transposed LDS reads.

As "AMD Instinct CDNA4 Instruction Set Architecture" (AMD, 2025) has them; section 11.4 on reads from LDS.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlk.testing.simulators.cdna import waits
from rlk.testing.simulators.cdna.access import Step, row, sources, word, written
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.lanes import ROW
from rlk.testing.simulators.cdna.text import Instruction
from rlk.testing.simulators.cdna.wave import LANE, Wave, Words

TARGET = "gfx950"

_UNDEFINED = np.uint32(0xFFFF0000)
"""The upper half of a result of 16 bits, of which nothing is taken for known."""
_FROM = ROW * (LANE // ROW)[:, None] + 4 * np.arange(4) + (LANE % ROW // 4)[:, None]
_PART = LANE[:, None] % 4


def decode(i: Instruction) -> Step | None:
    """Return what an instruction that only CDNA4 has does to a wave; None for any other one."""
    made = _KNOWN.get(i.name)
    return None if made is None or "op_sel" in i.modifiers else made(i)


def _truth_table(i: Instruction) -> Step:
    """v_bitop3: bit 4 a + 2 b + c of the table, for the bits a, b, c of three sources."""
    write, read, table = written(i), sources(i), i.number("bitop3")
    upper = _UNDEFINED if i.name.endswith("b16") else np.uint32(0)

    def step(w: Wave) -> None:
        a, b, c = (r(w) for r in read)
        found = np.uint32(0)
        for n in range(8):
            if table >> n & 1:
                found = found | (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c)
        write(w, found | upper)

    return step


def _exchange(lanes: int) -> Callable[[Instruction], Step]:
    """v_permlane16_swap, 32: the first register's odd rows of lanes change places with the second's even."""
    odd = LANE // lanes % 2 == 1

    def make(i: Instruction) -> Step:
        first, second = row(i.operands[0]), row(i.operands[1])

        def step(w: Wave) -> None:
            require_all(w, i)
            x, y = first(w), second(w)
            kept = x[odd]
            x[odd] = y[~odd]
            y[~odd] = kept

        return step

    return make


def _transposed(i: Instruction) -> Step:
    """ds_read_b64_tr_b16: 16 lanes read 4 rows of 16 elements, 4 a lane; each lane gets a column of them."""
    address, offset = word(i.operands[1]), i.number("offset")
    low, high = row(i.operands[0]), row(i.operands[0], 1)
    destination = waits.registers(i.operands[:1]) | waits.LDS_ACCESS

    def step(w: Wave) -> None:
        require_all(w, i)
        at = np.broadcast_to(address(w), LANE.shape).astype(np.int64) + offset
        if (at % 8).any():
            raise Fault(FaultKind.MISALIGNED, f"8 bytes of LDS at {int(at[at % 8 != 0][0])}")
        found: Words = w.group.shared.read(w, at, 8)
        elements = np.ascontiguousarray(found).view(np.uint16)[_FROM, _PART]
        words = np.ascontiguousarray(elements).view(np.uint32)
        low(w)[:], high(w)[:] = words[:, 0], words[:, 1]
        waits.issue(w, waits.LDS, destination)

    return step


def require_all(w: Wave, i: Instruction) -> None:
    """Refuse what is defined for 64 active lanes alone."""
    if not w.full:
        raise Fault(FaultKind.UNKNOWN, f"{i.name} with lanes that are not active")


_KNOWN: dict[str, Callable[[Instruction], Step]] = {
    "v_bitop3_b16": _truth_table,
    "v_bitop3_b32": _truth_table,
    "v_permlane16_swap_b32": _exchange(16),
    "v_permlane32_swap_b32": _exchange(32),
    "ds_read_b64_tr_b16": _transposed,
}
