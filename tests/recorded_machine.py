"""The recorded assembly of a small kernel: `python tests/recorded_machine.py` writes it again."""

from __future__ import annotations

import re
from pathlib import Path

from rlk.ir.types import DType
from rlk.lang.op import Variant
from rlk.lower.common.emitted import Signature
from rlk.lower.triton import lower
from rlk.passes.pipeline import canonical, specialize
from rlk.schedule.schedule import Schedule
from rlk.specs.matmul import matmul
from rlk.target.facts import target

RECORDED = Path(__file__).parent / "recorded" / "matmul_gfx942.s"
COLUMNS, DEPTH = 18, 40
WAVES, SHARED = 4, 1024


def made() -> tuple[str, int]:
    """Return what the installed Triton makes of a product with 18 columns, and its bytes of LDS."""
    from rlk.testing.machine import compiled

    variant = Variant.of({"F": DType.BF16}, frozenset(), {"keep_f32": True})
    extents = {"N": COLUMNS, "K": DEPTH}
    on = target("gfx942")
    program = specialize(canonical(matmul.trace(variant)), extents, on.softmax)
    schedule = Schedule(tiles=(("N", 32), ("T", 32)), warps=WAVES, depth=16)
    (code,) = compiled(lower(program, [schedule], on, Signature(tuple(extents.items()))), on.name)
    return _without_debugging(code.assembly), code.record.shared


def _without_debugging(assembly: str) -> str:
    """Return the text without comments, line numbers and the sections that a debugger reads."""
    kept = []
    debugging = False
    for line in assembly.splitlines():
        if line.startswith("\t.section"):
            debugging = ".debug" in line
        bare = re.sub(r"\s*;.*", "", line).rstrip()
        metadata = bare.startswith(("\t.amdgpu_metadata", "\t.text"))
        debugging = debugging and not metadata
        if (
            bare
            and not debugging
            and not re.match(r"\t\.(loc|cfi|file|set|p2align)|\.L(tmp|func_begin)", bare)
        ):
            kept.append(bare)
    return "\n".join(kept) + "\n"


if __name__ == "__main__":
    found, shared = made()
    assert shared == SHARED, f"SHARED is {shared} now"
    RECORDED.write_text(found)
