"""Compilation of generated Triton source to binaries, without a device and reproducibly."""

from __future__ import annotations

import linecache
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlk.env import Env
from rlk.lower.common.emitted import Emitted, KernelBuild
from rlk.runtime.record import MODULE, LaunchRecord, ModuleRecord

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

LINE_INFO = "TRITON_DISABLE_LINE_INFO"
"""Obeyed where it is set; else there are no line tables, most of a binary, which name Triton's own files."""


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


@contextmanager
def executed(source: str, file: str) -> Iterator[types.ModuleType]:
    """Run generated source as a module of this file name, under which inspect finds the text meanwhile."""
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    module = types.ModuleType("rlk_generated")
    module.__file__ = file
    sys.modules[module.__name__] = module
    try:
        # not with this module's own future imports: they would turn annotations into strings
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
        yield module
    finally:
        sys.modules.pop(module.__name__, None)
        linecache.cache.pop(file, None)


def _compile(
    triton: Any, module: types.ModuleType, kernel: KernelBuild, target: str, folder: Path
) -> LaunchRecord:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        getattr(module, kernel.name),
        signature={arg.name: arg.type for arg in kernel.args},
        constexprs={arg.name: arg.value for arg in kernel.args if arg.type == "constexpr"},
        attrs={(at,): [["tt.divisibility", 16]] for at, arg in enumerate(kernel.args) if arg.divisible},
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, "enable_fp_fusion": False}
    built = triton.compile(source, target=GPUTarget(*_TRITON_TARGETS[target]), options=options)
    binary, text = ("cubin", "ptx") if "cubin" in built.asm else ("hsaco", "amdgcn")
    file = f"{kernel.name}.{binary}"
    (folder / file).write_bytes(built.asm[binary])
    (folder / f"{kernel.name}.{text}").write_text(built.asm[text])
    return _record(kernel, file, built.metadata)


def _record(kernel: KernelBuild, file: str, metadata: Any) -> LaunchRecord:
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
