"""Generated TileLang modules as HIP source, assembly and code objects, without ROCm."""

from __future__ import annotations

import atexit
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlk.digest import digest
from rlk.errors import Code, CompileError

HEADERS = Path(__file__).parent / "hip_headers"
"""Headers in the place of ROCm's and TileLang's."""
COMPILER = "ziglang"  # clang 22 and lld with the AMDGPU target, from the package registry
DEVICE = (
    "-fuse-cuid=none",  # or a symbol is named after where the source lay
    "-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-nostdinc", "-nostdinc++", "-O3", "-w",
    "-std=c++17", "-ffp-contract=off", "-mcode-object-version=5", f"-I{HEADERS}",
)  # fmt: skip
FRAME = '#pragma clang fp contract(off)\n#include "kernel.h"\n'
OPTIONS = {"tl.disable_safe_memory_legalize": True, "tl.disable_thread_storage_sync": True}
"""Of TileLang: guards and barriers are the module's own."""
_SIGNATURE = re.compile(r"__global__ void (?:__launch_bounds__\((\d+)(?:, *\d+)?\) )?(\w+)\(([^)]*)\)\s*\{")
_INCLUDES = re.compile(r"^#include <(?:hip|tl_templates)/[^>]*>\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Resources:
    """Needs of a kernel of a code object: registers of a lane, bytes, and work-items of a workgroup."""

    name: str
    vector_registers: int
    scalar_registers: int
    vector_spills: int
    scalar_spills: int
    scratch: int
    shared: int
    threads: int


def missing() -> str | None:
    """Return the name of the package that compiling for CDNA lacks here, if it lacks one."""
    for package in ("tilelang", COMPILER):
        if importlib.util.find_spec(package) is None:
            return package
    return None


@cache
def workplace() -> Path:
    """Return a folder for this process's files, which goes when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="rlk-cdna-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def load(source: str) -> ModuleType:
    """Return a generated module, imported from a file: TileLang reads the text of its functions."""
    name = f"rlk_generated_{digest(source)[:16]}"
    path = workplace() / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def hip_source(source: str, kernel: str, target: str = "gfx942") -> str:
    """Return the HIP C++ that TileLang makes of a kernel of a generated module.

    Raises CompileError where it refuses the program.
    """
    return framed(made_by_tilelang(source, kernel, device(target), OPTIONS))


def made_by_tilelang(source: str, kernel: str, on: Any, options: Mapping[str, bool]) -> str:
    """Return the C++ that TileLang makes of a kernel of a generated module for a target as it names them.

    Raises CompileError where it refuses the program.
    """
    import tilelang
    from tilelang import tvm

    function = getattr(load(source), kernel)
    try:
        with on, tvm.transform.PassContext(opt_level=3, config=dict(options)):
            made: Any = tilelang.lower(function, target=on, target_host="c", enable_device_compile=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[-1]
        raise CompileError(
            Code.COMPILE_FAILED, backend="tilelang", kernel=kernel, reason=reason, path=load(source).__file__
        ) from error
    return str(made.kernel_source)


def framed(source: str) -> str:
    """Return HIP source with rlk's header, which names what such kernels use, in the place of its includes.

    Contraction is off by a pragma too, so that no flag of a compiler decides it.
    """
    return FRAME + _INCLUDES.sub("", source)


def device(target: str) -> Any:
    """Return a target as TileLang names it."""
    from tilelang import tvm

    return tvm.target.Target({"kind": "hip", "mcpu": target, "thread_warp_size": 64})


@cache
def compiler() -> str:
    """Return the path of the compiler that the package registry gives, with its version in mind."""
    import ziglang

    return str(Path(ziglang.__file__).parent / "zig")


def execute(*arguments: str | Path) -> None:
    """Run the compiler; raise CompileError with what it said."""
    made = subprocess.run([compiler(), *map(str, arguments)], capture_output=True, text=True)
    if made.returncode:
        reason = made.stderr.strip()[-2000:]
        path = next((a for a in map(str, arguments) if a.endswith((".hip", ".cpp", ".s"))), "")
        raise CompileError(Code.COMPILE_FAILED, backend="clang", kernel=path, reason=reason, path=path)


@cache
def assembly(source: str, target: str = "gfx942") -> str:
    """Return the assembly of a HIP source for a target."""
    stem = workplace() / digest([source, target])[:16]
    path, made = stem.with_suffix(".hip"), stem.with_suffix(".s")
    path.write_text(source, encoding="utf-8")
    execute("clang", *DEVICE, f"--offload-arch={target}", "-S", path, "-o", made)
    return made.read_text(encoding="utf-8")


@cache
def code_object(text: str, target: str = "gfx942") -> bytes:
    """Return the code object, an ELF file, of an assembly."""
    stem = workplace() / digest([text, target])[:16]
    path, made, linked = stem.with_suffix(".s"), stem.with_suffix(".o"), stem.with_suffix(".co")
    path.write_text(text, encoding="utf-8")
    execute("clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-nogpulib", "-c", path, "-o", made)
    execute("ld.lld", "-shared", made, "-o", linked)
    return linked.read_bytes()


def resources(text: str) -> tuple[Resources, ...]:
    """Return what the kernels of an assembly need, from its metadata."""
    found = re.search(r"\.amdgpu_metadata\n(.*?)\.end_amdgpu_metadata", text, re.DOTALL)
    listed = [] if found is None else re.split(r"^  - ", found[1], flags=re.MULTILINE)[1:]
    return tuple(_resources(each) for each in listed if ".kernarg_segment_size" in each)


def _resources(text: str) -> Resources:
    # a kernel's own fields are indented by four; those of its arguments by more
    fields = dict(re.findall(r"^    (\.\w+):\s+(\S+)$", text, re.MULTILINE))
    return Resources(
        name=fields[".name"],
        vector_registers=int(fields[".vgpr_count"]),
        scalar_registers=int(fields[".sgpr_count"]),
        vector_spills=int(fields[".vgpr_spill_count"]),
        scalar_spills=int(fields[".sgpr_spill_count"]),
        scratch=int(fields[".private_segment_fixed_size"]),
        shared=int(fields[".group_segment_fixed_size"]),
        threads=int(fields[".max_flat_workgroup_size"]),
    )


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel as its source has it: TileLang orders them in its own way."""

    name: str
    type: str

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of a HIP source: its name there, work-items of a workgroup, and parameters."""

    name: str
    threads: int
    parameters: tuple[Parameter, ...]


def entry(source: str) -> Entry:
    """Return the kernel of a HIP source."""
    found = _SIGNATURE.search(source)
    if found is None:
        raise CompileError(Code.COMPILE_FAILED, backend="hip", kernel="?", reason="no kernel", path="")
    threads, name, listed = found.groups()
    made = []
    for each in filter(None, (part.strip() for part in listed.split(","))):
        type, _, parameter = each.replace("__restrict__ ", "").replace("const ", "").rpartition(" ")
        made.append(Parameter(parameter, type.strip()))
    return Entry(name, int(threads), tuple(made))


def place_of(parameter: Parameter, names: Sequence[str]) -> int:
    """Return which argument a parameter is: TileLang numbers names that C++ has for functions, as cos."""
    return names.index(parameter.name if parameter.name in names else re.sub(r"_\d+$", "", parameter.name))
