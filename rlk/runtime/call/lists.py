"""Calls of an operator on lists of tensors: one launch for all items where its kernel is elementwise."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any

import torch

from rlk.backends.registry import complete
from rlk.errors import Code, LaunchError, LoweringError
from rlk.ir.nodes import Decl
from rlk.ir.types import DType
from rlk.lang.op import Op
from rlk.lower.common.emitted import CallArg, Emitted, From
from rlk.lower.common.lists import columns, rows_of
from rlk.runtime.binding.arguments import MOST_EXTENT, TORCH_DTYPES, VECTOR
from rlk.runtime.binding.candidates import formed
from rlk.runtime.binding.invocation import (
    Invocation,
    Scalars,
    Tensors,
    geometry_of,
    interface,
    judged,
    model_of,
    target_of,
    written_into,
)
from rlk.runtime.binding.selection import Statics, check_names, check_scalars, invoke
from rlk.runtime.binding.shape_buckets import sizes_of
from rlk.runtime.call.dispatch import asked_for, dispatch, entry_key, index_of, kind_of, look_up
from rlk.runtime.call.entry import call, observing, watched
from rlk.runtime.call.mutation import apart, overlap, refuse_shared, span
from rlk.runtime.kernels.build import obtain
from rlk.runtime.kernels.loader import interpret, load
from rlk.schedule.schedule import Schedule
from rlk.target.facts import HOPPER, Target, target

Own = Mapping[str, Sequence[float | int]]
"""The scalars of which each item has its own, by name."""


def call_each(
    op: Op,
    items: Sequence[Tensors],
    scalars: Scalars,
    own: Own,
    statics: Statics,
    math: str | None = None,
    repeated: list[Repeated] | None = None,
) -> list[Tensors]:
    """Run an operator on each item of lists and return the outputs of each by name.

    repeated: gets what runs the same launches again, where all outputs go into inputs and launches run all.

    items: the tensors of each. scalars: those that all items share; own: lists of the others. The bits are
    those of one call after the other; what an item writes must not overlap another's tensors. Items run by
    one launch where the operator is elementwise along the one dim of its tensors, for all that have dtypes
    and alignments in common. Raises LaunchError; for numbers and overlaps before anything is launched.
    """
    lengths = {name: len(values) for name, values in own.items() if len(values) != len(items)}
    for name, length in lengths.items():
        wanted = f"one for each of {len(items)} items"
        raise LaunchError(Code.ARG_VALUE, op=op.name, name=name, value=f"{length} numbers", wanted=wanted)
    numbers = [scalars | {name: values[i] for name, values in own.items()} for i in range(len(items))]
    made: list[Tensors | None] = [None] * len(items)
    if not observing():
        for number in numbers:
            check_scalars(op, number)
        _check_apart(op, items)
    groups = _groups(op, items)
    launches = [
        _launch_of(op, group, items[members[0]], numbers[members[0]], own, statics, math)
        for group, members in groups.items()
    ]
    for members, launch in zip(groups.values(), launches, strict=True):
        if launch is not None:
            found = launch.run([items[i] for i in members], scalars, [numbers[i] for i in members])
            for i, outputs in zip(members, found or (), strict=False):
                made[i] = outputs
    if repeated is not None and None not in made and all(x is not None and x.in_place for x in launches):
        repeated.append(Repeated(op, tuple([x for x in launches if x is not None])))
    return [
        call(op, item, number, statics, math) if outputs is None else outputs
        for item, number, outputs in zip(items, numbers, made, strict=True)
    ]


def _groups(op: Op, items: Sequence[Tensors]) -> dict[tuple[Any, ...], list[int]]:
    """Return the items that one launch may run, by what selects its code."""
    found: dict[tuple[Any, ...], list[int]] = {}
    if observing():
        return found
    for i, item in enumerate(items):
        values = tuple(item.values())
        if watched(*values) or not _is_flat(values):
            continue
        if torch.is_grad_enabled() and any(t.requires_grad for t in values):
            continue
        aligned = tuple(t.data_ptr() % VECTOR == 0 for t in values)
        key = (tuple(item), tuple(t.dtype for t in values), values[0].device, aligned)
        found.setdefault(key, []).append(i)
    return found


def _is_flat(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors have one dim of one length, no gaps, and a device that launches kernels."""
    first = tensors[0] if tensors else None
    if first is None or first.dim() != 1 or not 0 < first.numel() <= MOST_EXTENT:
        return False  # a call of its own refuses more
    runs = first.is_cuda or (first.device.type == "cpu" and dispatch.interpreter is not None)
    same = all(t.shape == first.shape and t.device == first.device for t in tensors)
    return runs and same and all(t.stride(0) == 1 and not t.is_neg() for t in tensors)


@dataclass(slots=True)
class _Launch:
    """The kernel of a group, and the tables that it was last launched with.

    tile: elements of a program. outs: outputs with dtypes; into: those that go into inputs. rows: what the
    tables say. programs: of the launch. stream: on which the tables were copied to the device. current:
    whether calls would still be bound so.
    """

    host: Any
    columns: tuple[CallArg, ...]
    decls: Mapping[str, Decl]
    tile: int
    shared: tuple[str, ...]
    outs: tuple[tuple[str, torch.dtype], ...]
    into: Mapping[str, str]
    device: torch.device
    rows: list[tuple[int, ...]] = field(default_factory=list)
    tables: tuple[torch.Tensor, ...] = ()
    programs: int = 0
    stream: int | None = None
    current: bool = True

    @property
    def in_place(self) -> bool:
        """True if every output goes into an input."""
        return all(name in self.into for name, _ in self.outs)

    def stream_now(self) -> int | None:
        """Return the stream of a launch now; None without a device, and -1 while a graph is captured."""
        if self.device.type != "cuda":
            return None
        if torch.cuda.is_current_stream_capturing():
            return -1
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def run(
        self, items: Sequence[Tensors], scalars: Scalars, numbers: Sequence[Scalars]
    ) -> list[Tensors] | None:
        """Launch the kernel for some items and return their outputs.

        None, and nothing launched, while a graph is captured for other tensors than the last: a table that is
        copied to the device once would be gone when the graph is replayed.
        """
        made = [self._outputs(item) for item in items]
        extents = [next(iter(item.values())).numel() for item in items]
        counts = tuple(-(-n // self.tile) for n in extents)
        memory = [item | outputs for item, outputs in zip(items, made, strict=True)]
        rows = rows_of_table(self.columns, self.decls, memory, extents, numbers, counts)
        stream = self.stream_now()
        capturing = stream == -1
        if rows != self.rows or not (capturing or stream == self.stream):
            if capturing:
                return None
            self.tables = tuple(map(self._sent, as_tables(rows, counts)))
            self.rows, self.programs, self.stream = rows, sum(counts), stream
        if capturing:
            _captured.append(self.tables)
        self.host(*self.tables, self.programs, *(scalars[name] for name in self.shared))
        written = [item[name] for item in items for name in self.into.values()]
        torch.autograd.graph.increment_version([t for t in written if not t.is_inference()])
        return made

    def _outputs(self, item: Tensors) -> Tensors:
        """Return what an item's outputs are written to."""
        like = next(iter(item.values()))
        return {
            name: item[self.into[name]] if name in self.into else like.new_empty(like.shape, dtype=dtype)
            for name, dtype in self.outs
        }

    def _sent(self, table: torch.Tensor) -> torch.Tensor:
        """Return a table on the device; the copy is ordered before the launch, and the host goes on."""
        return table.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else table


class Repeated:
    """Runs the launches of a call on lists again, on the same memory with other numbers for all items.

    It holds addresses and no tensor: who calls it has found the memory where it was.
    """

    __slots__ = ("op", "launches")

    def __init__(self, op: Op, launches: Sequence[_Launch]) -> None:
        self.op = op
        self.launches = [(each, each.tables, each.programs, each.stream) for each in launches]

    @property
    def ready(self) -> bool:
        """True if a call would launch the same now: on this stream, outside of a graph, unwatched."""
        if observing() or watched():
            return False
        return all(launch.current and launch.stream_now() == stream for launch, *_, stream in self.launches)

    def run(self, scalars: Scalars) -> None:
        """Launch again, where it is ready. Raises LaunchError."""
        check_scalars(self.op, scalars)
        for launch, tables, programs, _ in self.launches:
            launch.host(*tables, programs, *(scalars[name] for name in launch.shared))


_captured: list[tuple[torch.Tensor, ...]] = []
"""Tables that CUDA graphs read, as long as the process lives."""


def rows_of_table(
    columns: Sequence[CallArg],
    decls: Mapping[str, Decl],
    memory: Sequence[Tensors],
    extents: Sequence[int],
    scalars: Sequence[Scalars],
    counts: Sequence[int],
) -> list[tuple[int, ...]]:
    """Return the rows of the table of `rlk.lower.common.lists`.

    memory: the tensors of each item, outputs too. scalars: its own, at least. counts: of its programs.
    """
    each = zip(memory, extents, scalars, accumulate(counts, initial=0), strict=False)
    return [
        (*(value_of(c, decls, tensors, extent, own) for c in columns), first)
        for tensors, extent, own, first in each
    ]


def value_of(
    column: CallArg, decls: Mapping[str, Decl], tensors: Tensors, extent: int, scalars: Scalars
) -> int:
    """Return an item's number in a column of the table."""
    match column.kind:
        case From.TENSOR:
            return tensors[column.source].data_ptr()
        case From.EXTENT:
            return extent
        case _:
            return _as_integer(scalars[column.source], decls[column.source].type.dtype)


def as_tables(rows: Sequence[tuple[int, ...]], counts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the item of each program, and the table of items."""
    of_program = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), torch.tensor(counts))
    return of_program, torch.tensor(rows, dtype=torch.int64)


def _as_integer(number: float | int, dtype: DType) -> int:
    """Return a scalar as a table has it: an f32 as its bits."""
    if dtype is DType.F32:
        found: int = struct.unpack("<i", struct.pack("<f", number))[0]
        return found
    return int(number)


_known: dict[object, _Launch | None] = {}


def _forget() -> None:
    for launch in filter(None, _known.values()):
        launch.current = False
    _known.clear()


dispatch.forgets(_forget)


def _launch_of(
    op: Op, group: tuple[Any, ...], item: Tensors, scalars: Scalars, own: Own, statics: Statics,
    math: str | None,
) -> _Launch | None:  # fmt: skip
    """Return what launches the items of a group; None where each has launches of its own."""
    key = (op, group, tuple(scalars), tuple(own), tuple(statics.items()), math)
    if key not in _known:
        check_names(op, item, scalars, statics)
        invocation = invoke(op, item, scalars, statics, math)
        look_up(invocation, item)
        _known[key] = _made(invocation, group, item, frozenset(own))
    return _known[key]


def _made(
    invocation: Invocation, group: tuple[Any, ...], item: Tensors, own: frozenset[str]
) -> _Launch | None:
    """Return the launch of an invocation on lists; None where its programs or backends have no such form."""
    device = next(iter(item.values())).device
    on, by = target_of(device) or target(HOPPER), complete()
    geometry = geometry_of(invocation, item)
    known = interface(invocation)
    into = written_into(invocation.spec, [d.name for d in known.outputs])
    if not into.keys() <= known.in_place or (device.type != "cpu" and by.name not in asked_for(on)):
        return None
    many = {name: n << 10 for name, n in geometry.extents.items()}  # a list fills a device
    sizes = sizes_of(invocation, replace(geometry, extents=many))
    model = model_of(invocation, device)
    program, chosen = dispatch.remembered(formed, invocation, model, sizes, on, None)
    try:
        axis = rows_of(program)
    except LoweringError:
        return None
    names = dict(zip(item, group[3], strict=True))
    aligned = {n for n, fits in names.items() if fits}  # lengths are of any number: their ends are apart
    aligned |= {d.name for d in known.outputs if names.get(into.get(d.name, ""), d.name not in into)}
    signature = replace(sizes.signature, divisible=frozenset(aligned), listed=own)
    emitted = by.lower(program, chosen, on, signature, numerics_id=judged(invocation, model, on.name)[0])
    kernel = program.kernels[0]
    outs = tuple((d.name, TORCH_DTYPES[d.type.dtype]) for d in known.outputs)
    _, _, programs, *shared = emitted.call
    return _Launch(
        _host(emitted, program, chosen, on, device), columns(kernel, axis, own),
        {d.name: d for d in kernel.params}, programs.dim, tuple(a.source for a in shared), outs, into, device,
    )  # fmt: skip


def _host(
    emitted: Emitted, program: Any, chosen: tuple[Schedule, ...], on: Target, device: torch.device
) -> Any:
    """Return the host function of a module on lists, compiled and loaded, or for an interpreter."""
    if device.type == "cpu":
        return interpret(emitted, dispatch.interpreters[emitted.backend])
    folder = obtain(entry_key(program, chosen, emitted, on), lambda: emitted, label=emitted.file)
    return load(folder, kind_of(on), index_of(device))[0]


_apart: dict[Op, object] = {}
"""Of each operator, where the tensors of its last lists lie, which are apart."""
dispatch.forgets(_apart.clear)


def _check_apart(op: Op, items: Sequence[Tensors]) -> None:
    """Raise LaunchError where what an item writes overlaps itself or another tensor of any item."""
    written = {*op.into.values()}
    tensors = [
        (name, i, t)
        for i, item in enumerate(items if written else ())
        if not watched(*item.values())  # such items are calls, and may have no memory
        for name, t in item.items()
    ]
    try:
        places = [(name, i, t.data_ptr(), t.dtype, t.shape, t.stride()) for name, i, t in tensors]
    except RuntimeError:  # a tensor without memory, which a call refuses
        return
    if not places or _apart.get(op) == places:
        return
    spans = sorted(((*span(t), name, i, t) for name, i, t in tensors if t.numel()), key=itemgetter(0))
    read: list[tuple[int, str, torch.Tensor]] = []  # those before, each with its end
    write: list[tuple[int, str, torch.Tensor]] = []
    for start, stop, name, i, t in spans:
        read, write = ([each for each in before if each[0] > start] for before in (read, write))
        at, writes = f"{name}[{i}]", name in written
        if writes:
            refuse_shared(op.name, at, t)
        for _, other, there in (*write, *(read if writes else ())):
            if not apart(t, there):
                raise overlap(op.name, *((at, other) if writes else (other, at)))
        (write if writes else read).append((stop, at, t))
    _apart[op] = places
