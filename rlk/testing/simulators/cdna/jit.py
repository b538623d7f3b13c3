"""TileLang's own compiler and launcher without a device: launches are emulated."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.backends import hip
from rlk.backends.hip import execute, workplace
from rlk.lower.common.emitted import Emitted, KernelBuild
from rlk.testing.simulators.cdna.descriptor import descriptor
from rlk.testing.simulators.cdna.emulator import Execution, emulate
from rlk.testing.simulators.cdna.host import SHIM, memory_of

_NAME = "libamdhip64.so"  # which TileLang's launcher asks the dynamic linker for
_TAKER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_void_p,
    ctypes.c_long,
)
LAUNCH_FAILED = 719  # hipErrorLaunchFailure


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as the launcher requested it: the grid, a block, bytes of dynamic shared memory.

    parameters: of each, in the order of the code object, its bytes, or the array that it points to.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: tuple[NDArray[Any] | np.generic, ...]


@dataclass(slots=True)
class TileLangJit:
    """A device whose kernels TileLang compiles and launches; the emulator runs what is launched.

    schedule, perturb: as `emulate` has them. launches, executions: one of each for every launch so far.
    tilelang.compile generates the device code and the launcher, and links them; in the place of hipcc stands
    clang with rlk's header, in the place of libamdhip64.so the memory of this process.
    """

    target: str = "gfx942"
    schedule: int = 0
    perturb: int | None = None
    launches: list[Launch] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)

    @contextmanager
    def __call__(self, emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
        """Compile a module; yield its host function and its kernels by name."""
        kernels = {build.name: self._launcher(emitted, build) for build in emitted.kernels}
        yield hip.load(emitted.source).call, SimpleNamespace(**kernels)

    def _launcher(self, emitted: Emitted, build: KernelBuild) -> Callable[..., None]:
        kernel = compiled(emitted.source, build.name, self.target)

        def start(grid: tuple[int], *values: Any) -> None:
            given = [memory_of(value) for value in values]
            on_device = [_on_device(x, a.type) if isinstance(x, np.ndarray) else x
                         for x, a in zip(given, build.args, strict=True)]  # fmt: skip
            with taken_by(self._run):
                kernel(*on_device, grid[0])
            for array, tensor in zip(given, on_device, strict=True):
                if isinstance(array, np.ndarray):
                    array[...] = tensor.numpy().view(array.dtype).reshape(array.shape)

        return start

    def _run(self, launch: Launch, assembly: str) -> None:
        self.launches.append(launch)
        ran = emulate(
            assembly,
            launch.kernel,
            launch.grid,
            launch.block,
            launch.parameters,
            target=self.target,
            schedule=self.schedule,
            perturb=self.perturb,
            dynamic_shared=launch.shared,
        )
        self.executions.append(ran)


# --- TileLang's compiler driver ---

_assemblies: dict[bytes, str] = {}


@cache
def compiled(source: str, kernel: str, target: str) -> Any:
    """Return the kernel that tilelang.compile makes of a generated module's function, launcher included.

    Raises CompileError where clang refuses; what TileLang refuses is its own exception.
    """
    runtime()
    import tilelang
    import tvm_ffi

    tilelang.disable_cache()
    tvm_ffi.register_global_func("tilelang_callback_hip_compile", _code_object, override=True)
    return tilelang.compile(
        getattr(hip.load(source), kernel),
        target=hip.device(target),
        execution_backend="tvm_ffi",
        pass_configs=hip.OPTIONS,
    )


def _code_object(source: str, target: Any) -> bytearray:
    """Compile device code for TileLang, in hipcc's place; the assembly is kept for the emulator."""
    on = str(target.attrs["mcpu"])
    assembly = hip.assembly(hip.framed(source), on)
    made = hip.code_object(assembly, on)
    knows(made, assembly)
    return bytearray(made)


def knows(code: bytes, assembly: str) -> None:
    """Tell the stand-in for the runtime which assembly a code object was made of."""
    _assemblies[code] = assembly


# --- the runtime below TileLang's launcher ---


@cache
def runtime() -> ctypes.CDLL:
    """Return the stand-in for libamdhip64.so, opened before TileLang's launcher asks for one."""
    made, linked = workplace() / "runtime.o", workplace() / _NAME
    execute("cc", "-c", "-std=c11", "-O2", "-w", "-fPIC", "-fno-sanitize=all", SHIM / "runtime.c", "-o", made)
    execute("ld.lld", "-shared", f"-soname={_NAME}", made, "-o", linked)
    return ctypes.CDLL(str(linked), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def taken_by(run: Callable[[Launch, str], None]) -> Iterator[None]:
    """Hand every launch, with the assembly of its code, to `run`; what that raises is raised here."""
    failures: list[BaseException] = []

    def take(name: bytes, image: int, size: int, sizes: Any, packed: int, length: int) -> int:
        try:
            assembly = _assemblies[ctypes.string_at(image, size)]
            run(_launch(name.decode(), assembly, sizes[:7], packed, length), assembly)
        except Exception as failure:  # C between here and the caller knows none
            failures.append(failure)
            return LAUNCH_FAILED
        return 0

    taker = _TAKER(take)
    runtime().rlk_on_launch(taker)
    try:
        yield
    except Exception:
        if not failures:
            raise
    finally:
        runtime().rlk_on_launch(None)
    if failures:
        raise failures[0]


def _launch(kernel: str, assembly: str, sizes: list[int], given: int, length: int) -> Launch:
    """Read arguments as the code object's parameters; an address becomes the memory that it lies in."""
    found: list[NDArray[Any] | np.generic] = []
    explicit = [p for p in descriptor(assembly, kernel).parameters if not p.hidden]
    for number, parameter in enumerate(explicit):
        if length < 0:
            at = ctypes.c_void_p.from_address(given + 8 * number).value or 0
        elif parameter.offset + parameter.size > length:
            raise ValueError(f"{kernel} takes {parameter.size} bytes at {parameter.offset} of {length}")
        else:
            at = given + parameter.offset
        raw = ctypes.string_at(at, parameter.size)
        is_address = parameter.kind == "global_buffer"
        value = np.frombuffer(raw, f"V{parameter.size}")[0]
        found.append(_memory(int.from_bytes(raw, "little")) if is_address else value)
    gx, gy, gz, bx, by, bz, shared = map(int, sizes)
    return Launch(kernel, (gx, gy, gz), (bx, by, bz), shared, tuple(found))


def _memory(address: int) -> NDArray[np.uint8]:
    """Return the bytes from an address to the end of its allocation."""
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    if not runtime().rlk_allocation(ctypes.c_uint64(address), ctypes.byref(start), ctypes.byref(size)):
        raise ValueError(f"{address:#x} is no address of the device")
    length = start.value + size.value - address
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


def _on_device(array: NDArray[Any], type: str) -> Any:
    """Return a copy of an array as TileLang's launcher takes it: elements in a row."""
    import ml_dtypes
    from tilelang import tvm

    name = "bfloat16" if type == "*bf16" else str(array.dtype)
    row = array.reshape(-1).view(ml_dtypes.bfloat16 if type == "*bf16" else array.dtype)
    return tvm.runtime.empty(row.shape, name, tvm.rocm(0)).copyfrom(row)
