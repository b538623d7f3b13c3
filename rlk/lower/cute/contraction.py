"""GEMM on Hopper: one TMA producer warp, a pipeline of stages, consumer warpgroups with an epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlk.ir.nodes import Cast
from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.arguments import tiles_of
from rlk.lower.common.emitted import CallArg
from rlk.lower.common.lines import Line
from rlk.lower.common.liveness import live, names_read
from rlk.lower.common.segments import Segments
from rlk.lower.cute import text
from rlk.lower.cute.epilogue_vectorize import EPILOGUE_WORDS
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.gemm import MAGIC, GemmEmitter, Start
from rlk.lower.cute.kernels import (
    Frame,
    KernelText,
    build,
    framed,
    owning,
    sizes,
)
from rlk.lower.cute.plan import ContractionPlan, Merge, TmaTile, refused


@dataclass(frozen=True, slots=True)
class Copied:
    """A factor for the template: `first` is the coordinate of a tile's first row, major its layout.

    own: its name in the kernel: a, b, and numbered ones. operand: what instructions read. atom: of the TMA
    descriptor of its tensor, which another tile may have named. of_rows: whether it is one of A.
    """

    own: str
    operand: str
    atom: str
    of_rows: bool
    name: str
    view: str  # its dims of rows and of the contracted axis
    rows: int
    elements: int
    first: str
    along: str  # the coordinate of its first element of the contracted axis
    major: str
    order: str
    dtype: str
    stage: int  # bytes


def _tuples(merges: tuple[Merge, ...]) -> str:
    """Return merges as text."""
    return str([tuple(merge) for merge in merges])


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A product for the template: its accumulator and its tiles.

    result: the accumulator that the epilogue reads, which `acc` shows by row and column.
    """

    fragment: str
    result: str
    acc: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class PhaseText:
    """A phase for the template: the tiles of its stages, its products, its loaded K steps.

    whole_steps: the number of pipeline steps with all instructions, the first not counted.
    """

    a_tiles: tuple[Copied, ...]
    b_tiles: tuple[Copied, ...]
    products: tuple[Multiplied, ...]
    steps: str
    whole_steps: str

    @property
    def tiles(self) -> tuple[Copied, ...]:
        """Return the tiles of a stage."""
        return *self.a_tiles, *self.b_tiles


STEPS = "steps"  # the number of K steps, where it is dynamic


@dataclass(frozen=True, slots=True)
class ContractionText:
    """Template fields of a GEMM beside its plan."""

    frame: Frame
    plan: ContractionPlan
    phases: tuple[PhaseText, ...]
    dtype: str
    counted: bool  # whether the number of K steps is dynamic, and may be 0
    tiles: str
    width: str  # number of column tiles
    fixed: bool  # whether that is a number
    segments: str
    owns: str
    place: tuple[Line, ...]
    coordinates: tuple[Line, ...]
    of_piece: tuple[Line, ...]  # coordinates of a piece of the contracted axis
    before: tuple[Line, ...]
    piece_before: tuple[Line, ...]  # the same of a piece whose length a tile counts
    piece_loop: str  # the head of the loop over pieces
    has_rows: str  # whether a warpgroup multiplies: some tiles end inside of a segment's last
    init: str  # what their sums are added to, in a loop of a number that a tile counts
    length: str  # of the contracted axis, where tiles are cleared beyond it
    after: tuple[Line, ...]
    vectorized: bool  # whether the epilogue stores vectors through shared memory
    computing_first: tuple[Line, ...]  # what computes A at the first K step, and at others
    computing: tuple[Line, ...]

    @property
    def first(self) -> PhaseText:
        """Return the first phase, whose tiles lay out the stages."""
        return self.phases[0]

    @property
    def a(self) -> Copied:
        """Return the first tile of A; the others have its layout."""
        return self.first.a_tiles[0]

    @property
    def b(self) -> Copied:
        """Return the first tile of B."""
        return self.first.b_tiles[0]

    @property
    def products(self) -> tuple[Multiplied, ...]:
        """Return the products of all phases."""
        return tuple(product for phase in self.phases for product in phase.products)

    @property
    def described(self) -> tuple[Copied, ...]:
        """Return a tile of each tensor that has a TMA descriptor."""
        every = [tile for phase in self.phases for tile in phase.tiles]
        return tuple({tile.atom: tile for tile in reversed(every)}.values())[::-1]

    @property
    def described_parameters(self) -> str:
        """Return the parameters of the device function for these tensors."""
        return ", ".join(f"{t.atom}: cute.CopyAtom, {t.name}: cute.Tensor" for t in self.described)

    @property
    def described_arguments(self) -> str:
        """Return the host's arguments for them."""
        return ", ".join(f"{t.atom}, {t.name}" for t in self.described)

    @property
    def words(self) -> int:
        """Return the words of epilogue scratch of all warps."""
        return EPILOGUE_WORDS * 4 * self.plan.consumers

    @property
    def magic(self) -> str:
        """Return two 16-bit floats to which bytes are added, as a word."""
        made = self.plan.of_bytes[-1].node
        assert isinstance(made, Cast)
        return f"{MAGIC[made.dtype]:#x}"

    @property
    def by_groups(self) -> bool:
        """Return whether warpgroups multiply, whose instructions are in flight."""
        return not self.plan.by_warps

    @property
    def scratch(self) -> bool:
        """Return whether epilogue scratch is beside the sum that is spilled, where one is, and not in it."""
        return self.vectorized and not self.plan.spilled

    @property
    def merges(self) -> tuple[str, ...]:
        """Return the accumulator of each piece, and its merges."""
        assert self.plan.pieces is not None
        return tuple(
            f"({piece.slot}, {_tuples(piece.before)}, {_tuples(piece.overlapped)}, {piece.spills})"
            for piece in self.plan.pieces.merges
        )

    @property
    def freeing_merges(self) -> str:
        """Return the merges after all pieces that free the accumulator of the first."""
        assert self.plan.pieces is not None
        return _tuples(self.plan.pieces.last[: self.plan.pieces.freeing])

    @property
    def last_merges(self) -> str:
        """Return the other merges after all pieces."""
        assert self.plan.pieces is not None
        return _tuples(self.plan.pieces.last[self.plan.pieces.freeing :])

    @property
    def merge_of_halves(self) -> str:
        """Return the merge with the sum in shared memory, which is read to the spare accumulator."""
        assert self.plan.pieces is not None
        result = self.plan.pieces.result
        return _tuples((Merge(result, self.plan.pieces.spare, result),))

    @property
    def one_writer(self) -> bool:
        """Return whether one of the four threads of a row stores what all of them have."""
        return {"first_of_quad"} <= names_read(self.after)

    @property
    def steps(self) -> str:
        """Return the loaded K steps of all phases."""
        return STEPS if self.plan.steps is None else str(sum(phase.steps or 0 for phase in self.plan.phases))

    @property
    def opening(self) -> int:
        """Return the instructions of the first K step."""
        short = self.plan.pieces is not None and not self.plan.pieces.steps
        return self.plan.pieces.rest if short and self.plan.pieces is not None else self.plan.instructions

    @property
    def ends_short(self) -> bool:
        """Return whether a last K step has fewer instructions."""
        return self.plan.pieces is not None and self.plan.pieces.steps > 0 and self.plan.pieces.rest > 0

    @property
    def band(self) -> str:
        """Return the tiles of a group of row tiles."""
        return str(self.plan.group * int(self.width)) if self.fixed else f"({self.plan.group} * wide)"

    @property
    def counts(self) -> str:
        """Return the names from which the number of tiles is computed."""
        return "tiles" if self.fixed else "tiles, wide"


def write(
    plan: ContractionPlan, helpers: dict[str, Helper], checks: list[str], loop_indices: Mapping[str, str]
) -> KernelText:
    """Write a GEMM kernel."""
    emitter = GemmEmitter(plan, helpers, checks)
    place, owns = emitter.place_of()
    coordinates, of_piece, starts = emitter.coordinates()
    before, piece_before, after = emitter.epilogue()
    loop = None if plan.loop is None else emitter[plan.loop.pieces]
    length = emitter.length() if plan.clears else ""
    after = live(after)
    piece_before = live(piece_before, {STEPS, length})
    later = (*piece_before, *after, *emitter.computing)
    before = live(before, names_read(later) | {STEPS, length, loop or ""})
    phases = _phases(plan, starts)
    counts = _counts(plan, emitter)
    frame, given = _frame(plan, emitter, loop_indices)
    subject = ContractionText(
        frame=frame,
        plan=plan,
        phases=phases,
        dtype=text.TYPES[plan.dtype],
        counted=plan.steps is None,
        tiles=counts.tiles,
        width=counts.width,
        fixed=counts.fixed,
        segments=counts.segments,
        owns=owns,
        place=place,
        coordinates=coordinates,
        of_piece=of_piece,
        before=before,
        piece_before=piece_before,
        piece_loop=_piece_loop(plan, loop),
        has_rows=emitter.has_rows(),
        init="" if plan.loop is None else emitter.literal(plan.loop.init, DType.F32),
        length=length,
        after=after,
        vectorized=emitter.vectorized,
        computing_first=emitter.computing_first,
        computing=emitter.computing,
    )
    _note_helpers(plan, emitter)
    limit = plan.programs // plan.cluster * plan.cluster
    return KernelText(
        template="contraction.py.j2",
        subject=subject,
        arguments=tuple(given),
        sizes=sizes(emitter, counts.extent),
        programs=(f"programs = min({plan.cluster} * {counts.programs}, {limit})",),
        build=build(plan.kernel, given, emitter),
    )


def _note_helpers(plan: ContractionPlan, emitter: GemmEmitter) -> None:
    """Note which prelude functions the template calls."""
    if plan.pieces is not None:
        emitter.uses("put_sums")
    if plan.loop is not None:
        emitter.uses("put_sum")
    if plan.clears:
        emitter.uses("clear_end")
    if plan.prologue:
        emitter.uses("by_rows", "put_pairs")
    if plan.of_bytes:
        emitter.uses("byte_places")
    if plan.by_warps:
        emitter.uses("tile_registers", "matrix_places", "warp_products")


def _piece_loop(plan: ContractionPlan, count: str | None) -> str:
    if plan.pieces is not None:
        return f"for {plan.pieces.index} in cutlass.range({plan.pieces.count}, unroll=1):"
    return "" if plan.loop is None else f"for {plan.loop.index} in cutlass.range({count}, unroll=1):"


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of row tiles and of column tiles, as a kernel and as the host compute them.

    fixed: whether that of column tiles is a number. extent: an argument of the host's. segments: the line
    that counts the tiles of segments on the device.
    """

    tiles: str
    width: str
    fixed: bool
    programs: str
    extent: str
    segments: str = ""


def _counts(plan: ContractionPlan, emitter: GemmEmitter) -> Counts:
    if plan.segments is not None:
        return _counts_of_segments(plan, plan.segments, emitter)
    extent = emitter.memory.extent(plan.rows.axis)
    each = plan.rows.tile * plan.cluster
    tiles = f"({extent} + {each - 1}) // {each}"
    known = math.prod(tiled.tiles or 1 for tiled in plan.others)
    counted = [tiled for tiled in plan.others if tiled.tiles is None]
    if not counted:
        return Counts(tiles, str(known), True, f"({tiles}) * {known}", extent)
    (tiled,) = counted
    count = tiles_of(emitter.memory.extent(tiled.axis), tiled.tile)
    width = count if known == 1 else f"({count} * {known})"
    return Counts(tiles, width, False, f"({tiles}) * {width}", extent)


def _counts_of_segments(plan: ContractionPlan, found: Segments, emitter: GemmEmitter) -> Counts:
    """Count the tiles of all segments from their lengths, on the device; the host knows an upper bound.

    No work item is a tile without rows, so that the blocks have equal numbers of tiles.
    """
    rows, size = emitter.memory.argument(abi.extent(found.whole)), plan.tile_of_segment
    segments = emitter.memory.extent(found.over)
    given = found.begin, found.end, "cute.arch.lane_idx()", rows, segments, str(size)
    line = f"ends, segment_tiles = {emitter.call('segment_ends', *given)}"
    known = math.prod(tiled.tiles or 1 for tiled in plan.others)
    bound = f"min({rows}, {rows} // {size} + {segments})"
    if not plan.columns_of_segments:
        return Counts("segment_tiles", str(known), True, f"{known} * {bound}", rows, line)
    assert plan.rows.tiles is not None
    tiles = -(-plan.rows.tiles // plan.cluster)
    width = "segment_tiles" if known == 1 else f"(segment_tiles * {known})"
    return Counts(str(tiles), width, False, f"{known * tiles} * {bound}", rows, line)


def _frame(
    plan: ContractionPlan, emitter: GemmEmitter, loop_indices: Mapping[str, str]
) -> tuple[Frame, list[CallArg]]:
    """Return the frame of a GEMM kernel, and its arguments."""
    names = [tma_tile.factor.load.param for tma_tile in plan.tma_tiles]
    copied = {n: 16 // tile.dtype.bytes for n, tile in zip(names, plan.tma_tiles, strict=True)}
    orders = {name: tma_tile.order for name, tma_tile in zip(names, plan.tma_tiles, strict=True)}
    return framed(plan, emitter, loop_indices, owning(plan), copied=copied, orders=orders)


def _phases(plan: ContractionPlan, starts: list[Start]) -> tuple[PhaseText, ...]:
    """Return the phases; all tiles of one tensor have one TMA descriptor."""
    described: dict[str, dict[str, TmaTile]] = {"a": {}, "b": {}}
    left, products, found = iter(starts), 0, []
    for phase in plan.phases:
        sides = []
        for (side, first), tiles in zip(described.items(), (phase.a_tiles, phase.b_tiles), strict=True):
            for tile in tiles:
                first.setdefault(tile.factor.load.param, tile)
            atoms = [f"tma_{text.numbered(side, [*first].index(t.factor.load.param))}" for t in tiles]
            owns = [text.numbered(side, i) for i in range(len(tiles))]
            named = zip(tiles, owns, atoms, strict=True)
            sides.append(
                tuple(_copied(plan, t, next(left), own, atom, side == "a") for t, own, atom in named)
            )
        a_tiles, b_tiles = sides
        multiplied = tuple(
            _multiplied(plan, a_tiles[p.a], b_tiles[p.b], i) for i, p in enumerate(phase.products, products)
        )
        products += len(multiplied)
        steps = STEPS if phase.steps is None else str(phase.steps)
        whole = steps if plan.pieces is None else str(max(1, plan.pieces.steps))
        found.append(PhaseText(a_tiles, b_tiles, multiplied, steps, whole))
    orders = {tile.factor.load.param: tile.order for tile in plan.tma_tiles}
    turned = {t.factor.load.param for t in plan.tma_tiles if t.order != orders[t.factor.load.param]}
    for name in sorted(turned.union(set(described["a"]).intersection(described["b"]))):
        raise refused(f"a contraction of {name} with itself", plan.target)
    return tuple(found)


def _multiplied(plan: ContractionPlan, a: Copied, b: Copied, index: int) -> Multiplied:
    fragment, acc = text.numbered("fragment", index), text.numbered("acc", index)
    return Multiplied(fragment, "total" if plan.loop is not None else fragment, acc, a.operand, b.operand)


def _copied(
    plan: ContractionPlan, tma_tile: TmaTile, start: Start, own: str, atom: str, of_rows: bool
) -> Copied:
    name = tma_tile.factor.load.param
    return Copied(
        own=own,
        operand=f"{own}_operand" if own in {decl.name for decl in plan.kernel.params} else own,
        atom=atom,
        of_rows=of_rows,
        name=name,
        view=f"{name}[None, None, {', '.join(start.batch)}]" if start.batch else name,
        rows=tma_tile.rows,
        elements=tma_tile.rows * plan.depth * plan.ring.stages,
        first=start.first,
        along=start.along,
        major="MN" if tma_tile.transposed else "K",
        order="COL_MAJOR" if tma_tile.transposed else "ROW_MAJOR",
        dtype=text.TYPES[tma_tile.dtype],
        stage=tma_tile.rows * plan.depth * tma_tile.dtype.bytes,
    )
