"""Compiler versions that compile the catalogue: each laid over this environment, none put into it.

`make compat` writes docs/compatibility.md from what was run, now or before (.compat/rows.json). A corner is
an environment of one compiler, .compat/NAME, that borrows the rest of this one. No GPU is needed: kernels are
compiled; Triton's machine code for gfx942 is executed by the emulator and compared with the oracle, and its
source is interpreted. `make test-versions` tests the ends of the ranges of Triton and
transformers and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import venv
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OVERLAYS, PAGE = ROOT / ".compat", ROOT / "docs" / "compatibility.md"
PACKAGES = {"triton": "triton", "cute": "nvidia-cutlass-dsl", "tilelang": "tilelang"}
INTERPRETER = "interpreter"
TARGETS = {"triton": ("sm_90a", "gfx942", INTERPRETER), "cute": ("sm_90a",), "tilelang": ("gfx942",)}
MACHINE = ("rms_norm", "linear_logp")
"""Whose machine code is executed: sums, contractions and a softmax fold."""
ENDS = ("triton-3.5.0", "triton-3.9.0")
"""The oldest and the newest Triton that pyproject.toml allows."""
PEER_ENDS = ("transformers-5.17.0", "transformers-5.23.0")
"""The oldest and the newest transformers that rlk.integrations knows, with peft and accelerate."""
TESTED = ("tests/test_triton_interpreter.py", "tests/test_toolchain.py")
RUN = (
    ("-m", "rlk.cli", "doctor", "--device", "cpu"),
    ("-m", "rlk.cli", "check", "rms_norm", "logp", "policy_loss", "--law", "source", "--law", "rows"),
    ("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTED),
)
"""What each end of Triton must pass: Python's arguments."""
RUN_PEER = (
    ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_patch.py", "tests/test_transformers.py"),
)
"""What each end of transformers must pass."""
WITH_PEERS = ("-k", "adapters_of_peft or trainer_trains")
"""Tests that need peft or accelerate, which `make test` lacks: all others run there with its transformers."""
LONGEST = 1800  # seconds for one corner and target
FAULT = re.compile(r"^    \w+: ([^\n|]{,110})", re.MULTILINE)

HEAD = """# Versions

Written by `make compat` ({python}, torch {torch}, {cores} cores, no GPU). Each compiler was laid over one
environment and compiled the reference kernels of {operators}, forward and backward.

| compiler | target | kernels | refused | failed | bits |
|---|---|---|---|---|---|
"""
TAIL = """
*kernels*: compiled to a binary. *refused*: programs that this backend has no form for, whatever its version.
*bits*: what Triton made of {machine} for gfx942, executed by the emulator: elements that
differ from the oracle, or what stopped it. So numerics of a new compiler are looked at, not assumed; on other
targets `rlk doctor --probe-dot` and `tests/gpu` do that on the device. *interpreter*: how many variants of
{machine} were interpreted from their generated source on a CPU, their bits, and `rlk doctor`.

`make test-versions` runs `rlk doctor`, `rlk check` and the tests of the interpreter and of compiling with the
oldest and the newest Triton that `pyproject.toml` allows. torch stays the one above: others bring CUDA. It
also runs the tests of `rlk.patch` and of `attn_implementation="rlk"` with the oldest and the newest
transformers that they know, 5.17.0 and 5.23.0, beside peft 0.21.2 and accelerate 1.15.0: of the one that
`make test` has, those that need peft or accelerate alone.

With torch's own CUDA builds at both ends, torch 2.9.0 with triton 3.5.0 and torch 2.15.0 with triton 3.9.0
(transformers 5.23.0, no GPU), these were run by hand on 2026-11-24 and passed: `rlk doctor`, `rlk demo`,
`rlk check rms_norm logp policy_loss`, and the tests test_triton_interpreter, test_toolchain, test_ops_logp
and test_ops_linear.

Not run: {missing}other interpreters and versions of torch than those, and what no row names.
`make test TORCH=2.11` and `make test-cute` test further pairs as a whole.
"""
Pins = dict[str, str]
CUDA = {"cuda-bindings": "13.5.0", "cuda-pathfinder": "1.9.0"}  # which torch brings where it has CUDA


def pinned(file: str) -> Pins:
    """Return the pins of a constraints file."""
    lines = (ROOT / "constraints" / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


CORNERS: dict[str, Pins] = {
    "triton-3.5.0": pinned("triton-3.5.txt"),
    **{f"triton-{v}": {"triton": v} for v in ("3.5.1", "3.6.0", "3.7.1", "3.8.0")},
    "triton-3.9.0": pinned("triton-3.9.txt"),
    **{f"cute-{v}": pinned(f"cute-{v[:3]}.txt") | CUDA for v in ("4.7.0", "4.8.1")},
    "tilelang-0.1.12": pinned("tilelang.txt") | {"tilelang": "0.1.12", "apache-tvm-ffi": "0.1.11"},
    "tilelang-0.1.15": pinned("tilelang.txt"),
}
PEERS = {name: pinned(f"{name.rpartition('.')[0]}.txt") for name in PEER_ENDS}


def laid_over(name: str) -> Path:
    """Install a corner, once, into an environment that borrows the rest of this one; return its Python."""
    python = OVERLAYS / name / "bin" / "python"
    if not (OVERLAYS / name / ".complete").exists():
        venv.EnvBuilder(with_pip=False, symlinks=True).create(OVERLAYS / name)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
        pins = (CORNERS | PEERS)[name].items()
        subprocess.run([*command, *(f"{p}=={v}" for p, v in pins)], check=True)
        (site,) = (OVERLAYS / name).glob("lib/python*/site-packages")
        (site / "zz_borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        (OVERLAYS / name / ".complete").touch()
    return python


def measured(name: str, target: str, operators: list[str]) -> str:
    """Return a row of the table."""
    if target == INTERPRETER:
        return interpreted(name)
    backend = name.partition("-")[0]
    try:
        done = ran(name, __file__, "--operators", *operators, "--inside", backend, target)
    except subprocess.TimeoutExpired:
        return f"| {name} | {target} | | | not done in {LONGEST} s | |"
    if done.returncode:
        return f"| {name} | {target} | | | {done.stderr.strip().splitlines()[-1][:160]} | |"
    found, bits = json.loads(done.stdout.splitlines()[-1]), ""
    if (backend, target) == ("triton", "gfx942"):
        check = ran(name, "-m", "rlk.cli", "check", *MACHINE, "--law", "machine", "--target", target)
        bits = "0 differ" if check.returncode == 0 else ([*FAULT.findall(check.stdout), "not run"])[0]
    wrong = "; ".join([str(len(found["failed"])), *[*found["failed"].values()][:1]])
    cells = (f"{backend} {found['version']}", target, found["kernels"], found["refused"], wrong, bits)
    return f"| {' | '.join(map(str, cells))} |"


def ran(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the Python of a corner."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(laid_over(name)), *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)


def interpreted(name: str) -> str:
    """Return the row of a Triton's interpreter."""
    said = ran(name, "-m", "rlk.cli", "check", *MACHINE, "--law", "source").stdout
    judged = re.search(r"^(\d+) checks .*: (?:all ok|(\d+) FAILED)", said, re.MULTILINE)
    count, failed = (int(judged[1]), int(judged[2] or 0)) if judged else (0, "not run")
    bits = "0 differ" if failed == 0 else ([*FAULT.findall(said), "not run"])[0]
    if ran(name, "-m", "rlk.cli", "doctor", "--device", "cpu").returncode:
        bits += "; `rlk doctor` finds problems"
    return f"| {name.replace('-', ' ')} | {INTERPRETER} | {count} | 0 | {failed} | {bits} |"


def end(name: str) -> int:
    """Run what one end must pass; return the number of failures."""
    failures = 0
    for arguments in RUN_PEER if name in PEER_ENDS else RUN:
        arguments += WITH_PEERS if name == f"transformers-{version('transformers')}" else ()
        done = ran(name, *arguments)
        failures += done.returncode != 0
        said = "ok" if done.returncode == 0 else f"FAILED\n{done.stdout}{done.stderr}"
        print(f"{name}: {' '.join(arguments)}: {said}", flush=True)
    return failures


def inside(backend: str, target_name: str, operators: list[str]) -> dict[str, Any]:
    """Compile the reference kernels of operators with what is found first; return what became of them."""
    from rlk.errors import UnsupportedError
    from rlk.runtime import reference
    from rlk.runtime.kernels.pool import pool
    from rlk.runtime.registry import operators as shipped
    from rlk.target.facts import target

    kernels, refused, failed = 0, 0, {}
    for name, op in shipped().items():
        variant = reference.reference_variant(op)
        programs = (reference.placed(op, op.trace(variant)), reference.reference_gradient(op, variant))
        for program in filter(None, programs if name in operators or not operators else ()):
            extents = reference.reference_extents(op, program)
            with TemporaryDirectory(prefix="rlk-compat-") as folder:
                try:
                    emitted, _, _ = reference.emit(program, extents, target(target_name), backend)
                    pool().compile(emitted, target_name, Path(folder))
                    kernels += len(emitted.kernels)
                except UnsupportedError:
                    refused += 1
                except Exception as error:  # whatever a compiler of another version raises is the finding
                    reason = str(error).partition(".py: ")[2].partition("generated source")[0] or str(error)
                    failed[program.name] = " ".join(reason.split())[:120].replace("|", "/")
    return {
        "version": version(PACKAGES[backend]),
        "kernels": kernels,
        "refused": refused,
        "failed": failed,
    }


def main() -> int:
    """Measure the corners that are asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", nargs="*", default=[], metavar="OP", help="default: all")
    parser.add_argument("--corners", nargs="*", default=[*CORNERS], metavar="NAME", choices=CORNERS)
    parser.add_argument("--inside", nargs=2, metavar=("BACKEND", "TARGET"), help=argparse.SUPPRESS)
    parser.add_argument("--targets", nargs="*", metavar="NAME", help="only these, such as interpreter")
    parser.add_argument(
        "--ends", action="store_true", help="test the oldest and newest Triton and transformers"
    )
    parser.add_argument("--install", action="store_true", help="install what --ends tests")
    given = parser.parse_args()
    if given.install:
        for name in (*ENDS, *PEER_ENDS):
            laid_over(name)
        return 0
    if given.ends:
        with ThreadPoolExecutor(2) as lanes:
            return int(any([*lanes.map(end, (*ENDS, *PEER_ENDS))]))
    if given.inside:
        print(json.dumps(inside(*given.inside, given.operators)))
        return 0
    told = ", ".join(f"`{name}`" for name in given.operators) or "all operators"
    kept = OVERLAYS / "rows.json"
    for name in given.corners:
        for target in TARGETS[name.partition("-")[0]]:
            if given.targets and target not in given.targets:
                continue
            row = measured(name, target, given.operators)
            rows = json.loads(kept.read_text()) if kept.exists() else {}
            rows.setdefault(told, {})[f"{name} {target}"] = row
            kept.write_text(json.dumps(rows, indent=1))
            print(row, flush=True)
    rows = json.loads(kept.read_text())[told] if kept.exists() else {}
    wanted = [f"{name} {target}" for name in CORNERS for target in TARGETS[name.partition("-")[0]]]
    missing = "".join(f"{each}, " for each in wanted if each not in rows)
    words = {"python": f"Python {platform.python_version()}", "torch": version("torch"), "operators": told}
    table = "".join(f"{rows[each]}\n" for each in wanted if each in rows)
    tail = TAIL.format(machine=" and ".join(MACHINE), missing=missing)
    PAGE.write_text(HEAD.format(**words, cores=os.cpu_count()) + table + tail)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
