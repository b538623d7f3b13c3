"""Registers, spills, and widths of loads of compiled kernels, where there is no device.

`python -m benchmarks.machine_code rms_norm --grad --extent N=16384 --extent T=4096` compiles what a call of
these sizes runs by Triton on sm_90a. Several values (`N=4096,16384`) give a line for each. A spill is a
register that the compiler keeps in memory: every load of it is a trip to L1 at best.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from rlk.backends.registry import of_name
from rlk.lang.op import Op, Variant
from rlk.lang.variants import cotangents, gradient_variant
from rlk.lower.common.emitted import Emitted
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import emit, reference_extents
from rlk.runtime.registry import operators
from rlk.schedule.heuristics import apart
from rlk.schedule.schedule import Schedule
from rlk.target.facts import HOPPER, target

GLOBAL = re.compile(r"\b(LDG|STG)\.E((?:\.[A-Z0-9_]+)*)")
COPIES = re.compile(r"\bLDGSTS\.E((?:\.[A-Z0-9_]+)*)")
BITS = re.compile(r"\.(?:[US]?)(8|16|64|128)\b")
LOCAL = re.compile(r"\b(LDL|STL)(?:\.[A-Z0-9_]+)*")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel's schedule, registers of a thread, stack in bytes, and counts of its instructions.

    spills: loads and stores of local memory. loads, stores: accesses of global memory by their bits;
    asynchronous copies to shared memory are loads.
    """

    name: str
    schedule: str
    warps: int
    registers: int
    stack: int
    shared: int
    instructions: int
    spills: int
    loads: Mapping[int, int]
    stores: Mapping[int, int]

    def __str__(self) -> str:
        loads, stores = (
            " ".join(f"{bits}b:{count}" for bits, count in sorted(found.items()))
            for found in (self.loads, self.stores)
        )
        return (
            f"{self.name:24s} {self.warps:3d} warps {self.registers:4d} registers {self.stack:6d} B stack "
            f"{self.spills:5d} spills {self.instructions:6d} instructions  loads {loads}; stores {stores}"
        )


def emitted(op: Op, *, grad: bool, extents: Mapping[str, int]) -> tuple[Emitted, tuple[Schedule, ...]]:
    """Return the source of an operator without options, or its gradient, at given extents."""
    variant: Variant = op.default_variant()
    traced = op.trace_for_kernels(variant)
    if grad:
        assert op.gradient is not None
        wanted = tuple(n for n in op.gradient.wrt if n in variant.present or not _optional(op, n))
        traced = op.gradient.trace(gradient_variant(variant, wanted, cotangents(op, variant)))
    plain = canonical(traced)
    sizes = {**reference_extents(op, plain), **extents}
    placed = canonical(traced, apart=apart(plain, sizes))
    found, chosen, _ = emit(placed, sizes, target(HOPPER), "triton")
    return found, chosen


def _optional(op: Op, name: str) -> bool:
    return next(f.optional for f in op.formals if f.name == name)


def codes(source: Emitted, schedules: Sequence[Schedule], folder: Path) -> Iterator[Code]:
    """Compile the kernels of a source into a folder, and yield what their machine code is made of."""
    compile = of_name("triton").compile
    assert compile is not None
    compile(source, HOPPER, folder)
    for kernel, schedule in zip(source.kernels, schedules, strict=True):
        cubin = folder / f"{kernel.name}.cubin"
        usage = _shown("--dump-resource-usage", cubin)
        found = {n: int(v) for n, v in re.findall(r"\b(REG|STACK|SHARED):(\d+)", usage)}
        yield counted(kernel.name, str(schedule), kernel.num_warps, found, _shown("--dump-sass", cubin))


def counted(name: str, schedule: str, warps: int, usage: Mapping[str, int], text: str) -> Code:
    """Return the counts of a disassembled kernel."""
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for kind, how in GLOBAL.findall(text):
        (loads if kind == "LDG" else stores)[_bits(how)] += 1
    for how in COPIES.findall(text):
        loads[_bits(how)] += 1
    return Code(
        name, schedule, warps, usage.get("REG", 0), usage.get("STACK", 0), usage.get("SHARED", 0),
        len(INSTRUCTION.findall(text)), len(LOCAL.findall(text)), dict(loads), dict(stores),
    )  # fmt: skip


def _bits(how: str) -> int:
    found = BITS.findall(how)
    return int(found[-1]) if found else 32


def _shown(option: str, file: Path) -> str:
    import triton

    tool = next(Path(triton.__file__).parent.rglob("cuobjdump"))
    done = subprocess.run([str(tool), option, str(file)], capture_output=True, text=True, check=True)
    return done.stdout


def sizes(given: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield the extents that options such as N=4096,8192 name, in every combination."""
    named = [each.partition("=") for each in given]
    for values in product(*(text.split(",") for _, _, text in named)):
        yield {name: int(value) for (name, _, _), value in zip(named, values, strict=True)}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the kernels of each shape."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("op", help="an operator of rlk list")
    parser.add_argument("--grad", action="store_true", help="of the gradient, not of the operator")
    parser.add_argument("--extent", action="append", default=[], metavar="N=4096,8192")
    options = parser.parse_args(argv)
    for extents in sizes(options.extent):
        found, schedules = emitted(operators()[options.op], grad=options.grad, extents=extents)
        with TemporaryDirectory() as folder:
            for code in codes(found, schedules, Path(folder)):
                words = " ".join(f"{name}={n}" for name, n in extents.items())
                print(f"{words:24s} {code}", flush=True)


if __name__ == "__main__":
    main()
