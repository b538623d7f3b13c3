"""Wrong kernels of TileLang: HIP source with a barrier less, a next index, another level of a tree.

`python tests/tilelang_mutants.py [MOST]` tries at most so many of a kind and subject on a CPU, in the orders
of waves of the ladder, and prints the shares that are caught. Each runs in a child: a wrong index may end it.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import ladder
import numpy as np
from attention_cases import batch, of, packed
from test_tilelang_dots import drawn, heads, product, program
from test_tilelang_ladder import ACROSS

from rlk.backends import hip
from rlk.interp.run import run
from rlk.ir.dotmodel import native
from rlk.ir.nodes import Program, Role
from rlk.lang import f32
from rlk.schedule.schedule import Schedule
from rlk.testing.bits import differing
from rlk.testing.generated import Ran, run_generated
from rlk.testing.simulators.cdna import host

ORDERS = range(4)  # of waves: in order, wave by wave, in two random orders
SECONDS = 60  # after which a run counts as one that does not end
KERNEL = 'extern "C" __global__'


@dataclass(frozen=True, slots=True)
class Subject:
    """A program, its inputs, and what it runs under."""

    program: Program
    inputs: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line of the HIP source of a kernel."""

    kind: str
    subject: str
    kernel: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}, {self.kernel} line {self.line}: {self.text.strip()}"


@cache
def subject(name: str) -> Subject:
    """Return a subject by its name in SUBJECTS."""
    match name:
        case "product":
            return Subject(program(product, f32), drawn(37, 70, 45, f32), {})
        case "heads":
            return Subject(program(heads, f32), drawn(37, 600, 45, f32), {})
        case "attention":  # two waves of rows, of which some end later
            given = {n: np.array(x) for n, x in packed(batch((40, 2), (80, 2), group=1)).items()}
            tiles = (Schedule(tiles=(("Q*G", 32), ("W", 16))),)
            return Subject(of(given), given, {"schedules": tiles, "extents": {"Q": 42}})
        case "rms_norm across waves":
            made = ladder.call("rms_norm forward")
            return Subject(made.placed, made.inputs, {"schedules": ACROSS, "extents": made.extents})
        case _:
            made = ladder.call(name)
            return Subject(made.placed, made.inputs, {"extents": made.extents})


SUBJECTS = (
    "rms_norm across waves", "logp forward", "policy_loss forward", "swiglu gradient", "gae forward",
    "product", "heads", "attention",
)  # fmt: skip


# --- changes of a line -----------------------------------------------------------------------------------


def _deleted(line: str) -> Iterator[str]:
    if line.strip() == "__syncthreads();":
        yield ";"


def _next_index(line: str) -> Iterator[str]:
    """Yield lines in which an access of memory, or of a list, is of the next element."""
    for found in re.finditer(r"\b(\w+)\[", line):
        end = _closing(line, found.end())
        declared = re.match(
            r"\s*(?:__shared__|float|int|int64_t|uint|signed char|half_t|bfloat16_t)\b.*;$", line
        )
        if end and not (declared and "=" not in line):
            yield f"{line[: found.end()]}({line[found.end() : end]}) + 1{line[end:]}"


def _closing(line: str, start: int) -> int:
    """Return where the bracket that is open at a place is closed; 0 if it is not."""
    depth = 1
    for at in range(start, len(line)):
        depth += {"[": 1, "]": -1}.get(line[at], 0)
        if depth == 0:
            return at
    return 0


def _other_level(line: str) -> Iterator[str]:
    """Yield lines that pair another bit of an index: of a lane, of a thread, of a place in a list."""
    for found in re.finditer(r"__shfl_xor\((.*?), (\d+), (\d+)\)", line):
        apart = int(found[2])
        other = apart * 2 if apart == 1 else apart // 2
        yield f"{line[: found.start(2)]}{other}{line[found.end(2) :]}"
    for found in re.finditer(r" \^ (\d+)\)", line):
        yield f"{line[: found.start(1)]}{int(found[1]) // 2}{line[found.end(1) :]}"


def _wider(line: str) -> Iterator[str]:
    """Yield lines whose comparison holds for one index more."""
    for found in re.finditer(r" < (?=[A-Za-z0-9])", line):
        if not line.strip().startswith("for ") and "__builtin_bit_cast" not in line:  # of indices alone
            yield f"{line[: found.start()]} <= {line[found.end() :]}"


CHANGES: dict[str, Callable[[str], Iterator[str]]] = {
    "barrier deleted": _deleted,
    "index shifted": _next_index,
    "tree level swapped": _other_level,
    "mask widened": _wider,
}


# --- memory that ends where a tensor does ----------------------------------------------------------------

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def bounded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of an array before a page that nothing may touch."""
    room = -(-x.nbytes // PAGE) * PAGE
    # PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
    first = libc.mmap(None, ctypes.c_size_t(room + PAGE), 3, 0x22, -1, ctypes.c_long(0))
    libc.mprotect(ctypes.c_void_p(first + room), ctypes.c_size_t(PAGE), 0)
    held = (ctypes.c_byte * x.nbytes).from_address(first + room - x.nbytes)
    made = np.frombuffer(held, x.dtype).reshape(x.shape)
    made[...] = x
    return made


def launched(source: str, groups: int, arguments: Mapping[str, Any], *, schedule: int = 0) -> None:
    """Run a kernel, as `host.launch` does, on tensors whose ends are guarded."""
    arrays = {name: bounded(x) for name, x in arguments.items() if isinstance(x, np.ndarray) and x.size}
    real_launch(source, groups, {**arguments, **arrays}, schedule=schedule)
    for name, x in arrays.items():
        arguments[name][...] = x


real_launch = host.launch


# --- runs ------------------------------------------------------------------------------------------------


@cache
def wanted(name: str) -> dict[str, Any]:
    """Return the oracle's results, workspaces too: a logarithm hides last bits of sums."""
    given = subject(name)
    extents = given.options.get("extents")
    options = {
        "softmax": ladder.MI300X.softmax,
        "dots": native(ladder.MI300X.name),
        **({} if extents is None else {"extents": extents}),
    }
    return dict(run(given.program, given.inputs, **options).tensors)


def executed(name: str, waves: int, mutant: Mutant | None = None) -> Ran:
    """Run a subject's kernels, one of them changed."""
    real = hip.hip_source

    def changed(source: str, kernel: str, on: str = "gfx942") -> str:
        made = real(source, kernel, on)
        return made if mutant is None or mutant.kernel != kernel else mutated(mutant, made)

    given = subject(name)
    with mock.patch.object(host, "hip_source", changed), mock.patch.object(host, "launch", launched):
        return run_generated(given.program, given.inputs, backend="tilelang", waves=waves, **given.options)


def wrong(name: str, waves: int, mutant: Mutant | None = None) -> int:
    """Count the elements that are not the oracle's, of workspaces too."""
    ran, want = executed(name, waves, mutant), wanted(name)
    written = [d for k in subject(name).program.kernels for d in k.params if d.role in (Role.OUT, Role.WORK)]
    kinds = {d.name: str(d.type.dtype) if d.type.dtype.is_float else None for d in written if d.name in want}
    return sum(differing(ran.tensors[n], np.asarray(want[n]), kind) for n, kind in kinds.items())


def mutated(mutant: Mutant, source: str) -> str:
    """Return a source with the mutant's line."""
    lines = source.splitlines()
    lines[mutant.line] = mutant.text
    return "\n".join(lines) + "\n"


def caught(mutant: Mutant) -> str | None:
    """Return what catches a mutant: other bits, or a run that fails; None where nothing does."""
    for waves in ORDERS:
        code = _in_child(lambda w=waves: 1 if wrong(mutant.subject, w, mutant) else 0)
        if code:
            return "bits" if code == 1 else "fault"
    return None


def _in_child(act: Callable[[], int]) -> int:
    """Return the exit status of a child that does something: 2 where it fails, or does not end."""
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            code = act()
        except BaseException:  # a fault of the ladder, as well as one of the compiler
            code = 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 2


def mutants(name: str) -> Iterator[Mutant]:
    """Yield every mutant of the bodies of a subject's kernels."""
    ran = executed(name, 0)
    for build in ran.emitted.kernels:
        lines = hip.hip_source(ran.emitted.source, build.name).splitlines()
        start = max(number for number, line in enumerate(lines) if KERNEL in line)
        for number in range(start + 1, len(lines)):
            for kind, change in CHANGES.items():
                for text in change(lines[number]):
                    yield Mutant(kind, name, build.name, number, text)


def sampled(name: str, most: int) -> list[Mutant]:
    """Return a subject's mutants, at most so many of each kind, drawn at random with a fixed seed."""
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in mutants(name):
        by_kind.setdefault(mutant.kind, []).append(mutant)
    draw = random.Random(0)
    return [m for found in by_kind.values() for m in draw.sample(found, min(most, len(found)))]


def main(most: int) -> None:
    """Try mutants of every subject and print what catches each, then the shares by kind."""
    by_kind: dict[str, Counter[str]] = {}
    for name in SUBJECTS:
        assert all(wrong(name, waves) == 0 for waves in ORDERS), name
        for mutant in sampled(name, most):
            what = caught(mutant) or "nothing"
            by_kind.setdefault(mutant.kind, Counter())[what] += 1
            print(f"{'NOT CAUGHT' if what == 'nothing' else what}: {mutant}", flush=True)
    for kind, found in by_kind.items():
        print(f"{kind}: {found.total() - found['nothing']} of {found.total()} caught: {dict(found)}")
    tried = sum(found.total() for found in by_kind.values())
    print(f"{tried - sum(found['nothing'] for found in by_kind.values())} of {tried} caught")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
