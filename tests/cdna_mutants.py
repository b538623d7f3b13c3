"""Wrong kernels: machine code with another barrier, offset or lane; source with another index, mask or tree.

`python tests/cdna_mutants.py [MOST]` tries all mutants, or at most so many of a kind and subject, and prints
the shares that are caught.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rlk.interp.run import Outcome, run
from rlk.ir.dotmodel import native
from rlk.ir.nodes import Role
from rlk.lower.common.emitted import Emitted
from rlk.runtime.registry import find
from rlk.target.facts import target
from rlk.testing.cases import cases
from rlk.testing.check import Call, calls, compared
from rlk.testing.examples import of_module
from rlk.testing.generated import run_generated
from rlk.testing.machine import Code, Emulated
from rlk.testing.simulators.cdna import Fault

TARGET = "gfx942"
SUBJECTS = (
    ("rms_norm", 0),
    ("logp", 0),
    ("matmul", 0),
    ("linear_logp_join", 0),
    ("swiglu", 1),
    ("policy_loss", 0),
)
"""Operators, and whether the forward call (0) or the gradient's (1) is mutated."""
ORDERS = range(4)

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line: of a kernel's assembly, or, without a kernel, of the module's source."""

    kind: str
    subject: tuple[str, int]
    kernel: str | None
    line: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.subject[0]}, {self.kernel or 'source'} line {self.line}: {self.text.strip()}"
        )


# --- changes of one line ---------------------------------------------------------------------------------


def _shifted(line: str) -> str | None:
    """An access of memory or LDS one element further."""
    match = re.match(r"\t(?:ds_(?:read|write)_|global_(?:load|store)_)(\w+?)\s", line)
    if match is None:
        return None
    size = {
        "b32": 4,
        "b64": 8,
        "b128": 16,
        "ushort": 2,
        "short": 2,
        "dword": 4,
        "dwordx2": 8,
        "dwordx4": 16,
    }.get(match[1])
    if size is None:
        return None
    if found := re.search(r"offset:(\d+)", line):
        return line.replace(found[0], f"offset:{int(found[1]) + size}")
    return f"{line.split(';')[0].rstrip()} offset:{size}"


def _moved(line: str) -> str | None:
    """Lanes from elsewhere: another level of a tree over lanes."""
    if "row_shr:" in line or "row_shl:" in line:
        return re.sub(r"(row_sh[rl]):(\d+)", lambda m: f"{m[1]}:{int(m[2]) ^ 3 or 3}", line)
    if "quad_perm:" in line:
        return re.sub(r"quad_perm:\[[^]]*\]", "quad_perm:[0,1,2,3]", line)
    if "swizzle(SWAP" in line:
        return re.sub(r"SWAP,(\d+)", lambda m: f"SWAP,{int(m[1]) // 2}", line)
    return None


ASSEMBLY: dict[str, Callable[[str], str | None]] = {
    "barrier deleted": lambda line: "\ts_nop 0" if line.strip().startswith("s_barrier") else None,
    "address shifted": _shifted,
    "lanes moved": _moved,
}


def _swapped_level(line: str) -> str | None:
    """A tree that pairs another bit of the index first."""
    match = re.search(r"tl\.sum\(tl\.reshape\(x, \((.*), 2, (\d+)\)\), (\d+)\)", line)
    if match is None or match[1].count(",") + 1 != int(match[3]):
        return None
    return line.replace(match[0], f"tl.sum(tl.reshape(x, ({match[1]}, {match[2]}, 2)), {int(match[3]) + 1})")


def _next_index(line: str) -> str | None:
    match = re.match(r"    (\w+) = (.*tl\.arange\(0, \d+\).*)$", line)
    return f"    {match[1]} = 1 + {match[2]}" if match else None


def _wider_mask(line: str) -> str | None:
    return (
        re.sub(r"(\w+_inside = \w+) < ", r"\1 <= ", line) if "_inside = " in line and " < " in line else None
    )


SOURCE: dict[str, Callable[[str], str | None]] = {
    "tree level swapped": _swapped_level,
    "index shifted": _next_index,
    "mask widened": _wider_mask,
}


# --- subjects --------------------------------------------------------------------------------------------


@cache
def call_of(subject: tuple[str, int]) -> tuple[Call, Outcome]:
    """Return the plain call of a subject, and the oracle's results, workspaces too."""
    op, module = find(subject[0])
    call = calls(cases(op, of_module(module, op))[0])[subject[1]]
    on = target(TARGET)
    return call, run(call.placed, call.inputs, softmax=on.softmax, dots=native(TARGET), extents=call.extents)


def differing(subject: tuple[str, int], device: Any) -> int:
    """Run a subject's kernels on a device; count the elements, and error words, that are not the oracle's.

    Sums in workspaces show a last bit that a logarithm of them would hide.
    """
    call, want = call_of(subject)
    got = run_generated(call.placed, call.inputs, on=target(TARGET), device=device)
    written = [d for k in call.placed.kernels for d in k.params if d.role in (Role.OUT, Role.WORK)]
    wrong = sum(compared(written, got.tensors, want.tensors).values())
    code, row = got.errors  # the word counts rows from 1, so that 0 is none
    rows = {1 + r for r in want.rows.values()} or {0}
    return wrong + (bool(code) != bool(want.errors)) + (row not in rows)


def mutants(subject: tuple[str, int]) -> Iterator[Mutant]:
    """Yield every mutant of a subject's source, and of the lines of its machine code that a call executes."""
    seen: dict[str, Code] = {}
    sources: list[str] = []

    def look(code: Code) -> Code:
        return seen.setdefault(code.record.name, code)

    base = Emulated(TARGET, edit=look)

    @contextmanager
    def device(emitted: Emitted) -> Iterator[Any]:
        sources.append(emitted.source)
        with base(emitted) as loaded:
            yield loaded

    assert differing(subject, device) == 0
    for name, code in seen.items():
        executed = {line - 1 for ran in base.executions if ran.kernel == name for line in ran.lines}
        found = _of_lines(code.assembly, ASSEMBLY, subject, name)
        yield from (mutant for mutant in found if mutant.line in executed)
    yield from _of_lines(sources[0], SOURCE, subject, None)


def _of_lines(
    text: str, changes: dict[str, Callable[[str], str | None]], subject: tuple[str, int], kernel: str | None
) -> Iterator[Mutant]:
    for number, line in enumerate(text.splitlines()):
        for kind, change in changes.items():
            changed = change(line)
            if changed is not None and changed != line:
                yield Mutant(kind, subject, kernel, number, changed)


def mutated(mutant: Mutant, text: str) -> str:
    """Return a text with the mutant's line."""
    lines = text.splitlines()
    lines[mutant.line] = mutant.text
    return "\n".join(lines) + "\n"


@contextmanager
def _loaded(mutant: Mutant, order: int, emitted: Emitted) -> Iterator[Any]:
    def edit(code: Code) -> Code:
        mine = code.record.name == mutant.kernel
        return replace(code, assembly=mutated(mutant, code.assembly)) if mine else code

    changed = emitted if mutant.kernel else replace(emitted, source=mutated(mutant, emitted.source))
    with Emulated(TARGET, order, edit=edit)(changed) as loaded:
        yield loaded


def caught(mutant: Mutant) -> str | None:
    """Return what catches a mutant: the kind of a fault, or other bits; None where nothing does."""
    for order in ORDERS:
        try:
            if differing(mutant.subject, lambda emitted, o=order: _loaded(mutant, o, emitted)):
                return "bits"
        except Fault as fault:
            return fault.kind.name.lower()
    return None


def sampled(subject: tuple[str, int], most: int) -> list[Mutant]:
    """Return a subject's mutants, at most so many of each kind, drawn at random with a fixed seed."""
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in mutants(subject):
        by_kind.setdefault(mutant.kind, []).append(mutant)
    draw = random.Random(0)
    return [m for found in by_kind.values() for m in draw.sample(found, min(most, len(found)))]


def main(most: int) -> None:
    """Try mutants of every subject and print what catches each, then the shares by kind."""
    by_kind: dict[str, Counter[str]] = {}
    for subject in SUBJECTS:
        for mutant in sampled(subject, most):
            what = caught(mutant)
            by_kind.setdefault(mutant.kind, Counter())[what or "nothing"] += 1
            print(f"{what or 'NOT CAUGHT'}: {mutant}", flush=True)
    tried = sum(found.total() for found in by_kind.values())
    missed = sum(found["nothing"] for found in by_kind.values())
    for kind, found in by_kind.items():
        share = f"{found.total() - found['nothing']} of {found.total()}"
        print(f"{kind}: {share} caught: {dict(found.most_common())}")
    print(f"{tried - missed} of {tried} caught")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else sys.maxsize)
