"""The CuTe backend for Hopper: compiles to shared libraries without a device, loads and calls them.

Whatever the CuTe DSL renames between releases is named here and nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rlk.backends import binaries
from rlk.backends.cubin import cubins
from rlk.backends.interface import (
    Backend,
    Bound,
    Candidate,
    Launcher,
    Schedules,
    Toolchain,
    ToolError,
    Wheels,
    lowering_sources,
)
from rlk.backends.source import executed
from rlk.env import Env
from rlk.errors import Code, InternalError, LaunchError
from rlk.ir.nodes import Program
from rlk.lower.common.emitted import Emitted, KernelArg, KernelBuild
from rlk.resources import installing
from rlk.runtime.launch.driver import cuda_version
from rlk.runtime.launch.launcher import Services, composed, on_its_device
from rlk.runtime.launch.record import MODULE, LaunchRecord, ModuleRecord
from rlk.schedule.axes import roles
from rlk.schedule.backend_choice import by_cute_first
from rlk.schedule.heuristics import choose
from rlk.target.facts import Target

NAME = "cute"
TARGETS = ("sm_90a",)
SHIPPED_FLAVOUR = 12  # of CUDA: code of a newer one does not load on drivers of this one
KNOWN = (["4", "7"], ["4", "8"])  # releases of cutlass-dsl whose kernels the tests compile
HOST = "launch_"  # with a kernel's name: the function of a module that launches it

_RUNTIME = "cute_dsl_runtime"
_VECTOR = 16  # bytes to which the address of a divisible argument is aligned

# Triton's names of types -> the DSL's. In memory a truth value is a byte.
_SCALARS = {
    "i1": "Boolean", "i8": "Int8", "i16": "Int16", "i32": "Int32", "i64": "Int64",
    "u1": "Boolean", "u8": "Uint8", "u16": "Uint16", "u32": "Uint32", "u64": "Uint64",
    "fp32": "Float32", "fp64": "Float64",
}  # fmt: skip
_ELEMENTS = {**_SCALARS, "i1": "Uint8", "u1": "Uint8", "fp16": "Float16", "bf16": "BFloat16"}


# --- which compiler


@dataclass(frozen=True, slots=True)
class Flavour:
    """One build of the compiler, for a major version of CUDA, and its runtime library."""

    major: int
    runtime: Path


@cache
def flavour() -> Flavour | None:
    """Return the installed build that the DSL itself takes: the newest that the driver supports, if any."""
    spec = find_spec("nvidia_cutlass_dsl")
    roots = spec.submodule_search_locations if spec is not None else None
    found = [
        Flavour(int(path.parts[-3].removeprefix("cu")), path)
        for root in roots or ()
        for path in Path(root).glob(f"cu[0-9]*/lib/lib{_RUNTIME}.so")
    ]
    newest = _driver_major()
    fitting = [each for each in found if newest is None or each.major <= newest]
    return max(fitting, key=lambda each: each.major, default=None)


def _driver_major() -> int | None:
    """Return the major version of CUDA that the driver supports; None where there is no driver."""
    version = cuda_version()
    return None if version is None else version // 1000


@cache
def toolchain() -> tuple[tuple[str, str], ...] | None:
    """Return the versions that decide a kernel's bytes, nothing imported; None where a package is missing.

    ptxas is a part of the compiler's library, whose digest tells its version, the machine and Python's too.
    """
    found = flavour()
    if found is None:
        return None
    build = f"nvidia-cutlass-dsl-libs-cu{found.major}"
    packages = ("nvidia-cutlass-dsl", build, "apache-tvm-ffi")
    try:
        versions = tuple((name, metadata.version(name)) for name in packages)
        files = metadata.files(build) or ()
    except metadata.PackageNotFoundError:
        return None
    digests = [
        f.hash.value for f in files if f.hash and f.name.startswith("_cutlass_ir.") and f.suffix == ".so"
    ]
    return (*versions, ("compiler and ptxas", " ".join(sorted(digests)) or "not listed"))


# --- compiling


@cache
def compiles() -> bool:
    """Return whether kernels can be compiled here: a compiler that rlk knows, and what links its objects.

    Raises LaunchError where CC names no C compiler.
    """
    versions = dict(toolchain() or ())
    if versions.get("nvidia-cutlass-dsl", "").split(".")[:2] not in KNOWN:
        return False
    try:
        _linker()
    except ToolError:
        return False
    return True


def compile_cute(emitted: Emitted, target: str, folder: Path) -> None:
    """Compile every kernel of a module for `target` and write module, libraries and launch.json to `folder`.

    Each kernel gives <name>.so, which launches it, and <name>.cubin, its code for whoever wants to read it.
    Imports the DSL and needs no device, but a C compiler to link with: raises ToolError without one. The
    DSL's own exceptions are passed on. Never in several threads: it aborts the process.
    """
    if target not in TARGETS:
        raise ToolError(f"the CuTe lowering compiles for {', '.join(TARGETS)}, not for {target}")
    linker = _linker()
    path = folder / MODULE
    path.write_text(emitted.source)
    # the DSL reads functions again from their file
    with executed(emitted.source, str(path)) as module:
        records = [_compile(module, kernel, target, folder, linker) for kernel in emitted.kernels]
    ModuleRecord(tuple(records), emitted.call, emitted.checks, emitted.backend).write(folder)


def _compile(
    module: ModuleType, kernel: KernelBuild, target: str, folder: Path, linker: list[str]
) -> LaunchRecord:
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream

    ours = cutlass.Int32(1), cutlass.Int32(1), make_fake_stream()
    arguments = [*(_argument(arg) for arg in kernel.args), *ours]
    options = f"--enable-tvm-ffi --gpu-arch {target}"
    built = cute.compile(getattr(module, HOST + kernel.name), *arguments, options=options)
    object_file = folder / f"{kernel.name}.o"
    built.export_to_c(str(object_file), function_name=kernel.name, export_only_tvm_ffi_symbols=True)
    codes = cubins(object_file.read_bytes())
    if not codes:
        raise ToolError(f"the compiled {kernel.name} holds no code for a device")
    for index, code in enumerate(codes):
        (folder / f"{kernel.name}{f'.{index}' if index else ''}.cubin").write_bytes(code)
    library = f"{kernel.name}.so"
    _link(linker, object_file, library)
    object_file.unlink()
    types = tuple(arg.type for arg in kernel.args)
    return LaunchRecord(
        kernel.name, library, types, kernel.num_warps, shared=0, scratch=0, overlaps=kernel.overlaps
    )


def _argument(arg: KernelArg) -> Any:
    """Return what stands for an argument while its kernel is compiled."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_ptr

    kinds, type = (_ELEMENTS, arg.type[1:]) if arg.type.startswith("*") else (_SCALARS, arg.type)
    if type not in kinds:
        raise ToolError(f"argument {arg.name} of type {arg.type} has no form in the CuTe DSL")
    kind = getattr(cutlass, kinds[type])
    if kinds is _SCALARS:
        return kind(0)
    align = _VECTOR if arg.divisible else kind.width // 8
    return make_ptr(kind, 0, cute.AddressSpace.gmem, assumed_align=align)


def _linker() -> list[str]:
    """Return the command of a C compiler: the one that CC names, else Python's own, or a usual one.

    Raises LaunchError where CC names none, ToolError where there is none.
    """
    named = Env.current().cc
    if named is not None:
        found = _command(named)
        if found is None:
            wanted = "the command of a C compiler that is here, or no CC"
            raise LaunchError(Code.ARG_VALUE, op="environment", name="CC", value=named, wanted=wanted)
        return found
    for text in (sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        found = _command(text or "")
        if found is not None:
            return found
    raise ToolError("no C compiler was found to link kernels with; install gcc, or name one in CC")


def _command(text: str) -> list[str] | None:
    """Return the words of a command whose program is here."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end
        return None
    return words if words and shutil.which(words[0]) else None


def _link(linker: list[str], object_file: Path, name: str) -> None:
    """Make a library that asks for the runtime by name alone: whoever loads it has opened that before."""
    found, ffi = flavour(), find_spec("tvm_ffi")
    if found is None or ffi is None or ffi.origin is None:
        raise ToolError(f"the libraries to link with are missing; {installing('cute')}")
    libraries = [
        f"-L{found.runtime.parent}",
        f"-l{_RUNTIME}",
        f"-L{Path(ffi.origin).parent / 'lib'}",
        "-ltvm_ffi",
    ]
    command = [
        *linker,
        "-shared",
        "-s",
        "-o",
        name,
        object_file.name,
        *libraries,
        "-Wl,--no-undefined",
        "-lc",
    ]
    done = subprocess.run(command, cwd=object_file.parent, capture_output=True, text=True)
    if done.returncode:
        raise ToolError(f"{shlex.join(linker)} cannot link {name}:\n{done.stderr.strip()}")


# --- calling


def load_cute(folder: Path, record: LaunchRecord, device: int, services: Services) -> Callable[..., None]:
    """Return `launch(grid, *args)`: asynchronous, on the current stream of `device`.

    `args` are the kernel's arguments, tensors for pointers; the first size of `grid` counts its programs.
    The compiler is not imported. Raises FileNotFoundError when the entry was evicted meanwhile, InternalError
    when its library cannot be loaded.
    """
    import tvm_ffi

    _open_runtime()
    path = folder / record.file
    _check_whole(path)
    try:
        call = tvm_ffi.load_module(str(path))[record.name]
    except Exception as error:  # whatever the dynamic linker says
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise _broken(path, str(error)) from error
    return _launcher(record, call if _loads_again() else _loaded_once(str(path), call), device, services)


def _loads_again() -> bool:
    """Tell whether a library may be called after it failed to load its code: 4.7's runtime waits for ever."""
    return not metadata.version("nvidia-cutlass-dsl").startswith("4.7.")


_refusals: dict[str, str | None] = {}  # how CUDA refused a library at its first call; None: not at all


def _loaded_once(library: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` that fails at once, and the same way, after CUDA refused the library."""

    def careful(*args: Any) -> None:
        refusal = _refusals.get(library)
        if refusal is not None:
            raise RuntimeError(refusal)
        try:
            call(*args)
        except RuntimeError as error:  # CUDA's: a wrong argument is a TypeError or ValueError
            _refusals.setdefault(library, str(error))
            raise
        _refusals[library] = None

    return careful


@cache
def _open_runtime() -> ctypes.CDLL:
    """Open the library that every kernel's library names, so that the dynamic linker need not find it."""
    found = flavour()
    if found is None:
        raise InternalError(
            Code.INTERNAL, what=f"lib{_RUNTIME}.so, which CuTe kernels need, is not installed"
        )
    return ctypes.CDLL(str(found.runtime), mode=os.RTLD_LOCAL | os.RTLD_NOW)


def _check_whole(path: Path) -> None:
    """Refuse a library that was cut short: mapping it would end the process.

    The table of sections is the last thing in a library.
    """
    with path.open("rb") as stream:
        header = stream.read(64)
        size = os.fstat(stream.fileno()).st_size
    if len(header) < 64 or header[:4] != b"\x7fELF":
        raise _broken(path, "it is no library")
    (table,) = struct.unpack_from("<Q", header, 40)
    step, count = struct.unpack_from("<HH", header, 58)
    if table + step * count > size:
        raise _broken(path, f"it has {size} bytes of {table + step * count}")


def _broken(path: Path, why: str) -> InternalError:
    return InternalError(Code.INTERNAL, what=f"{path.name} cannot be loaded: {why}")


def _launcher(
    record: LaunchRecord, call: Callable[..., Any], device: int, services: Services
) -> Callable[..., None]:
    """Compose the launch as text, once per kernel: a loop over arguments would cost as much as the call."""

    def failed(error: Exception) -> LaunchError:
        return LaunchError(Code.INTERNAL, what=f"launching {record.name} failed: {error}")

    names = [f"a{index}" for index in range(len(record.types))]
    values = [f"{n}.data_ptr()" if t[0] == "*" else n for n, t in zip(names, record.types, strict=True)]
    launch_it = f"call({', '.join([*values, 'programs', str(int(record.overlaps)), f'stream({device})'])})"
    lines = [
        f"def launch({', '.join(['grid', *names])}):",
        "    programs = grid[0]",
        "    if programs == 0:",
        "        return",
        "    try:",
        *(f"    {line}" for line in on_its_device(launch_it, device)),
        "    except Exception as error:",
        "        raise failed(error) from error",
    ]
    return composed(record.name, lines, {"call": call, "failed": failed}, services)


def _load(folder: Path, records: tuple[LaunchRecord, ...], kind: str, device: int) -> dict[str, Launcher]:
    services = binaries.services()
    every = map(binaries.overlapping, records)
    return {each.name: load_cute(folder, each, device, services) for each in every}


# --- schedules


def of_cute(bound: Bound) -> Iterator[Candidate]:
    """Yield the forms that the CuTe lowering may write.

    The first, where the lowering supports it, has blocks that loop over the pieces of their contraction; it
    runs by default where heuristics want it. The next two write products that are too wide first, and
    computed factors where that is cheaper; a later one, for schedules that are given, all factors. The next
    launches pieces in parallel or one after the other. The last has kernels of their own for sums that one
    loop carries, for sums that registers hold one at a time.
    """
    from rlk.passes.factors_apart import factors_apart
    from rlk.passes.sums_apart import sums_apart
    from rlk.schedule.cute_tiles import by_warpgroups, may_loop_over_pieces, pieces_in_sequence
    from rlk.schedule.written_factors import with_factors_written, with_products_written

    whole, target, extents = bound.whole(), bound.target, bound.extents

    def scheduled(program: Program) -> Schedules:
        chosen = tuple(choose(kernel, target, None, extents) for kernel in program.kernels)
        return by_warpgroups(program, chosen, target, extents)

    if may_loop_over_pieces(whole):
        yield Candidate(whole, lambda: scheduled(whole), pieces_in_sequence(whole, target, extents))
    rows = with_products_written(bound.program, extents)
    written = with_factors_written(rows, extents)
    if written is not rows:
        yield Candidate(written, lambda: scheduled(written))
    if rows is not bound.program:
        yield Candidate(rows, lambda: scheduled(rows))
    yield Candidate(bound.program, lambda: by_warpgroups(bound.program, bound.chosen, target, extents))
    every = factors_apart(rows)
    if len(every.kernels) > len(written.kernels):
        yield Candidate(every, lambda: scheduled(every), by_default=False)
    parts = sums_apart(bound.program)
    if len(parts.kernels) > len(bound.program.kernels):
        yield Candidate(parts, lambda: scheduled(parts))


# --- on the CPU


def _simulator_schedules(bound: Bound) -> Schedules:
    """Return the schedules of calls; of contractions those of heuristics, whose tiles are smaller."""
    from rlk.schedule.cute_tiles import warpgroups

    return tuple(
        chosen
        if roles(kernel, bound.extents).contracted
        else warpgroups(kernel, chosen, bound.target, bound.extents)
        for kernel, chosen in zip(bound.program.kernels, bound.chosen, strict=True)
    )


def interpreted(emitted: Emitted, module: Any) -> dict[str, Launcher]:
    """Return the launchers of kernels that a simulator runs thread by thread."""

    def launcher(name: str) -> Launcher:
        host = getattr(module, f"{HOST}{name}")
        return lambda grid, *args: host(*args, grid[0], 1, None)

    return {kernel.name: launcher(kernel.name) for kernel in emitted.kernels}


@contextmanager
def _simulate(emitted: Emitted, on: Target, waves: int) -> Iterator[tuple[Callable[..., None], Any]]:
    """Run kernels thread by thread."""
    from rlk.testing.simulators import hopper

    module = hopper.interpret(emitted.source, filename=emitted.file)
    yield module.call, SimpleNamespace(**interpreted(emitted, module))


# --- wheels


def _unbuildable() -> str | None:
    found = flavour()
    if found is None or found.major == SHIPPED_FLAVOUR:
        return None
    return f"an environment with nvidia-cutlass-dsl and without its extra cu{found.major}"


def _unloadable() -> str | None:
    if flavour() is None or find_spec("tvm_ffi") is None:
        return "its kernels need nvidia-cutlass-dsl, for its runtime library, and apache-tvm-ffi"
    return None


# --- the backend


def _lower(*args: Any, **options: Any) -> Emitted:
    from rlk.lower import cute

    return cute.lower(*args, **options)


def _table() -> ModuleType:
    from rlk.schedule import cute_table

    return cute_table


def _choosing() -> Toolchain:
    return toolchain() or (("cute", "none"),)


BACKEND = Backend(
    name=NAME,
    targets=frozenset(TARGETS),
    sources=lowering_sources(NAME),
    packages=("nvidia-cutlass-dsl", "apache-tvm-ffi"),
    install=lambda: installing(NAME),
    toolchain=lambda target: toolchain(),
    ready=lambda: compiles(),
    lower=_lower,
    compile=compile_cute,
    load=_load,
    candidates=of_cute,
    falls_back=True,
    faster=lambda program, on, extents: by_cute_first(program, on, extents),
    choosing=_choosing,
    wheels=Wheels(
        frozenset(TARGETS),
        # for its runtime library, of which nothing is contained
        requires=("nvidia-cutlass-dsl>=4.7,<4.9", "apache-tvm-ffi>=0.1.12,<0.1.13"),
        host_code=True,
        unbuildable=_unbuildable,
        unloadable=_unloadable,
    ),
    checked_in=("sm_90a",),
    table=_table,
    simulate=_simulate,
    simulator_schedules=_simulator_schedules,
    interpret=interpreted,
)
