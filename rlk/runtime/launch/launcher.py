"""A kernel launch: arguments packed into a reused buffer, and one call into the driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from rlk.errors import Code, InternalError, LaunchError
from rlk.runtime.launch.driver import Driver, Function
from rlk.runtime.launch.record import LaunchRecord

# Triton's names of argument types -> struct codes. A pointer is the address of its tensor.
_CODES = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp32": "f", "fp64": "d",
}  # fmt: skip
_SCRATCH_POINTERS = 2  # every kernel of Triton ends with two hidden pointers: global and profile scratch


@dataclass(frozen=True, slots=True)
class Services:
    """Functions of torch for a launch: a device's current stream, the current device, and setting it."""

    stream: Callable[[int], int]
    current: Callable[[], int]
    entered: Callable[[int], AbstractContextManager[Any]]


def composed(name: str, lines: list[str], scope: dict[str, Any], services: Services) -> Callable[..., None]:
    """Return the function `launch` of a text, with names of `scope` and of torch's services."""
    every = {**scope, "stream": services.stream, "current": services.current, "entered": services.entered}
    exec(compile("\n".join(lines), f"<launch {name}>", "exec"), every)
    launch: Callable[..., None] = every["launch"]
    return launch


def on_its_device(launch_it: str, device: int) -> list[str]:
    """Return the lines of a launch that makes its device current if another one is."""
    return [
        f"    if current() == {device}:",
        f"        {launch_it}",
        "    else:",
        f"        with entered({device}):",
        f"            {launch_it}",
    ]


def _code(type: str) -> str:
    if type.startswith("*"):
        return "Q"
    if type not in _CODES:
        raise InternalError(Code.INTERNAL, what=f"a kernel argument of type {type} cannot be passed")
    return _CODES[type]


def parameter_layout(types: tuple[str, ...], hidden: int = _SCRATCH_POINTERS) -> tuple[str, tuple[int, ...]]:
    """Return the struct format of a kernel's parameters and their offsets: each aligned to its own size.

    hidden: pointers that follow those of the caller.
    """
    text, offset, offsets = "", 0, []
    for code in [*(_code(type) for type in types), *"Q" * hidden]:
        size = struct.calcsize(f"={code}")
        gap = -offset % size
        text += (f"{gap}x" if gap else "") + code
        offsets.append(offset + gap)
        offset += gap + size
    return text, tuple(offsets)


class _Slot:
    """One buffer with a launch configuration and parameters, and the driver's view of it."""

    __slots__ = ("buffer", "configuration", "parameters", "_pointers")

    def __init__(self, size: int, offsets: tuple[int, ...]) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self.configuration = ctypes.addressof(self.buffer)
        self._pointers = (ctypes.c_void_p * len(offsets))(*(self.configuration + at for at in offsets))
        self.parameters = ctypes.addressof(self._pointers)


def make_launcher(
    record: LaunchRecord,
    function: Function,
    driver: Driver,
    services: Services,
    allocate: Callable[[int], Any],
) -> Callable[..., None]:
    """Return `launch(grid, *args)`: asynchronous, on the current stream of the function's device.

    That device is made current for the launch where it is not: the handle of its default stream is zero, as
    every device's.

    `args` are the kernel's arguments without constexprs, tensors for pointers; `grid` has one to three sizes.
    `allocate(bytes)` gives a scratch tensor. The function is composed as text, once per kernel, because a
    loop over the arguments would cost more than the launch.
    """
    names, values = _passed(record)
    parameters, offsets = parameter_layout(record.types, len(values) - len(record.types))
    header, attributes = driver.overlapping if record.overlaps else (driver.header, ())
    layout = struct.Struct(header + parameters)
    start = struct.calcsize(header)
    _check_layout(record, function, driver, offsets)
    slots: list[_Slot] = []

    def new_slot() -> _Slot:
        return _Slot(layout.size, tuple(start + offset for offset in offsets))

    def failed(error: int, slot: _Slot) -> None:
        if driver.recover(error, function):
            error = driver.launch(slot.configuration, function.handle, slot.parameters, None)
        if error:
            what = f"launching {record.name} failed: {driver.describe(error)}"
            raise LaunchError(Code.INTERNAL, what=what)

    block = record.num_warps * driver.warp_size
    lines = [
        f"def launch({', '.join(['grid', *names])}):",
        "    if len(grid) == 1:",
        "        x, y, z = grid[0], 1, 1",
        "    else:",
        "        x, y, z = (*grid, 1)[:3]",
        "    if x * y * z == 0:",
        "        return",
        "    try:",
        "        slot = slots.pop()",  # pop and append are atomic: threads never share a slot
        "    except IndexError:",
        "        slot = new_slot()",
        f"    scratch = allocate(x * y * z * {record.scratch})" if record.scratch else "",
        "    pack(",
        f"        slot.buffer, 0, x, y, z, {block}, 1, 1, {record.shared}, stream({function.device}),",
        f"        {''.join(f'{value}, ' for value in (*attributes, *values))}",
        "    )",
        *on_its_device(
            f"error = call(slot.configuration, {function.handle}, slot.parameters, None)", function.device
        ),
        "    if error:",
        "        failed(error, slot)",
        "    slots.append(slot)",
    ]
    scope = {
        "slots": slots, "new_slot": new_slot, "pack": layout.pack_into, "failed": failed,
        "call": driver.launch, "allocate": allocate,
    }  # fmt: skip
    return composed(record.name, lines, scope, services)


def _passed(record: LaunchRecord) -> tuple[list[str], list[str]]:
    """Return the names of a launch's arguments, and the text of each parameter's value."""
    if not record.order:  # Triton's
        names = [f"a{index}" for index in range(len(record.types))]
        values = [f"{n}.data_ptr()" if t[0] == "*" else n for n, t in zip(names, record.types, strict=True)]
        return names, [*values, "scratch.data_ptr()" if record.scratch else "0", "0"]
    names = [f"a{index}" for index in range(record.takes)]
    given = [*names, "x"]  # of a grid that has one size
    found = [given[place] for place in record.order]
    return names, [f"{n}.data_ptr()" if t[0] == "*" else n for n, t in zip(found, record.types, strict=True)]


def _check_layout(record: LaunchRecord, function: Function, driver: Driver, offsets: tuple[int, ...]) -> None:
    """Compare the layout with the compiled kernel's own, if the driver reports it."""
    actual = driver.parameter_offsets(function, len(offsets))
    if actual is not None and actual != offsets:
        what = f"{record.name} expects parameters at {actual}, rlk would put them at {offsets}"
        raise InternalError(Code.INTERNAL, what=what)
