"""HIP source of a kernel on a CPU: work-items as fibers, in the order of a schedule."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlk.backends.hip import HEADERS, Parameter, entry, execute, hip_source, place_of, workplace
from rlk.digest import digest
from rlk.lower.common.emitted import Emitted, KernelBuild

SHIM = Path(__file__).parent / "shim"
COMMON = (
    *("-march=native", "-fPIC", "-O2", "-w", "-ffp-contract=off", "-fno-strict-aliasing"),
    f"-I{HEADERS}",
    f"-I{SHIM}",
)
KERNEL = ("-x", "c++", "-std=c++17", "-nostdinc", "-fno-exceptions", "-fno-rtti", "-DRLK_HOST", "-DRLK_CDNA3")
_SCALARS = {
    "int": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint": ctypes.c_uint32,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
    "signed char": ctypes.c_int8,
}
CALLER = """
extern "C" uchar __start_rlk_shared __attribute__((weak)), __stop_rlk_shared __attribute__((weak));
extern "C" const char *rlk_launch(void (*)(void **), void **, int, int, int, void *, unsigned long);
static void rlk_body(void **given) {{ {name}({given}); }}
extern "C" const char *rlk_run(void **given, int groups, int schedule) {{
  return rlk_launch(rlk_body, given, groups, {threads}, schedule, &__start_rlk_shared,
                    &__stop_rlk_shared - &__start_rlk_shared);
}}
"""


class HostFault(RuntimeError):
    """Work-items wait for one another for ever, or meet at different places."""


@cache
def runtime() -> str:
    """Return the path of the fibers, compiled."""
    made = workplace() / "fibers.o"
    execute("cc", "-c", "-std=c11", "-fno-sanitize=all", *COMMON, SHIM / "fibers.c", "-o", made)
    return str(made)


@cache
def library(source: str) -> ctypes.CDLL:
    """Return a HIP source compiled for this machine, with a function that runs its kernel."""
    found = entry(source)
    given = ", ".join(f"*({p.type} *)given[{i}]" for i, p in enumerate(found.parameters))
    caller = CALLER.format(name=found.name, given=given, threads=found.threads)
    stem = workplace() / f"host_{digest(source)[:16]}"
    path, made, linked = stem.with_suffix(".cpp"), stem.with_suffix(".o"), stem.with_suffix(".so")
    path.write_text(source + caller, encoding="utf-8")
    execute("clang", "-c", *KERNEL, *COMMON, path, "-o", made)
    execute("ld.lld", "-shared", made, runtime(), "-o", linked)  # what of C it calls, Python's process has
    loaded = ctypes.CDLL(str(linked))
    loaded.rlk_run.restype = ctypes.c_char_p
    return loaded


def launch(source: str, groups: int, arguments: Mapping[str, Any], *, schedule: int = 0) -> None:
    """Run a kernel for every workgroup; arrays are changed in place.

    arguments: NumPy arrays and numbers by the names of the kernel's parameters. schedule: 0 runs work-items
    in order; other even ones in a random order; odd ones a wave at a time, as far as it goes. Raises
    HostFault where work-items wait for ever.
    """
    found, loaded = entry(source), library(source)
    held = [_value(p, arguments[p.name]) for p in found.parameters]
    given = (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))
    failure = loaded.rlk_run(given, groups, schedule)
    if failure is not None:
        raise HostFault(f"{found.name}: {failure.decode()}")


def launcher(emitted: Emitted, build: KernelBuild, target: str, schedule: int) -> Callable[..., None]:
    """Return what the host function of a generated module calls to launch a kernel, on CPU tensors."""
    return starter(hip_source(emitted.source, build.name, target), build, schedule)


def starter(source: str, build: KernelBuild, schedule: int) -> Callable[..., None]:
    """Return what launches a kernel of this source with the arguments of the generated module's."""
    names = [*(argument.name for argument in build.args), "programs"]
    places = {p.name: place_of(p, names) for p in entry(source).parameters}

    def start(grid: tuple[int], *given: Any) -> None:
        values = [*map(memory_of, given), grid[0]]
        launch(source, grid[0], {name: values[at] for name, at in places.items()}, schedule=schedule)

    return start


def memory_of(value: Any) -> Any:
    """Return a CPU tensor as the array of its memory; other arguments as they are."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    patterns = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
    return value.view(patterns.get(value.dtype, value.dtype)).numpy()


def _value(parameter: Parameter, value: Any) -> Any:
    """Return an argument as C holds it."""
    if parameter.is_pointer:
        assert isinstance(value, np.ndarray), parameter
        return ctypes.c_void_p(value.ctypes.data)
    return _SCALARS[parameter.type](value)
