"""Bindings of the few CUDA and HIP driver functions that rlk calls."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from rlk.env import Env
from rlk.errors import Code, InternalError, ScheduleError

Launch = Callable[[int, int, int, None], int]

_INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, and HIP's
_STATIC_SHARED_LIMIT = 48 * 1024

# CUlaunchAttribute: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, its value padded to 64 bytes.
_OVERLAPS = ctypes.create_string_buffer(struct.pack("=I4xi60x", 6, 1), 72)
_OVERLAP_SINCE = 12030  # of CUDA: graphs have no edges of this kind before


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel loaded on one device; `handle` is the driver's, `context` the one it was loaded in."""

    handle: int
    context: int
    device: int


class Driver(Protocol):
    """The functions of a driver that the launcher needs.

    `header` is the struct format of a launch configuration: grid x, y, z, block x, y, z, shared bytes and
    stream; parameters may follow it in the same buffer. `overlapping` is the one of kernels that may start
    before those ahead of them have ended, with the values behind the stream. `launch(configuration, function,
    parameters, None)` takes addresses and returns an error code.
    """

    header: str
    overlapping: tuple[str, tuple[int, ...]]
    warp_size: int
    launch: Launch

    def load(self, image: bytes, name: str, shared: int, device: int) -> Function: ...

    def parameter_offsets(self, function: Function, count: int) -> tuple[int, ...] | None: ...

    def recover(self, error: int, function: Function) -> bool: ...

    def describe(self, error: int) -> str: ...


def _pointer_function(library: Any, name: str, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function


class Cuda:
    """libcuda, reached through ctypes: no compiler is needed at run time and no Triton."""

    # CUlaunchConfig: grid, block, shared bytes, stream, attributes, their number.
    header = "=IIIIIII4xQ8x4x4x"
    overlapping: tuple[str, tuple[int, ...]] = ("=IIIIIII4xQQI4x", (ctypes.addressof(_OVERLAPS), 1))
    warp_size = 32

    def __init__(self, library: Any | None = None) -> None:
        self._library = library if library is not None else ctypes.CDLL("libcuda.so.1")
        pointer = ctypes.c_void_p
        self.launch: Launch = _pointer_function(
            self._library, "cuLaunchKernelEx", pointer, pointer, pointer, pointer
        )
        self._contexts: dict[int, int] = {}

    def _check(self, error: int, what: str) -> None:
        if error:
            raise InternalError(Code.INTERNAL, what=f"{what}: {self.describe(error)}")

    def describe(self, error: int) -> str:
        """Return the driver's name and text for an error code."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(error, ctypes.byref(text))
        return f"CUDA error {error}: {(text.value or b'unknown').decode()}"

    def _context(self, device: int) -> int:
        """Return the primary context of a device: the one torch works in."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._check(self._library.cuInit(0), "cuInit")
            handle = ctypes.c_int()
            self._check(self._library.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
            error = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
            self._check(error, "cuDevicePrimaryCtxRetain")
            self._contexts[device] = context.value or 0
        return self._contexts[device]

    def load(self, image: bytes, name: str, shared: int, device: int) -> Function:
        """Load kernel `name` of a cubin on `device`, with room for `shared` bytes of shared memory."""
        library, context = self._library, self._context(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)), "cuCtxPushCurrent")
        try:
            self._check(library.cuModuleLoadData(ctypes.byref(module), image), f"loading {name}")
            error = library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self._check(error, f"finding {name}")
            if shared > _STATIC_SHARED_LIMIT:
                if library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared):
                    raise ScheduleError(
                        Code.SCHEDULE_FIELD,
                        field="tiles and stages",
                        value=f"{shared} bytes of shared memory for {name}",
                        why="fewer: the device does not have them",
                    )
        finally:
            library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return Function(function.value or 0, context, device)

    def parameter_offsets(self, function: Function, count: int) -> tuple[int, ...] | None:
        """Return the parameter layout of the compiled kernel; None if the driver does not report it."""
        if not hasattr(self._library, "cuFuncGetParamInfo"):  # CUDA 12.4 has it
            return None
        offset, size, offsets = ctypes.c_size_t(), ctypes.c_size_t(), []
        handle = ctypes.c_void_p(function.handle)
        for index in range(count + 1):
            error = self._library.cuFuncGetParamInfo(
                handle, ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size)
            )
            if error:
                break
            offsets.append(offset.value)
        return tuple(offsets)

    def recover(self, error: int, function: Function) -> bool:
        """Make the function's context current on a thread that has none yet; say whether to launch again."""
        if error != _INVALID_CONTEXT:
            return False
        return bool(self._library.cuCtxSetCurrent(ctypes.c_void_p(function.context)) == 0)


class Hip:
    """libamdhip64, reached through ctypes."""

    header = "=IIIIIII4xQ"
    overlapping: tuple[str, tuple[int, ...]] = (header, ())
    warp_size = 64

    def __init__(self, library: Any | None = None) -> None:
        self._library = library if library is not None else ctypes.CDLL("libamdhip64.so")
        pointer, unsigned = ctypes.c_void_p, ctypes.c_uint
        self._launch = _pointer_function(
            self._library, "hipModuleLaunchKernel", pointer, *[unsigned] * 7, pointer, pointer, pointer
        )
        self.launch: Launch = self._launch_configuration

    def _launch_configuration(self, configuration: int, function: int, parameters: int, _: None) -> int:
        sizes = (ctypes.c_uint * 7).from_address(configuration)
        stream = ctypes.c_uint64.from_address(configuration + 32).value
        return int(self._launch(function, *sizes, stream, parameters, None))

    def describe(self, error: int) -> str:
        """Return the driver's text for an error code."""
        self._library.hipGetErrorString.restype = ctypes.c_char_p
        text = self._library.hipGetErrorString(error)
        return f"HIP error {error}: {(text or b'unknown').decode()}"

    def load(self, image: bytes, name: str, shared: int, device: int) -> Function:
        """Load kernel `name` of a code object on `device`."""
        module, function, previous = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self._check(self._library.hipGetDevice(ctypes.byref(previous)), "hipGetDevice")
        self._check(self._library.hipSetDevice(device), "hipSetDevice")
        try:
            self._check(self._library.hipModuleLoadData(ctypes.byref(module), image), f"loading {name}")
            error = self._library.hipModuleGetFunction(ctypes.byref(function), module, name.encode())
            self._check(error, f"finding {name}")
        finally:
            self._library.hipSetDevice(previous)
        return Function(function.value or 0, 0, device)

    def _check(self, error: int, what: str) -> None:
        if error:
            raise InternalError(Code.INTERNAL, what=f"{what}: {self.describe(error)}")

    def parameter_offsets(self, function: Function, count: int) -> tuple[int, ...] | None:
        """Return None: HIP does not report it."""
        return None

    def recover(self, error: int, function: Function) -> bool:
        """Return False: HIP has no contexts to miss."""
        return False


@cache
def cuda_version() -> int | None:
    """Return the CUDA version that the driver supports, 1000 major + 10 minor; None without a driver."""
    version = ctypes.c_int()
    try:
        error = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if error else version.value


def may_overlap() -> bool:
    """Return whether kernels that wait for those before them are launched while these run."""
    return Env.current().overlap and (cuda_version() or 0) >= _OVERLAP_SINCE


@cache
def driver(kind: str) -> Driver:
    """Return the driver of a device kind, "cuda" or "hip"; the library is opened once."""
    return Cuda() if kind == "cuda" else Hip()
