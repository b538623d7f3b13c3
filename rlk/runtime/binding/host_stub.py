"""Host stubs of bound calls: sizes as constants of generated code, tensors and scalars by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal, assert_never

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import Decl, Program
from rlk.lower.common.emitted import CallArg, From
from rlk.lower.common.memory import workspaces
from rlk.runtime.binding.arguments import (
    VECTOR,
    Geometry,
    contiguous,
)
from rlk.runtime.binding.invocation import Invocation, Run, Tensors, outputs_of

Made = list[tuple[str, tuple[int, ...], torch.dtype]]
Value = int | str | Literal[From.ERRORS, From.WORK_COUNTER] | CallArg
"""What a parameter of a host function is given: a number, a tensor or scalar by name, or words of its own."""


@cache
def error_words(device: torch.device) -> torch.Tensor:
    """Return the two words, code and row + 1, into which kernels on a device write what they find.

    They outlive the call that makes them. While a CUDA graph is recorded, or torch's cudagraph trees warm up,
    what the current thread allocates belongs to the graph's pool: another thread allocates them. Where the
    current stream is recorded, it clears them too, on a stream that is not: else every replay would.
    """
    if device.type != "cuda":
        return torch.zeros(2, dtype=torch.int32, device=device)
    recorded = torch.cuda.is_current_stream_capturing()
    with ThreadPoolExecutor(1) as outside:
        words = outside.submit(_words, device, recorded).result()
    return words if recorded else words.zero_()


def _words(device: torch.device, clear: bool) -> torch.Tensor:
    words = torch.empty(2, dtype=torch.int32, device=device)
    if clear:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            words.zero_()
    return words


class Place:
    """A place in memory: what a launch asks of a tensor, without the time that making one takes."""

    __slots__ = ("_at",)

    def __init__(self, at: int) -> None:
        self._at = at

    def data_ptr(self) -> int:
        """Return the address."""
        return self._at


def compose(
    outs: Made,
    work: Made,
    values: list[Value],
    tensors: Tensors,
    host: Callable[..., Any],
    device: torch.device,
    together: tuple[Mapping[str, int], int],
    into: frozenset[str] = frozenset(),
    addressed: bool = False,
) -> Run:
    """Return the call as a function written for it: no loop over its arguments costs anything at run time.

    together: where workspaces begin in one block, in bytes, and its size: used where some share their place,
    and for several workspaces of `addressed` launches. into: outputs whose memory is among the given tensors.
    addressed: launches read nothing of a workspace but its address.
    """
    starts, block = together
    addressed = addressed and len(work) > 1
    shared = addressed or block < sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in work)
    scope: dict[str, Any] = {
        "empty": torch.empty,
        "empty_like": torch.empty_like,
        "empty_strided": torch.empty_strided,
        "zeros": torch.zeros,
        "words": torch.int32,
        "f32": torch.float32,
        "host": host,
        "errors": error_words(device),
        "device": device,
    }
    made: dict[str, str] = {}
    lines = ["def run(given, scalars):"]
    if shared:
        scope |= {"bytes": torch.uint8, "place": Place}
        # torch.empty takes 0.5 us longer: it has more arguments to parse
        lines.append(f"    block = empty_strided(({block},), (1,), dtype=bytes, device=device)")
    if addressed:  # `block` lives until the launches are enqueued, as every workspace does
        lines.append("    begin = block.data_ptr()")
    for i, (name, shape, dtype) in enumerate((*outs, *work)):
        scope |= {f"shape{i}": shape, f"dtype{i}": dtype}
        made[name] = f"made{i}"
        if name in into:
            lines.append(f"    made{i} = given[{name!r}]")
            continue
        if addressed and name in starts:
            lines.append(f"    made{i} = place(begin + {starts[name]})")
            continue
        if shared and name in starts:
            end = starts[name] + math.prod(shape) * dtype.itemsize
            lines.append(f"    made{i} = block[{starts[name]}:{end}].view(dtype{i}).view(shape{i})")
            continue
        twin = next((n for n, t in tensors.items() if _is_twin(t, shape, dtype)), None)
        strides = torch.empty(shape, device="meta").stride()
        new = f"empty_strided(shape{i}, {strides}, dtype=dtype{i}, device=device)"
        lines.append(f"    made{i} = {f'empty_like(given[{twin!r}])' if twin else new}")
    arguments = [_argument(value, made, tensors) for value in values]
    lines.append(f"    host({', '.join(arguments)})")
    lines.append("    return {" + ", ".join(f"{name!r}: {made[name]}" for name, _, _ in outs) + "}")
    exec(compile("\n".join(lines), f"<call {host}>", "exec"), scope)
    run: Run = scope["run"]
    return run


def _is_twin(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return tuple(tensor.shape) == shape and tensor.dtype is dtype and tensor.is_contiguous()


def _argument(value: Value, made: Mapping[str, str], tensors: Tensors) -> str:
    match value:
        case From.ERRORS:
            return "errors"
        case From.WORK_COUNTER:  # of each call its own, of the stream's or the graph's memory
            return "zeros(1, dtype=words, device=device)"
        case CallArg(dim=count):  # the same of what need not be cleared
            return f"empty({count}, dtype=f32, device=device)"
        case int():
            return repr(value)
        case str() if value in made:
            return made[value]
        case str():
            return f"{'given' if value in tensors else 'scalars'}[{value!r}]"
        case _:
            assert_never(value)


def host_values(
    call: tuple[CallArg, ...], written: tuple[Decl, ...], geometry: Geometry
) -> list[tuple[str, Value]]:
    """Return the argument expression of each parameter of the host function."""
    # memory that the caller gives for an output has strides of its own, as inputs do
    strides = {d.name: contiguous(d, geometry) for d in written} | geometry.strides
    found: list[tuple[str, Value]] = []
    for arg in call:
        match arg.kind:
            case From.TENSOR | From.SCALAR:
                found.append((arg.name, arg.source))
            case From.EXTENT:
                found.append((arg.name, geometry.extents[arg.source]))
            case From.STRIDE:
                found.append((arg.name, strides[arg.source][arg.dim]))
            case From.INNER_STRIDE:
                found.append((arg.name, strides[arg.source][0]))
            case From.OUTER_STRIDE:
                whole = strides[arg.source][0] * geometry.inner_extent
                found.append((arg.name, geometry.outer.get(arg.source, whole)))
            case From.INNER_EXTENT:
                found.append((arg.name, geometry.inner_extent))
            case From.ERRORS | From.WORK_COUNTER as words:
                found.append((arg.name, words))
            case From.SCRATCH:
                found.append((arg.name, arg))
            case From.LOOP_INDEX | From.LENGTH:
                raise AssertionError(f"{arg.name} is found by the loops of the host function")
    return found


def divisible(
    program: Program, invocation: Invocation, geometry: Geometry, tensors: Tensors, call: tuple[CallArg, ...]
) -> frozenset[str]:
    """Return the parameters of a host function that are multiples of 16: sizes, and addresses in bytes."""
    written = (*outputs_of(invocation), *workspaces(program))
    made = {d.name for d in written}

    def fits(value: Value) -> bool:
        match value:
            case From.ERRORS | From.WORK_COUNTER:
                return False
            case CallArg():
                return True
            case int():
                return value % VECTOR == 0
            case str() if value in tensors:
                return tensors[value].data_ptr() % VECTOR == 0
            case str():  # torch aligns what it makes; a scalar's value is not known
                return value in made

    return frozenset(name for name, value in host_values(call, written, geometry) if fits(value))


def raise_data_errors(op: str, checks: tuple[str, ...], device: torch.device) -> None:
    """Synchronise, read the device's error words, reset them, and raise their error."""
    words = error_words(device)
    code, row = (int(v) for v in words.cpu())
    if code:
        words.zero_()
        what = checks[code - 1] if code <= len(checks) else f"data error {code}"
        raise LaunchError(Code.BAD_ROW, op=op, row=row - 1, what=what)
