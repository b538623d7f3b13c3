"""Plan of a Triton kernel: axes on the grid or as dims of tensors, and their order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlk.errors import Code, LoweringError, ScheduleError
from rlk.ir.dims import Axis, Part, fixed_extent
from rlk.ir.nodes import Dot, Kernel, Load, Loop, Merge, Pos, Reduce, Role, Value
from rlk.ir.types import TileType
from rlk.lower.common.bounds import bounds
from rlk.lower.common.contract import unfused_error
from rlk.lower.common.emitted import Signature
from rlk.lower.common.hoist_loads import hoist_loads, load_levels
from rlk.lower.common.peel import peel
from rlk.lower.common.segments import Segments, segments
from rlk.lower.common.thread_values import TiledAxis, fewer_elements
from rlk.lower.common.tma_tiles import TmaTile
from rlk.lower.triton.tma_tiles import tma_tiles_of
from rlk.lower.triton.whole_pages import once_a_step
from rlk.passes.rotation import Window, windows
from rlk.passes.walk import walk
from rlk.schedule.attention import ROWS_OF_WARPGROUP, rows_of
from rlk.schedule.axes import Roles, kind, length, roles
from rlk.schedule.schedule import LARGEST_TILE, Schedule, Span
from rlk.target.facts import Target

SMALLEST_TILE = 16  # of a factor of tl.dot
MOST_LISTED = 1024  # segments whose bounds a program reads at once
ALIGNED = 16  # elements of a whole vector of any dtype: of 16 bytes at most


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
class TritonPlan:
    """A kernel with peeled loops; the axes that are tiled over programs; the dims of a program's tensors.

    segments: those of the rows, if another axis has a segment of rows per index. outer: the axis of query
    rows of fused attention. tma_tiles: its streamed factors, if they are TMA loads; its loops are not peeled
    then. remainder: the only axis of a kernel's tensors, if its last elements, too few for a vector, have a
    tile of their own: Triton loads vectors where it can prove that their elements share a mask. windows:
    chunks that are read by whole vectors and rotated, by the value of their load and that of their indices.
    by_lanes: the only axis of tensors whose neighbours are in neighbouring lanes, not in a vector of one.
    """

    kernel: Kernel
    kind: str
    tiled: tuple[TiledAxis, ...]
    dims: tuple[Dim, ...]
    signature: Signature
    schedule: Schedule
    target: Target
    segments: Segments | None = None
    outer: Axis | None = None
    tma_tiles: Mapping[Value, TmaTile] = field(default_factory=dict)
    remainder: TiledAxis | None = None
    windows: Mapping[Value, Window] = field(default_factory=dict)
    by_lanes: Axis | None = None

    @property
    def listed(self) -> int | None:
        """The number of segments, where a program reads the bounds of all at once; None: it bisects them."""
        over = next(
            (s for s in self.tiled if self.segments is not None and s.axis == self.segments.over), None
        )
        return None if over is None or (over.length or MOST_LISTED + 1) > MOST_LISTED else over.length

    def dims_of(self, axes: tuple[Axis, ...]) -> tuple[Dim, ...]:
        """Return the dims of a value over these axes.

        With an outer axis every value has two: that one, and one of the others.
        """
        if self.outer is None:
            return self.dims
        outer = [d for d in self.dims if d.axis == self.outer]
        inner = [d for d in self.dims if d.axis != self.outer]
        return (*outer, next((d for d in inner if d.axis in axes), inner[0]))

    def shape(self, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        """Return the shape of a value over these axes: length 1 along every other dim; () for a scalar."""
        dims = self.dims_of(axes)
        if not any(d.axis in axes for d in dims):
            return ()
        return tuple(d.length if d.axis in axes else 1 for d in dims)


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
    schedule.check_powers()
    extents = dict(signature.extents)
    nest, outer = kind(kernel), None
    stepped = once_a_step(kernel) if nest == "back_to_back_gemm" and target.vendor == "nvidia" else kernel
    bounded = bounds(stepped, dict(roles(stepped, extents).inside))
    found = roles(bounded, extents)
    rows_axis = rows_of(bounded, found) if stepped is not kernel else None
    few = rows_axis is not None and schedule.tile(str(rows_axis)) < ROWS_OF_WARPGROUP
    peeled = bounded if few else peel(bounded)  # a step of few rows is shorter than filling its stages anew
    found = roles(peeled, extents)
    tiled = tuple(TiledAxis(a, schedule.tile(str(a)), fixed_extent(a, extents)) for a in found.parallel)
    lengths = [(s.axis, s.tile) for s in tiled if s.tile > 1]
    lengths += [(a, n) for a, n in found.inside if n > 1]
    tma_tiles: dict[Value, TmaTile] = {}
    if nest == "back_to_back_gemm":
        dims = tuple(_attention_dims(peeled, tiled, found, extents))
        outer = dims[0].axis
        if target.descriptors and schedule.descriptors:
            tma_tiles = tma_tiles_of(bounded, outer, {dim.axis: dim.length for dim in dims}, signature)
            peeled = bounded if tma_tiles else peeled
    else:
        dims = _placed(schedule.placed, lengths)
    if schedule.placed and version >= (3, 7):
        dims = (*dims[-2::-1], dims[-1])
    elements = 1
    for dim in dims if outer is None else (dims[0], max(dims[1:], key=lambda d: d.length)):
        elements *= dim.length
    # and pieces, of which a program has all
    inside = [*found.inside, *((s.axis, s.tile) for s in tiled if s.axis.part is Part.PIECE)]
    whole = math.prod(n for _, n in inside)
    if whole > LARGEST_TILE:
        axes = " x ".join(f"{axis} ({n})" for axis, n in inside if n > 1)
        raise LoweringError(
            f"a tile of {whole} elements, {axes}, of which a program may have {LARGEST_TILE}",
            fewer_elements(axis for axis, _ in found.inside),
            backend="triton",
            target=target.name,
        )
    if elements > LARGEST_TILE:
        raise ScheduleError(
            Code.SCHEDULE_FIELD, field="tiles", value=elements, why=f"at most {LARGEST_TILE} elements"
        )
    placed = {d.axis for d in dims}
    early = hoist_loads(peeled, lambda type: placed.isdisjoint(type.axes), late=schedule.late)
    ordered = _rows_first(early, extents)
    rows = segments(ordered, found.parallel)
    made = TritonPlan(ordered, nest, tiled, dims, signature, schedule, target, rows, outer, tma_tiles)
    if outer is not None:
        return made
    return replace(made, remainder=_remainder(made), windows=_windows(made), by_lanes=_by_lanes(made))


def _rows_first(kernel: Kernel, extents: Mapping[str, int]) -> Kernel:
    """Return the kernel with the row of a rotated chunk before the indices of its elements, which read it."""
    lets = list(kernel.body.lets)
    for window in windows(kernel, extents):
        order = {let.value: i for i, let in enumerate(lets)}
        load = lets[order[window.load]].node if window.load in order else None
        if isinstance(load, Load) and window.place in order:
            late = [v for v in load.index[:-1] if order.get(v, 0) > order[window.place]]
            moved = [lets[order[v]] for v in late if isinstance(lets[order[v]].node, Pos)]
            lets = [let for let in lets if let not in moved]
            at = next(i for i, let in enumerate(lets) if let.value == window.place)
            lets[at:at] = moved
    return replace(kernel, body=replace(kernel.body, lets=tuple(lets)))


def _windows(plan: TritonPlan) -> dict[Value, Window]:
    """Return the chunks that are read by whole vectors, by their loads and by their indices."""
    lets = {let.value: let for let in walk(plan.kernel.body)}
    found: dict[Value, Window] = {}
    for window in windows(plan.kernel, dict(plan.signature.extents)):
        load = lets[window.load].node
        assert isinstance(load, Load)
        row = lets[load.index[0]]
        one_row = (
            len(load.index) == 2 and isinstance(row.node, Pos) and plan.schedule.tile(str(row.node.axis)) == 1
        )
        near = load.param not in plan.signature.strided and load.param in plan.signature.divisible
        if one_row and near:
            found |= {window.load: window, window.place: window}
    return found


def _remainder(plan: TritonPlan) -> TiledAxis | None:
    """Return the axis of an elementwise kernel of one dimension whose extent no vector divides."""
    if len(plan.tiled) != 1 or plan.schedule.programs or plan.schedule.parts > 1:
        return None
    (only,) = plan.tiled
    if only.tile <= ALIGNED or {dim.axis for dim in plan.dims} != {only.axis}:
        return None
    axis, known = only.axis, only.length
    even = axis.name in plan.signature.divisible if known is None else known % ALIGNED == 0
    combines = any(isinstance(x.node, Loop | Reduce | Merge | Dot) for x in walk(plan.kernel.body))
    return None if even or combines or axis.part is not Part.ALL else only


def _by_lanes(plan: TritonPlan) -> Axis | None:
    """Return the axis of a kernel of one dimension whose loads are issued in levels.

    Those at loaded indices are of single elements. With neighbours in a lane, as the indices are read by
    vectors, each would have a quarter of four lines, and each store 4 of 32 bytes of its sectors.
    """
    if len(plan.dims) != 1 or not plan.schedule.levels or plan.target.vendor != "nvidia":
        return None
    inputs = frozenset(d.name for d in plan.kernel.params if d.role is Role.IN)
    loops = [let.node for let in walk(plan.kernel.body) if isinstance(let.node, Loop)]
    levelled = any(len(load_levels(loop.body.lets, inputs)) > 1 for loop in loops)
    return plan.dims[0].axis if levelled else None


def _attention_dims(
    kernel: Kernel, tiled: tuple[TiledAxis, ...], found: Roles, extents: dict[str, int]
) -> list[Dim]:
    """Place fused attention: its query rows, then the axes that share the inner dim."""
    rows = outer_axis(kernel, tiled, found)
    lengths = [(rows.axis, rows.tile)] + [(s.axis, s.tile) for s in tiled if s.tile > 1 and s is not rows]
    lengths += found.inside
    sized = {axis for axis, _ in lengths}
    lengths += [(a, max(SMALLEST_TILE, length(a, extents))) for a in found.contracted if a not in sized]
    dims = [Dim(axis, 0, n.bit_length() - 1, i) for i, (axis, n) in enumerate(lengths)]
    if min(d.length for d in dims) < SMALLEST_TILE:
        value = ", ".join(f"{d.axis}={d.length}" for d in dims)
        why = f"{SMALLEST_TILE} or more indices of every axis that a matrix unit sees"
        raise ScheduleError(Code.SCHEDULE_FIELD, field="tiles", value=value, why=why)
    return dims


def outer_axis(kernel: Kernel, tiled: tuple[TiledAxis, ...], found: Roles) -> TiledAxis:
    """Return the axis of rows: of those that the computed factor has, the one that is tiled."""
    lets = tuple(walk(kernel.body))
    nodes, types = {x.value: x.node for x in lets}, {x.value: x.type for x in lets}
    for dot in (node for node in nodes.values() if isinstance(node, Dot)):
        for factor in (dot.a, dot.b):
            type = types[factor]
            if not isinstance(nodes[factor], Load) and isinstance(type, TileType):
                along = [s for s in tiled if s.axis in type.axes and s.tile > 1]
                if len(along) == 1:
                    return along[0]
    if rows_of(kernel, found) is None:
        raise unfused_error(kernel)
    raise ScheduleError(
        Code.SCHEDULE_FIELD, field="tiles", value="none", why=f"one axis of rows, {SMALLEST_TILE} or more"
    )


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
