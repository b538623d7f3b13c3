"""Calls on a device, run under a given schedule, and repeated by the oracle on a few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rlk.errors import ScheduleError, UnsupportedError
from rlk.ir.nodes import Decl, Dot, Kernel, MathModel, Role
from rlk.ir.types import DType
from rlk.lang.op import Op, Variant, declared
from rlk.passes.walk import walk
from rlk.runtime.binding.arguments import TORCH_DTYPES, Geometry, measure
from rlk.runtime.binding.invocation import (
    Invocation,
    Scalars,
    Tensors,
    inputs_of,
    model_of,
    operator_of,
    outputs_of,
    row_axis,
    shape_givers,
    target_of,
)
from rlk.runtime.call.dispatch import bind_lowered, dispatch, lowered
from rlk.runtime.call.oracle import bind_oracle
from rlk.schedule.schedule import Schedule

Schedules = tuple[Schedule, ...]
Change = Callable[[Schedule], Schedule]


@dataclass(frozen=True)
class Case:
    """A call: the operator, its sizes, and what is not drawn from a normal distribution.

    rows: which rows the oracle repeats (all when None). sequences: how many of the first sequences it repeats
    alone, so that what others do to them is seen (all when None). wanted: run the gradient to these inputs
    instead of the forward. cotangents: the outputs whose gradient is given (all that it takes when None).
    changes: of the chosen schedules (CHANGES when None).
    """

    op: Op
    extents: Mapping[str, int]
    scalars: Scalars = field(default_factory=dict)
    present: tuple[str, ...] = ()
    statics: Mapping[str, object] = field(default_factory=dict)
    f: DType = DType.BF16
    scale: float = 1.0
    given: Callable[[torch.device], Tensors] | None = None
    edit: Callable[[Tensors], None] | None = None
    rows: tuple[int, ...] | None = None
    sequences: int | None = None
    wanted: tuple[str, ...] = ()
    cotangents: tuple[str, ...] | None = None
    extra: Callable[[Tensors], Tensors] | None = None
    changes: tuple[Change, ...] | None = None


@dataclass(frozen=True)
class Made:
    """A case with its tensors."""

    invocation: Invocation
    tensors: Tensors
    scalars: Scalars
    rows: tuple[int, ...] | None
    sequences: int | None
    changes: tuple[Change, ...]

    @property
    def first(self) -> dict[str, int]:
        """Return the numbers of indices of ragged axes, by name, that belong to the first sequences."""
        if self.sequences is None:
            return {}
        ends = {"T": "end_q", "S": "end_k"}
        found = {a: int(self.tensors[n][self.sequences - 1]) for a, n in ends.items() if n in self.tensors}
        return {"B": self.sequences, **found}


def forward_of(case: Case) -> Invocation:
    """Return the invocation of a case's operator."""
    dtypes = {name: case.f if dtype.is_float else dtype for name, dtype in case.op.default_variant().dtypes}
    statics = {**dict(case.op.default_variant().statics), **case.statics}
    return Invocation(case.op, Variant.of(dtypes, set(case.present) | set(case.scalars), statics))


def cotangents_of(case: Case) -> tuple[str, ...]:
    """Return the outputs whose gradient a case gives: those it names, or all that the gradient takes."""
    assert case.op.gradient is not None
    if case.cotangents is not None:
        return case.cotangents
    takes = {f.name.removeprefix("d_") for f in case.op.gradient.formals}
    return tuple(d.name for d in outputs_of(forward_of(case)) if d.name in takes)


def invocation_of(case: Case) -> Invocation:
    """Return what a case runs: its operator, or the gradient."""
    forward = forward_of(case)
    if not case.wanted:
        return forward
    assert case.op.gradient is not None
    v, given = forward.variant, {f"d_{name}" for name in cotangents_of(case)}
    variant = Variant(v.dtypes, v.present | given, v.statics, frozenset(case.wanted))
    return Invocation(case.op.gradient, variant)


def make(case: Case, device: torch.device) -> Made:
    """Draw the inputs of a case; for a gradient, run the forward for what it saves."""
    forward = forward_of(case)
    tensors = case.given(device) if case.given else {}
    for formal in case.op.formals:
        decl = declared(formal, forward.variant)
        if decl is not None and decl.role is Role.IN and decl.name not in tensors:
            tensors[decl.name] = drawn(decl, case.extents, case.scale, device)
    if case.edit:
        case.edit(tensors)
    if case.wanted:
        tensors = saved_and_given(case, forward, tensors)
    changes = case.changes or CHANGES
    return Made(invocation_of(case), tensors, case.scalars, case.rows, case.sequences, changes)


def saved_and_given(case: Case, forward: Invocation, tensors: Tensors) -> Tensors:
    """Return a gradient's inputs: what the forward saves, and random cotangents."""
    made = dispatch(forward, tensors, case.scalars)
    saved = {n: t for n, t in {**tensors, **made}.items() if n in case.op.saves}
    given = {
        f"d_{n}": torch.randn(made[n].shape, device=made[n].device).to(made[n].dtype)
        for n in cotangents_of(case)
    }
    return saved | given | (case.extra(saved) if case.extra else {})


def drawn(decl: Decl, extents: Mapping[str, int], scale: float, device: torch.device) -> torch.Tensor:
    """Draw a float tensor; in pieces of its dtype, so that the largest cost no f32 copy."""
    shape = tuple(extents[axis.name] for axis in decl.type.axes)
    dtype = TORCH_DTYPES[decl.type.dtype]
    if not dtype.is_floating_point:
        raise ValueError(f"{decl.name} must be given")
    return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, scale)


# --- rows ---


def reads(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the tensors that say what a call's sizes are: those its kernels read, and the operator's own."""
    decls = [d for d in inputs_of(invocation) if d.role is Role.IN]
    names = {d.name for d in decls}
    return (*decls, *(d for d in shape_givers(invocation) if d.name not in names))


def geometry_of(invocation: Invocation, tensors: Tensors) -> Geometry:
    """Return the sizes of a call."""
    decls = tuple(d for d in reads(invocation) if d.name in tensors)
    given = {d.name: tensors[d.name] for d in decls}
    found = measure(invocation.spec.name, row_axis(invocation.spec), decls, given)
    return replace(found, extents=operator_of(invocation.spec).bounded(found.extents))


def sampled(made: Made, tensors: Tensors, decls: tuple[Decl, ...]) -> Tensors:
    """Return the rows of every tensor that the oracle repeats, on the CPU."""
    rows, first = row_axis(made.invocation.spec), made.first
    found = {}
    for decl in decls:
        if decl.name not in tensors:
            continue
        tensor = tensors[decl.name]
        if made.rows is not None and decl.type.axes and decl.type.axes[0] == rows:
            tensor = tensor[torch.tensor(made.rows, device=tensor.device)]
        for dim, axis in enumerate(decl.type.axes):
            tensor = tensor.narrow(dim, 0, first.get(axis.name, tensor.shape[dim]))
        found[decl.name] = tensor.cpu()
    return found


# --- runs ---


def variations(made: Made) -> Iterator[Schedules]:
    """Yield schedules that the lowering accepts: the chosen one, other warps, stages, tiles, dim orders."""
    device = next(iter(made.tensors.values())).device
    lowering = _lowered(made, device, None)
    assert lowering is not None
    kernels, chosen = lowering
    dots = [any(isinstance(let.node, Dot) for let in walk(k.body)) for k in kernels]
    seen: list[Schedules] = []
    for change in made.changes:
        every = not isinstance(change, OfDots)
        schedules = tuple(change(s) if every or dot else s for s, dot in zip(chosen, dots, strict=True))
        if schedules not in seen and _lowered(made, device, schedules) is not None:
            seen.append(schedules)
            yield schedules


def _wider(schedule: Schedule) -> Schedule:
    return replace(schedule, tiles=tuple((axis, 2 * tile) for axis, tile in schedule.tiles))


def _narrower(schedule: Schedule) -> Schedule:
    return replace(schedule, tiles=tuple((axis, max(1, tile // 2)) for axis, tile in schedule.tiles))


CHANGES: tuple[Change, ...] = (
    lambda s: s,
    lambda s: replace(s, warps=1),
    lambda s: replace(s, warps=2),
    lambda s: replace(s, warps=4),
    lambda s: replace(s, warps=8),
    lambda s: s.with_tile("T", 2),
    lambda s: replace(s.with_tile("T", 4), warps=8),
    lambda s: replace(s, placed=(), warps=4),
    lambda s: replace(s, placed=tuple(reversed(s.placed)), warps=4),
    lambda s: replace(s, stages=3),
    lambda s: replace(_wider(s), warps=4),
    _narrower,
)


WIDE_CHANGES: tuple[Change, ...] = (
    lambda s: s,
    lambda s: replace(s, warps=8),
    lambda s: replace(s, warps=32),
    lambda s: replace(s, stages=2),
)
"""Of rows whose steps fill the registers of many warps: for fewer, or for two rows at once, Triton's compiler
takes minutes where it takes three seconds for these."""


def _tiled(schedule: Schedule, tile: int, **fields: Any) -> Schedule:
    """Return a contraction's schedule with square tiles, by default a program each, nothing in parts."""
    plain: dict[str, Any] = {"programs": 0, "flat": False, "parts": 1}
    return replace(schedule, tiles=tuple((axis, tile) for axis, _ in schedule.tiles), **{**plain, **fields})


@dataclass(frozen=True)
class OfDots:
    """A change of the schedules of contractions; other kernels keep theirs."""

    change: Change

    def __call__(self, schedule: Schedule) -> Schedule:
        return self.change(schedule)


DOT_CHANGES: tuple[Change, ...] = (
    lambda s: s,
    OfDots(lambda s: replace(s, descriptors=False, stages=3)),
    OfDots(lambda s: _tiled(s, 64, depth=32, stages=3, warps=4)),
    OfDots(lambda s: _tiled(s, 128, depth=64, stages=2, warps=8, parts=2)),
    OfDots(lambda s: _tiled(s, 128, depth=64, stages=3, warps=8, programs=17, flat=True, group=3)),
    OfDots(lambda s: _tiled(s, 64, depth=64, stages=4, warps=4, programs=100, group=5)),
    OfDots(lambda s: _tiled(s, 16, depth=16, stages=1, warps=1)),
)
"""Of the schedules of contractions: loads, tiles, turns, one loop, parts."""


def _rows(tile: int) -> Change:
    """Return a change of how many rows share what goes by; other kernels keep theirs."""

    def change(schedule: Schedule) -> Schedule:
        rows = next((name for name in ("Q*G", "C*G", "J") if name in dict(schedule.tiles)), None)
        return schedule if rows is None else schedule.with_tile(rows, tile)

    return change


ATTENTION_CHANGES: tuple[Change, ...] = (
    lambda s: s,
    _rows(16),
    lambda s: replace(_rows(64)(s), warps=4),
    lambda s: replace(_rows(128)(s), warps=8, stages=2),
    lambda s: replace(_rows(64)(s), warps=8, stages=3),
    lambda s: replace(_rows(32)(s), warps=2, stages=1),
    lambda s: replace(_rows(16)(s), warps=2, stages=2),
    lambda s: replace(_rows(32)(s), warps=4, stages=2),
)
"""Of the schedules of attention: rows of a tile, warps, loads ahead."""
WIDE_ATTENTION_CHANGES: tuple[Change, ...] = (
    lambda s: s,
    lambda s: replace(_rows(16)(s), stages=1),
    lambda s: replace(_rows(32)(s), warps=4, stages=1),
)
"""Of those of gradients with wide heads: longer tiles would not fit shared memory."""


def _lowered(
    made: Made, device: torch.device, schedules: Schedules | None
) -> tuple[tuple[Kernel, ...], Schedules] | None:
    on, model = target_of(device), model_of(made.invocation, device)
    assert on is not None
    geometry = geometry_of(made.invocation, made.tensors)
    try:
        program, _, chosen, _ = lowered(made.invocation, model, geometry, made.tensors, on, schedules)
        return program.kernels, chosen
    except (ScheduleError, UnsupportedError):
        if schedules is None:
            raise
        return None


def on_device(made: Made, schedules: Schedules) -> Tensors:
    """Run a call under these schedules and return its outputs, the sampled rows of those that have rows."""
    device = next(iter(made.tensors.values())).device
    on, model = target_of(device), model_of(made.invocation, device)
    assert on is not None
    geometry = geometry_of(made.invocation, made.tensors)
    run = bind_lowered(made.invocation, model, geometry, made.tensors, on, device, schedules)
    outputs = run(made.tensors, made.scalars)
    torch.cuda.synchronize(device)
    return sampled(made, outputs, outputs_of(made.invocation))


def by_oracle(case: Case, tensors: Tensors, model: MathModel) -> Tensors:
    """Run the oracle on CPU tensors: the sampled rows alone."""
    invocation = invocation_of(case)
    return bind_oracle(invocation, model, geometry_of(invocation, tensors))(tensors, case.scalars)
