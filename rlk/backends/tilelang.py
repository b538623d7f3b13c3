"""The TileLang backend: compiles without a device, through HIP for CDNA and CUDA for Hopper.

The emulator executes code of CDNA that this compiler made: what is verified is what runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlk.backends import hip
from rlk.backends.binaries import load_binaries
from rlk.backends.interface import Backend, Bound, Candidate, Schedules, ToolError, Wheels, lowering_sources
from rlk.errors import Code, CompileError
from rlk.lower.common.emitted import Emitted, KernelBuild
from rlk.resources import installing
from rlk.runtime.launch.record import MODULE, LaunchRecord, ModuleRecord
from rlk.schedule.tilelang_tiles import by_tilelang_tiles
from rlk.target.blocks import BLOCKS
from rlk.target.facts import Target, target

NAME = "tilelang"
TARGETS = frozenset(BLOCKS)
SOURCES = (Path(__file__), Path(hip.__file__), hip.HEADERS / "kernel.h", hip.HEADERS / "device.h")
"""What decides a kernel's bytes beside the lowering."""

_NVCC = "/usr/local/cuda/bin/nvcc"  # where CUDA is, if not on the path
_FLAGS = (
    "--cubin",
    "-O3",
    "-std=c++20",
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
    "-w",
)
PREAMBLE = """static __device__ __forceinline__ float rlk_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
"""
"""What every CUDA source begins with."""
_OPTIONS = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}
_SWIZZLED = re.compile(r"initialize_wgmma_descriptor<[^>]*>\(\w+, \(&\((\w+)\[")
ATOM = 1024  # bytes after which the hardware's swizzle repeats: where a tile that it reads must start


@cache
def toolchain(on: str) -> tuple[tuple[str, str], ...] | None:
    """Return the versions that decide the bytes of kernels for a target; None where a part is missing."""
    names = ["tilelang", "apache-tvm-ffi", *([] if _by_cuda(on) else [hip.COMPILER])]
    try:
        versions = [(name, metadata.version(name)) for name in names]
    except metadata.PackageNotFoundError:
        return None
    if _by_cuda(on):
        found = nvcc_version()
        if found is None:
            return None
        versions.append(("nvcc", found))
    return tuple(versions)


def _by_cuda(on: str) -> bool:
    return target(on).vendor == "nvidia"


@cache
def nvcc() -> str | None:
    """Return the path of CUDA's compiler, if there is one."""
    return shutil.which("nvcc") or shutil.which(_NVCC)


@cache
def nvcc_version() -> str | None:
    """Return the build of CUDA's compiler, if there is one."""
    path = nvcc()
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip()
    return said.splitlines()[-1] if said else None


# --- compiling


def compile_tilelang(emitted: Emitted, on: str, folder: Path) -> None:
    """Compile every kernel of a module for a target; write module, binaries and launch.json to `folder`.

    Beside each binary lies what it was made of last: CDNA assembly, CUDA source. Imports TileLang and needs
    no device. Raises CompileError where TileLang or a compiler refuses, ToolError where one is missing.
    """
    if on not in TARGETS:
        raise ToolError(f"the TileLang lowering compiles for {', '.join(sorted(TARGETS))}, not for {on}")
    (folder / MODULE).write_text(emitted.source)
    make = _cuda if _by_cuda(on) else _hip
    records = tuple(make(emitted.source, kernel, on, folder) for kernel in emitted.kernels)
    ModuleRecord(records, emitted.call, emitted.checks, emitted.backend).write(folder)


def _hip(module: str, kernel: KernelBuild, on: str, folder: Path) -> LaunchRecord:
    source = hip.hip_source(module, kernel.name, on)
    assembly = hip.assembly(source, on)
    (folder / f"{kernel.name}.amdgcn").write_text(assembly)
    (folder / f"{kernel.name}.hsaco").write_bytes(hip.code_object(assembly, on))
    return _record(kernel, source, f"{kernel.name}.hsaco")


def _cuda(module: str, kernel: KernelBuild, on: str, folder: Path) -> LaunchRecord:
    source = cuda_source(module, kernel.name, on)
    return _record(kernel, source, cubin(source, kernel.name, on, folder).name)


def cubin(source: str, name: str, on: str, folder: Path) -> Path:
    """Compile CUDA C++ of a kernel, written as name.cu to `folder`; return the path of its binary there."""
    path = nvcc()
    if path is None:
        raise ToolError("CUDA's compiler was not found: nvcc must be on the path")
    written, made = folder / f"{name}.cu", folder / f"{name}.cubin"
    written.write_text(source)
    includes = (f"-I{each}" for each in _includes())
    command = [path, *_FLAGS, f"-arch={on}", *includes, written.name, "-o", made.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip()[-2000:]
        raise CompileError(Code.COMPILE_FAILED, backend="nvcc", kernel=name, reason=reason, path=str(written))
    return made


@cache
def cuda_source(module: str, kernel: str, on: str, *, wgmma: bool = True) -> str:
    """Return the CUDA C++ that TileLang makes of a kernel of a generated module.

    Tiles that the tensor core reads start where its swizzle does. wgmma: without it every product is one of
    mma.sync, which has the same bits. Raises CompileError where TileLang refuses.
    """
    from tilelang import tvm

    device, options = (
        tvm.target.Target({"kind": "cuda", "arch": on}),
        {**hip.OPTIONS, **_OPTIONS, "tl.disable_wgmma": not wgmma},
    )
    source = hip.made_by_tilelang(module, kernel, device, options)
    for name in set(_SWIZZLED.findall(source)):
        source = re.sub(
            rf"__shared__ __align__\(\d+\) (\w+ {name}\[)", rf"__shared__ __align__({ATOM}) \1", source
        )
    return PREAMBLE + source


def _includes() -> tuple[Path, ...]:
    """Return where TileLang's templates and what they include lie."""
    spec = find_spec("tilelang")
    if spec is None or spec.origin is None:
        raise ToolError(f"TileLang is not installed; {installing('tilelang')}")
    root = Path(spec.origin).parent
    return root / "src", root / "3rdparty" / "cutlass" / "include"


def _record(kernel: KernelBuild, source: str, file: str) -> LaunchRecord:
    """Return how a kernel is launched: its parameters in TileLang's order, which lacks what is unused."""
    given = [*((argument.name, argument.type) for argument in kernel.args), ("programs", "i32")]
    names, found = [name for name, _ in given], hip.entry(source)
    order = tuple(hip.place_of(parameter, names) for parameter in found.parameters)
    return LaunchRecord(
        name=kernel.name,
        file=file,
        types=tuple(given[place][1] for place in order),
        num_warps=kernel.num_warps,
        shared=kernel.shared,
        scratch=0,
        symbol=found.name,
        takes=len(kernel.args),
        order=order,
    )


# --- the backend


def _schedules(bound: Bound) -> Schedules:
    return tuple(by_tilelang_tiles(bound.program, bound.chosen, bound.extents, bound.target))


def _candidates(bound: Bound) -> Iterator[Candidate]:
    yield Candidate(bound.program, lambda: _schedules(bound))


@contextmanager
def _simulate(emitted: Emitted, on: Target, waves: int) -> Iterator[tuple[Callable[..., None], Any]]:
    """Run kernels through their HIP source, compiled for the CPU."""
    from rlk.testing.simulators.cdna.host import launcher

    launchers = {k.name: launcher(emitted, k, on.name, waves) for k in emitted.kernels}
    yield hip.load(emitted.source).call, SimpleNamespace(**launchers)


def _unsimulated(on: str) -> str | None:
    if _by_cuda(on):
        return "there is no simulator of the CUDA source that TileLang writes"
    return None if find_spec("tilelang") else f"TileLang is not installed; {installing('tilelang')}"


def _lower(*args: Any, **options: Any) -> Emitted:
    from rlk.lower import tilelang

    return tilelang.lower(*args, **options)


BACKEND = Backend(
    name=NAME,
    targets=TARGETS,
    sources=(*lowering_sources(NAME), *SOURCES),
    packages=("tilelang", "apache-tvm-ffi", hip.COMPILER),
    install=lambda: installing(NAME),
    toolchain=lambda on: toolchain(on),
    lower=_lower,
    compile=compile_tilelang,
    load=load_binaries,
    candidates=_candidates,
    # on Hopper its kernels run if they are asked for, and none of them is shipped
    wheels=Wheels(frozenset(name for name in TARGETS if not _by_cuda(name))),
    checked_in=("gfx942",),
    simulate=_simulate,
    unsimulated=_unsimulated,
    simulator_schedules=_schedules,
)
