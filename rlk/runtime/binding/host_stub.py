"""Host stubs of bound calls: sizes as constants of generated code, tensors and scalars by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import cycle
from threading import Lock
from typing import Any, Literal, assert_never

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import Decl, Program
from rlk.lower.common.abi import multiple_of
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


def work_counter(device: torch.device) -> torch.Tensor:
    """Return a word that is zero when the next kernel of the device's current stream begins.

    The kernel leaves it at zero. A stream has COUNTERS words, which its launches use by turns: two of them
    share none where a kernel of another library between them lets the second start too early (decision
    79). A graph has words of its own, which it clears itself: its replays may run on any stream.
    """
    if device.type != "cuda":
        return torch.zeros(1, dtype=torch.int32, device=device)
    if torch._C._cuda_getDevice() != device.index:  # the stream that is asked about is the current device's
        with torch.cuda.device(device):
            return work_counter(device)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    at = device.index, torch._C._cuda_getCurrentRawStream(device.index)
    words = _COUNTERS.get(at)
    if words is None:
        with _MAKING, ThreadPoolExecutor(1) as outside:  # not of the pool of a graph that is warmed up
            words = _COUNTERS.get(at) or outside.submit(_counters, torch.cuda.current_stream(device)).result()
            _COUNTERS[at] = words
    return next(words)


COUNTERS = 64
_COUNTERS: dict[tuple[int, int], Iterator[torch.Tensor]] = {}
"""Words by device and stream, by turns."""
_MAKING = Lock()


def _counters(stream: torch.cuda.Stream) -> Iterator[torch.Tensor]:
    with torch.cuda.stream(stream):  # which allocates them, and clears them before its next launch
        return cycle(torch.zeros(COUNTERS, dtype=torch.int32, device=stream.device).split(1))


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

    Sizes are arguments of the text, which calls of other sizes share: Python takes 0.1 ms to compile one.
    """
    starts, block = together
    addressed = addressed and len(work) > 1
    shared = addressed or block < sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in work)
    scope: dict[str, Any] = {
        "empty": torch.empty,
        "empty_like": torch.empty_like,
        "empty_strided": torch.empty_strided,
        "counter": work_counter,
        "f32": torch.float32,
        "host": host,
        "errors": error_words(device),
        "device": device,
    }
    made: dict[str, str] = {}
    lines = []
    if shared:
        scope |= {"bytes": torch.uint8, "place": Place, "block_shape": (block,)}
        # torch.empty takes 0.5 us longer: it has more arguments to parse
        lines.append("block = empty_strided(block_shape, (1,), dtype=bytes, device=device)")
    if addressed:  # `block` lives until the launches are enqueued, as every workspace does
        lines.append("begin = block.data_ptr()")
    for i, (name, shape, dtype) in enumerate((*outs, *work)):
        made[name] = f"made{i}"
        if name in into:
            lines.append(f"made{i} = given[{name!r}]")
            continue
        if addressed and name in starts:
            scope[f"start{i}"] = starts[name]
            lines.append(f"made{i} = place(begin + start{i})")
            continue
        scope |= {f"shape{i}": shape, f"dtype{i}": dtype}
        if shared and name in starts:
            end = starts[name] + math.prod(shape) * dtype.itemsize
            scope[f"bytes{i}"] = slice(starts[name], end)
            lines.append(f"made{i} = block[bytes{i}].view(dtype{i}).view(shape{i})")
            continue
        twin = next((n for n, t in tensors.items() if _is_twin(t, shape, dtype)), None)
        if twin is not None:
            lines.append(f"made{i} = empty_like(given[{twin!r}])")
            continue
        scope[f"strides{i}"] = _dense(shape)
        lines.append(f"made{i} = empty_strided(shape{i}, strides{i}, dtype=dtype{i}, device=device)")
    arguments = [_argument(value, made, tensors, scope) for value in values]
    lines.append(f"host({', '.join(arguments)})")
    lines.append("return {" + ", ".join(f"{name!r}: {made[name]}" for name, _, _ in outs) + "}")
    return _maker(tuple(scope), tuple(lines))(*scope.values())


@lru_cache(maxsize=4096)
def _maker(names: tuple[str, ...], lines: tuple[str, ...]) -> Callable[..., Run]:
    """Return the function of these names' values that returns a call of these lines."""
    body = "".join(f"\n        {line}" for line in lines)
    text = f"def make({', '.join(names)}):\n    def run(given, scalars):{body}\n    return run"
    scope: dict[str, Any] = {}
    exec(compile(text, "<call>", "exec"), scope)
    found: Callable[..., Run] = scope["make"]
    return found


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense tensor, those of torch for one without elements too."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _is_twin(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return tuple(tensor.shape) == shape and tensor.dtype is dtype and tensor.is_contiguous()


def _argument(value: Value, made: Mapping[str, str], tensors: Tensors, scope: dict[str, Any]) -> str:
    """Return the text of an argument; a size is a name of the scope, which it adds."""
    match value:
        case From.ERRORS:
            return "errors"
        case From.WORK_COUNTER:
            return "counter(device)"
        case CallArg(dim=count):  # the same of what need not be cleared
            return f"empty({_name_of(count, scope)}, dtype=f32, device=device)"
        case int():
            return _name_of(value, scope)
        case str() if value in made:
            return made[value]
        case str():
            return f"{'given' if value in tensors else 'scalars'}[{value!r}]"
        case _:
            assert_never(value)


def _name_of(size: int, scope: dict[str, Any]) -> str:
    name = f"size{len(scope)}"
    scope[name] = size
    return name


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
    """Return the parameters of a host function that are multiples, as `Signature.divisible` has them."""
    decls = {d.name: d for k in program.kernels for d in k.params}
    of = {arg.name: multiple_of(arg, decls) for arg in call}
    written = (*outputs_of(invocation), *workspaces(program))
    made = {d.name for d in written}

    def fits(name: str, value: Value) -> bool:
        match value:
            case From.ERRORS | From.WORK_COUNTER:
                return False
            case CallArg():
                return True
            case int():
                return value % of[name] == 0
            case str() if value in tensors:
                return tensors[value].data_ptr() % VECTOR == 0
            case str():  # torch aligns what it makes; a scalar's value is not known
                return value in made

    return frozenset(name for name, value in host_values(call, written, geometry) if fits(name, value))


def raise_data_errors(op: str, checks: tuple[str, ...], device: torch.device) -> None:
    """Synchronise, read the device's error words, reset them, and raise their error."""
    words = error_words(device)
    code, row = (int(v) for v in words.cpu())
    if code:
        words.zero_()
        what = checks[code - 1] if code <= len(checks) else f"data error {code}"
        raise LaunchError(Code.BAD_ROW, op=op, row=row - 1, what=what)
