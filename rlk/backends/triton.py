"""The Triton backend: it lowers every program, and compiles reproducibly without a device."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rlk.backends.binaries import load_binaries
from rlk.backends.interface import (
    Backend,
    Bound,
    Candidate,
    Launcher,
    Schedules,
    Toolchain,
    Wheels,
    as_launched,
    lowering_sources,
)
from rlk.backends.source import executed
from rlk.env import Env
from rlk.ir.nodes import Program
from rlk.lower.common.emitted import Emitted, KernelBuild, LoweringOptions
from rlk.resources import installing
from rlk.runtime.launch.record import MODULE, LaunchRecord, ModuleRecord
from rlk.target.facts import TARGETS, Target

NAME = "triton"
CHECKED_IN_VERSION = (3, 7)
"""Whose layouts checked-in kernels are placed for: text must not depend on what is installed."""

# Targets as compilers spell them -> (Triton's backend, its architecture, lanes of a warp).
_TRITON_TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_86": ("cuda", 86, 32),
    "sm_89": ("cuda", 89, 32),
    "sm_90a": ("cuda", 90, 32),
    "sm_100a": ("cuda", 100, 32),
    "sm_103a": ("cuda", 103, 32),
    "sm_120a": ("cuda", 120, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
}

_WIDE_K = re.compile(r"xb?f16, #ttg\.dot_op<\{[^}]*kWidth = (?!2\b)")
"""Factors of 16 bits whose threads hold more than two neighbours along K: other sums than chain16."""

_CONVERTED = re.compile(r"cvt\.rn\.satfinite\.e\dm\dx2\.f32\s+(%rs\d+)")
_SECOND_BYTE = re.compile(r"shr\.u16\s+(%rs\d+), (%rs\d+), 8;")
_PACKED = re.compile(r"mov\.b32\s+%r\d+, \{(%rs\d+), (%rs\d+)\};")

_DESCRIPTOR = re.compile(r"(?:or\.b64|add\.s64)\s+%rd\d+, (%rd\d+), (-?\d+);")
"""A shared tile as wgmma takes it: its address with a constant, whose upper half says how it is laid out."""
_SOUND = (12, 9)
"""The first ptxas that keeps the address of two tiles of other layouts that lie in one place, one after the
other: 12.8 computes the second's ahead of the address that they share, out of a register without a value."""

_GLOBAL = re.compile(
    r"^\s*(?:@!?%\w+\s+)?"
    r"(?:(?:ldu?|st|atom|red|prefetchu?|multimem|tex|discard)\.(?!\S*(?:shared|param|local|const))"
    r"|cp\.|tensormap\.)"
    r"|griddepcontrol\.wait",
    re.MULTILINE,
)
"""What may reach global memory, and the wait for the kernels that wrote it."""
_NEVER_WRITTEN = re.compile(r"\bld\.\S*\.nc\b")
"""Loads of what nothing writes while the kernel runs, which may be moved before the wait."""

LINE_INFO = "TRITON_DISABLE_LINE_INFO"
"""Obeyed where it is set; else there are no line tables, most of a binary, which name Triton's own files."""


# --- which compiler


@cache
def triton_version() -> str | None:
    """Return the version of the installed Triton without importing it; None when there is none."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    match = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", Path(spec.origin).read_text(), re.MULTILINE)
    return match[1] if match else "unknown"


def _toolchain(target: str) -> Toolchain | None:
    version = triton_version()
    return None if version is None else (("triton", version),)


def _choosing() -> Toolchain:
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        version = "none"
    return (("triton", version),)


# --- compiling


def compile_triton(emitted: Emitted, target: str, folder: Path) -> None:
    """Compile every kernel of a module for `target` and write module, binaries and launch.json to `folder`.

    Imports Triton and needs no device. A compiler's own exceptions are passed on.
    """
    import triton
    from triton import knobs

    (folder / MODULE).write_text(emitted.source)
    with (
        executed(emitted.source, emitted.file) as module,
        tempfile.TemporaryDirectory(prefix="rlk-triton-") as scratch,
        knobs.cache.scope(),
        knobs.compilation.scope(),
    ):
        knobs.cache.manager_class = _discarding_cache(Path(scratch))
        if LINE_INFO not in dict(Env.current().toolchain):
            knobs.compilation.disable_line_info = True
        records = [_compile(triton, module, kernel, target, folder) for kernel in emitted.kernels]
    ModuleRecord(tuple(records), emitted.call, emitted.checks, emitted.backend).write(folder)


def compile_in_scratch(emitted: Emitted, target: str, folder: Path) -> None:
    """Compile in a process that does nothing else: what Triton leaves behind goes with its scratch folder."""
    with _scratch():
        compile_triton(emitted, target, folder)


@contextmanager
def _scratch() -> Iterator[None]:
    """Hold temporary files in a folder below that of this process."""
    before = tempfile.gettempdir()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def _compile(triton: Any, module: ModuleType, kernel: KernelBuild, target: str, folder: Path) -> LaunchRecord:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        getattr(module, kernel.name),
        signature={arg.name: arg.type for arg in kernel.args},
        constexprs={arg.name: arg.value for arg in kernel.args if arg.type == "constexpr"},
        attrs={
            (at,): [["tt.divisibility", arg.divisor]] for at, arg in enumerate(kernel.args) if arg.divisible
        },
    )
    options: dict[str, Any] = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    options["enable_fp_fusion"] = False
    if kernel.registers and _TRITON_TARGETS[target][0] == "cuda":
        options["maxnreg"] = kernel.registers
    on = GPUTarget(*_TRITON_TARGETS[target])
    built = triton.compile(source, target=on, options=options)
    room, stages = 1024 * TARGETS[target].shared, kernel.num_stages
    while built.metadata.shared > room and stages > 1:  # reductions of a tile take some beside stages
        before = built.metadata.shared
        stages = max(1, min(stages - 1, room * stages // before))
        options["num_stages"] = stages
        built = triton.compile(source, target=on, options=options)
        if built.metadata.shared == before:  # loops that name their own number of stages keep it
            break
    if built.metadata.shared > room:
        needs = f"{kernel.name} needs {-(-built.metadata.shared // 1024)} KiB of shared memory"
        raise ValueError(
            f"{needs}, {target} has {room >> 10}: choose smaller tiles or fewer stages, "
            "or write the product with L.keep before a sum of its rows"
        )
    if _tiles_share_a_place(built.asm.get("ptx", "")) and _release(triton.knobs.nvidia.ptxas) < _SOUND:
        with _other_assembler(triton.knobs.nvidia, kernel.name):
            built = triton.compile(source, target=on, options=options)
    binary, text = ("cubin", "ptx") if "cubin" in built.asm else ("hsaco", "amdgcn")
    if binary == "cubin" and _WIDE_K.search(built.asm["ttgir"]):
        why = f"Triton {triton.__version__} gives mma.sync other elements of K than 16 neighbours"
        raise ValueError(f"{kernel.name}: {why}; use a version that rlk is tested with, or RLK_BACKEND=cute")
    if _packs_bytes_again(built.asm.get("ptx", "")):
        raise ValueError(f"{kernel.name}: ptxas would read bytes of 8-bit floats before they are converted")
    file = f"{kernel.name}.{binary}"
    (folder / file).write_bytes(built.asm[binary])
    (folder / f"{kernel.name}.{text}").write_text(built.asm[text])
    overlaps = kernel.overlaps and _waits_first(built.asm["ptx"])
    return _record(kernel, file, built.metadata, overlaps=overlaps)


def _tiles_share_a_place(ptx: str) -> bool:
    """Return whether wgmma reads shared tiles of two layouts at addresses that are made of one register."""
    layouts: dict[str, set[int]] = {}
    for base, constant in _DESCRIPTOR.findall(ptx) if "wgmma.mma_async" in ptx else ():
        upper = int(constant) >> 32
        if upper not in (0, -1):  # else the index of an element
            layouts.setdefault(base, set()).add(upper)
    return any(len(found) > 1 for found in layouts.values())


def _packs_bytes_again(ptx: str) -> bool:
    """Return whether a register has two converted bytes, and the second alone above them.

    ptxas 12.8 and 12.9 make the packing part of the conversion, which then reads what it is to write.
    """
    converted = set(_CONVERTED.findall(ptx))
    seconds = {(first, second) for second, first in _SECOND_BYTE.findall(ptx) if first in converted}
    return any(pair in seconds for pair in _PACKED.findall(ptx))


def _waits_first(ptx: str) -> bool:
    """Return whether a kernel waits for those before it and reaches no global memory earlier."""
    first = _GLOBAL.search(ptx)
    waits = first is not None and first[0].endswith("griddepcontrol.wait")
    return waits and _NEVER_WRITTEN.search(ptx) is None


def _release(assembler: Any) -> tuple[int, ...]:
    return tuple(map(int, assembler.version.split(".")))


@contextmanager
def _other_assembler(knobs: Any, name: str) -> Iterator[None]:
    """Let Triton assemble by the ptxas that it brings for Blackwell, which is a later one."""
    other = getattr(knobs, "ptxas_blackwell", None)
    if other is None or _release(other) < _SOUND:
        raise ValueError(
            f"{name} has tiles of two layouts in one place of shared memory, whose addresses ptxas "
            f"{knobs.ptxas.version} mixes up; set TRITON_PTXAS_PATH to that of CUDA 12.9 or later"
        )
    with knobs.scope():
        knobs.ptxas = other.path
        yield


def _record(kernel: KernelBuild, file: str, metadata: Any, *, overlaps: bool) -> LaunchRecord:
    unknown = [
        name
        for name in ("launch_cooperative_grid", "launch_pdl", "profile_scratch_size")
        if getattr(metadata, name, 0)
    ]
    if unknown or metadata.num_ctas != 1:
        raise ValueError(f"{kernel.name} asks for {unknown or 'clusters'}, which rlk's launcher does not do")
    return LaunchRecord(
        name=metadata.name,
        file=file,
        types=tuple(arg.type for arg in kernel.args if arg.type != "constexpr"),
        num_warps=metadata.num_warps,
        shared=metadata.shared,
        scratch=getattr(metadata, "global_scratch_size", None) or 0,
        overlaps=overlaps,
    )


def _discarding_cache(folder: Path) -> type[Any]:
    """Return a Triton cache manager that finds nothing and keeps files only while compiling."""
    from triton.runtime.cache import CacheManager

    class Discarding(CacheManager):  # type: ignore[misc, unused-ignore]
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self._folder = folder / key
            self._folder.mkdir(exist_ok=True)

        def get_file(self, filename: str) -> str | None:
            return None

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path = self._folder / filename
            path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
            return str(path)

        def get_group(self, filename: str) -> dict[str, str] | None:
            return None

        def put_group(self, filename: str, group: dict[str, str]) -> None:
            return None

    return Discarding


# --- on the CPU


def interpreted(emitted: Emitted, module: Any) -> dict[str, Launcher]:
    """Return the launchers of kernels that an interpreter runs."""
    launchers: dict[str, Launcher] = {}
    for kernel in emitted.kernels:
        constants = {arg.name: arg.value for arg in kernel.args if arg.type == "constexpr"}
        names = tuple(arg.name for arg in kernel.args if arg.type != "constexpr")
        launchers[kernel.name] = _launcher(getattr(module, kernel.name), names, constants)
    return launchers


def _launcher(function: Any, names: tuple[str, ...], constants: dict[str, Any]) -> Launcher:
    def launch(grid: tuple[int, ...], *args: Any) -> None:
        function[grid](**dict(zip(names, args, strict=True)), **constants)

    return launch


@contextmanager
def _simulate(emitted: Emitted, on: Target, waves: int) -> Iterator[tuple[Callable[..., None], Any]]:
    """Run kernels program by program."""
    from rlk.testing.simulators.interpreter import interpret

    module = interpret(emitted.source, filename=emitted.file)

    def launcher(name: str) -> Launcher:
        return lambda grid, *args: getattr(module, name)[grid](*args)

    yield module.call, SimpleNamespace(**{k.name: launcher(k.name) for k in emitted.kernels})


# --- the backend


def _lower(*args: Any, **options: Any) -> Emitted:
    from rlk.lower import triton

    return triton.lower(*args, **options)


def _checked_in_options() -> LoweringOptions:
    from rlk.lower.triton import TritonOptions

    return TritonOptions(CHECKED_IN_VERSION)


def _table() -> ModuleType:
    from rlk.schedule import triton_table

    return triton_table


def of_triton(bound: Bound) -> Iterator[Candidate]:
    """Yield programs that write cheap factors or wide products first; then the launched one.

    The last, for schedules that are given, writes every factor that can be.
    """
    from rlk.passes.factors_apart import factors_apart
    from rlk.schedule.heuristics import choose
    from rlk.schedule.written_factors import with_factors_written, with_products_written

    def chosen(program: Program) -> Schedules:
        return tuple(choose(kernel, bound.target, None, bound.extents) for kernel in program.kernels)

    rows = with_products_written(bound.program, bound.extents)
    written = with_factors_written(rows, bound.extents)
    if written is not rows:
        yield Candidate(written, lambda: chosen(written))
    if rows is not bound.program:
        yield Candidate(rows, lambda: chosen(rows))
    yield from as_launched(bound)
    every = factors_apart(rows)
    if len(every.kernels) > len(written.kernels):
        yield Candidate(every, lambda: chosen(every), by_default=False)


BACKEND = Backend(
    name=NAME,
    targets=frozenset(TARGETS),
    sources=lowering_sources(NAME),
    packages=("triton",),
    install=lambda: installing(NAME),
    toolchain=_toolchain,
    lower=_lower,
    compile=compile_in_scratch,
    load=load_binaries,
    candidates=of_triton,
    complete=True,
    choosing=_choosing,
    wheels=Wheels(frozenset(TARGETS)),
    checked_in=("sm_90a",),
    checked_in_options=_checked_in_options,
    table=_table,
    simulate=_simulate,
    interpret=interpreted,
)
