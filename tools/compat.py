"""Which versions of compilers compile the catalogue: each laid over this environment, none put into it.

`make compat` writes docs/compatibility.md from what this run did. A corner is a folder of one compiler's wheels,
.compat/NAME, found before what is installed. Nothing needs a GPU: kernels are compiled, and the machine code
of Triton for gfx942 is executed by the emulator of rlk and compared with the oracle.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OVERLAYS, PAGE = ROOT / ".compat", ROOT / "docs" / "compatibility.md"
PACKAGES = {"triton": "triton", "cute": "nvidia-cutlass-dsl", "tilelang": "tilelang"}
TARGETS = {"triton": ("sm_90a", "gfx942"), "cute": ("sm_90a",), "tilelang": ("gfx942",)}
MACHINE = ("rms_norm", "linear_logp")
"""Whose machine code is executed: sums, contractions and a softmax fold."""
FAULT = re.compile(r"^    \w+: ([^\n|]{,110})", re.MULTILINE)
LONGEST = 1800  # seconds for one corner and target

HEAD = """# Versions

Written by `make compat` ({python}, torch {torch}, {cores} cores, no GPU). Each compiler was laid over one
environment and compiled the reference kernels of these operators, forward and backward: {operators}.

| compiler | target | kernels | refused | failed | bits of machine code | seconds |
|---|---|---|---|---|---|---|
"""
TAIL = """
*kernels*: compiled to a binary. *refused*: programs that this backend has no form for, whatever its version.
*bits of machine code*: what Triton made of {machine} for gfx942, executed by the emulator: elements that
differ from the oracle. A new compiler's numerics are thus looked at, not assumed; on other targets
`rlk doctor --probe-dot` and `tests/gpu` do that on the device.

Not run here: other interpreters and versions of torch than the one above, and what the table does not name.
`make test TORCH=2.11` and `make test-cute` test further pairs as a whole.
"""


@dataclass(frozen=True)
class Corner:
    """One version of one compiler. pins: what is laid over the environment, by package."""

    backend: str
    pins: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return f"{self.backend}-{dict(self.pins)[PACKAGES[self.backend]]}"


def pinned(backend: str, file: str, **others: str) -> Corner:
    """Return the corner of a constraints file, with other versions of some packages."""
    lines = (ROOT / "constraints" / file).read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    return Corner(backend, tuple((pins | {n.replace("_", "-"): v for n, v in others.items()}).items()))


CORNERS = (
    *(Corner("triton", (("triton", v),)) for v in ("3.5.1", "3.6.0", "3.7.1", "3.8.0", "3.9.0")),
    *(pinned("cute", f"cute-{v}.txt") for v in ("4.7", "4.8")),
    *(pinned("tilelang", "tilelang.txt", tilelang=v) for v in ("0.1.12", "0.1.15")),
)


def laid_over(corner: Corner) -> dict[str, str]:
    """Install a corner, once, and return the environment in which it is found first."""
    place = OVERLAYS / corner.name
    if not (place / ".complete").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        wheels = [f"{name}=={v}" for name, v in corner.pins]
        subprocess.run([*command, "--target", str(place), *wheels], check=True)
        (place / ".complete").touch()
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(place), str(ROOT)))}


def measured(corner: Corner, target: str, operators: list[str]) -> str:
    """Return a row of the table."""
    environment, start = laid_over(corner), time.monotonic()
    options = ["--operators", *operators, "--inside", corner.backend, target]
    try:
        done = subprocess.run(
            [sys.executable, __file__, *options],
            env=environment, capture_output=True, text=True, timeout=LONGEST,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"broken": done.stderr}
    except subprocess.TimeoutExpired:
        found = {"broken": f"not done in {LONGEST} s"}
    bits = "-"
    if corner.backend == "triton" and target == "gfx942" and "broken" not in found:
        check = [sys.executable, "-m", "rlk.cli", "check", *MACHINE, "--law", "machine", "--target", target]
        ran = subprocess.run(check, env=environment, capture_output=True, text=True)
        bits = "0 differ" if ran.returncode == 0 else "; ".join(sorted(set(FAULT.findall(ran.stdout)))[:1])
        bits = bits.strip() or "not run"
    took = f"{time.monotonic() - start:.0f}"
    if "broken" in found:
        reason = str(found["broken"]).strip().splitlines()[-1][:160]
        return f"| {corner.name} | {target} | - | - | {reason} | - | {took} |"
    wrong = "; ".join(f"{name}: {why}" for name, why in found["failed"].items()) or "0"
    cells = (found["version"], target, found["kernels"], len(found["refused"]), wrong, bits, took)
    return f"| {corner.backend} {' | '.join(map(str, cells))} |"


def inside(backend: str, target_name: str, operators: list[str]) -> dict[str, Any]:
    """Compile the reference kernels of operators with what is found first; return what became of them."""
    from rlk.errors import UnsupportedError
    from rlk.runtime import reference
    from rlk.runtime.catalogue import operators as shipped
    from rlk.runtime.pool import pool
    from rlk.target.facts import target

    on, kernels, refused, failed = target(target_name), 0, [], {}
    for name, op in shipped().items():
        if operators and name not in operators:
            continue
        variant = reference.reference_variant(op)
        programs = (reference.placed(op, op.trace(variant)), reference.reference_gradient(op, variant))
        for program in filter(None, programs):
            extents = reference.reference_extents(op, program)
            try:
                emitted, _, _ = reference.emit(program, extents, on, backend)
            except UnsupportedError:
                refused.append(program.name)
                continue
            with TemporaryDirectory(prefix="rlk-compat-") as folder:
                try:
                    pool().compile(emitted, target_name, Path(folder))
                    kernels += len(emitted.kernels)
                except Exception as error:  # whatever a compiler of another version raises is the finding
                    failed[program.name] = " ".join(str(error).split())[:120].replace("|", "/")
    return {
        "version": version(PACKAGES[backend]),
        "kernels": kernels,
        "refused": refused,
        "failed": failed,
    }


def main() -> int:
    """Measure each corner that is asked for; write the page where all were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", nargs="*", default=[], metavar="OP", help="default: all")
    parser.add_argument("--corners", nargs="*", metavar="NAME", choices=[c.name for c in CORNERS])
    parser.add_argument("--inside", nargs=2, metavar=("BACKEND", "TARGET"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(inside(*given.inside, given.operators)))
        return 0
    rows = []
    for corner in CORNERS:
        for target in TARGETS[corner.backend] if not given.corners or corner.name in given.corners else ():
            rows.append(measured(corner, target, given.operators))
            print(rows[-1], flush=True)
    if not given.corners:
        words = {"python": f"Python {platform.python_version()}", "torch": version("torch")}
        told = ", ".join(f"`{name}`" for name in given.operators) or "all"
        head = HEAD.format(**words, cores=os.cpu_count(), operators=told)
        PAGE.write_text(head + "\n".join(rows) + "\n" + TAIL.format(machine=" and ".join(MACHINE)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
