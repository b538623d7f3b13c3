"""Where each axis of a kernel lives in Triton: on the grid, or as dims of a tensor, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.errors import Code, ScheduleError
from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.nodes import Kernel
from rlk.lower.common.bounds import bounds
from rlk.lower.common.early import early
from rlk.lower.common.emitted import Signature
from rlk.lower.common.peel import peel
from rlk.schedule.axes import kind, roles
from rlk.schedule.schedule import Schedule, Span
from rlk.target.facts import Target

LARGEST_TILE = 1 << 17  # elements of a tensor; Triton refuses 2**20, registers end long before


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of every tensor of a program: the index bits [low, low + bits) of an axis.

    rank: dims of lower rank get the lanes and warps of a load before those of higher rank.
    """

    axis: Axis
    low: int
    bits: int
    rank: int = 0

    @property
    def length(self) -> int:
        return 1 << self.bits


@dataclass(frozen=True, slots=True)
class Shared:
    """A parallel axis: programs own `tile` indices of it. `length` is its extent where that is static."""

    axis: Axis
    tile: int
    length: int | None

    @property
    def exact(self) -> bool:
        """Whether no tile reaches beyond the extent."""
        return self.tile == 1 or (self.length is not None and self.length % self.tile == 0)


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A kernel, its loops in two parts; the axes that programs share out; the dims of their tensors."""

    kernel: Kernel
    kind: str
    shared: tuple[Shared, ...]
    dims: tuple[Dim, ...]
    signature: Signature
    schedule: Schedule
    target: Target

    def shape(self, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        """Return the shape of a value over these axes: length 1 along every other dim; () for a scalar."""
        if not any(d.axis in axes for d in self.dims):
            return ()
        return tuple(d.length if d.axis in axes else 1 for d in self.dims)


def plan(
    kernel: Kernel,
    schedule: Schedule,
    target: Target,
    signature: Signature,
    version: tuple[int, int] = (3, 6),
) -> TritonPlan:
    """Place every axis of a specialized kernel; raise ScheduleError where the schedule does not fit it.

    version: of Triton, whose layouts hand out lanes and warps from the first dim on up to 3.6, and from the
    last but one down since 3.7.
    """
    extents = dict(signature.extents)
    peeled = peel(bounds(kernel, dict(roles(kernel, extents).inside)))
    found = roles(peeled, extents)
    shared = tuple(Shared(a, schedule.tile(str(a)), fixed_extent(a, extents)) for a in found.parallel)
    lengths = [(s.axis, s.tile) for s in shared if s.tile > 1]
    lengths += [(a, n) for a, n in found.inside if n > 1]
    dims = _placed(schedule.placed, lengths)
    if schedule.placed and version >= (3, 7):
        dims = (*dims[-2::-1], dims[-1])
    elements = 1
    for dim in dims:
        elements *= dim.length
    if elements > LARGEST_TILE:
        raise ScheduleError(
            Code.SCHEDULE_FIELD, field="tiles", value=elements, why=f"at most {LARGEST_TILE} elements"
        )
    placed = {d.axis for d in dims}
    ordered = early(peeled, lambda type: placed.isdisjoint(type.axes))
    return TritonPlan(ordered, kind(kernel), shared, dims, signature, schedule, target)


def _placed(spans: tuple[Span, ...], lengths: list[tuple[Axis, int]]) -> tuple[Dim, ...]:
    """Return the dims in the order of the schedule's spans, then whole axes that no span names."""
    axes = {str(axis): (axis, length.bit_length() - 1) for axis, length in lengths}
    covered: dict[str, set[int]] = {}
    dims: list[Dim] = []
    for span in spans:
        axis, bits = axes.get(span.axis, (None, 0))
        if axis is None:
            continue
        mine, taken = set(range(span.low, span.low + span.bits)), covered.setdefault(span.axis, set())
        if span.bits < 1 or not mine <= set(range(bits)) or mine & taken:
            raise ScheduleError(
                Code.SCHEDULE_FIELD,
                field="placed",
                value=str(span),
                why=f"disjoint spans of {bits} index bits",
            )
        taken |= mine
        dims.append(Dim(axis, span.low, span.bits, len(dims)))
    for name, taken in covered.items():
        if len(taken) != axes[name][1]:
            raise ScheduleError(
                Code.SCHEDULE_FIELD,
                field="placed",
                value=name,
                why="spans that name every index bit of the axis",
            )
    rest = [(axis, length) for axis, length in lengths if str(axis) not in covered]
    whole = [Dim(axis, 0, n.bit_length() - 1, len(dims) + i) for i, (axis, n) in enumerate(rest)]
    return (*dims, *whole)
