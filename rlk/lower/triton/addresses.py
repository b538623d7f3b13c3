"""Program indices on the grid, and the text of loads, stores and checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from rlk.ir.dims import Axis, union
from rlk.ir.nodes import Decl, Let, Load, Loop, Role, Store, Value
from rlk.ir.tree import padded
from rlk.ir.types import DType
from rlk.lower.common import abi, lists
from rlk.lower.common.arguments import Arguments, tiles_of
from rlk.lower.common.contract import implies
from rlk.lower.common.names import axis_name
from rlk.lower.common.segments import Segments
from rlk.lower.common.spelling import row_number
from rlk.lower.common.thread_values import TiledAxis
from rlk.lower.triton.plan import ALIGNED, Dim, TritonPlan
from rlk.lower.triton.writer import Writer
from rlk.passes.rotation import VECTOR, Window
from rlk.passes.walk import walk

ERRORS = abi.ERRORS.name
FEW_ROWS = 16  # of a tile, up to which segments are thought to have a tile each


@dataclass(frozen=True, slots=True)
class RowTile:
    """A tile of rows in its segment: the first row, the segment's length, and the other indices, as text."""

    first: str
    length: str
    rest: str


class Addresses(Arguments):
    """The part of an emitter that knows programs, pointers, strides and bounds.

    `arguments` collects the kernel's parameters beside tensors and scalars, in order of first use.
    """

    def __init__(self, emitter: Writer) -> None:
        self.e = emitter
        self.plan = emitter.plan
        super().__init__(emitter.plan.kernel, emitter.plan.signature, emitter.checks)
        self.first: dict[Axis, str] = {}  # of a tile, where contractions ask for it
        self.limits: dict[Axis, tuple[str, Value]] = {}  # of segments, where no guard says as much
        self.starts: dict[Value, tuple[str, str]] = {}  # of windows: in memory, and in their first vectors
        for decl in self.plan.kernel.params:
            self.e.names.taken.add(decl.name if decl.role is Role.SCALAR else f"{decl.name}_ptr")
            self.e.names.taken |= {axis.name for axis in decl.type.axes}
        self.e.names.taken |= {"tl", "triton", f"{ERRORS}_ptr"}
        if self.plan.signature.listed is not None:
            self.e.names.taken |= {lists.FIRST, lists.ROW, f"{lists.ITEMS}_ptr", f"{lists.TABLE}_ptr"}

    # --- the grid -------------------------------------------------------------------------------------------

    @contextmanager
    def programs(self) -> Iterator[None]:
        """Write the indices of a program's tile along each parallel axis, in a loop over tiles if any."""
        found = self.plan.segments
        if not self.plan.schedule.programs or not self.plan.tiled:
            if found is None:
                self.places(self.program)
            else:
                tile = self.segment("tl.program_id(0)", found)
                with self.e.inner(f"if {tile.first} >= {tile.length}:"):
                    self.e.line("return")
                self.own_segment(tile, found)
            yield
            return
        tiles = self.product(range(len(self.plan.tiled)))
        name = self.e.names.fresh("program")
        if found is not None:
            count = f"({self.tiles_of_segments(found)})"
            others = [i for i, s in enumerate(self.plan.tiled) if s.axis not in (found.axis, found.over)]
            tiles = f"{count} * {self.product(others)}"
        flat = ", flatten=True" if self.plan.schedule.flat and self.e.dots.one_loop else ""
        with self.e.inner(f"for {name} in tl.range(tl.program_id(0), {tiles}, tl.num_programs(0){flat}):"):
            if found is None:
                self.places(name)
                yield
            else:
                tile = self.segment(name, found)
                with self.e.inner(f"if {tile.first} < {tile.length}:"):
                    self.own_segment(tile, found)
                    yield

    @property
    def program(self) -> str:
        """The number of a program; of one on lists of tensors, that of its tile in its item."""
        return "tl.program_id(0)" if self.plan.signature.listed is None else lists.FIRST

    def product(self, indices: Iterable[int]) -> str:
        """Return the number of tiles of some parallel axes together, as an operand."""
        counts = [count for count in map(self.tiles, indices) if count != "1"]
        if all(count.isdigit() for count in counts):
            return str(math.prod(map(int, counts)))
        return " * ".join(counts)

    def places(self, program: str) -> None:
        """Write the indices of a program's current tile."""
        tiled = self.plan.tiled
        if not tiled:
            return
        rest, order = program, list(reversed(range(len(tiled))))
        if len(tiled) > 1 and not rest.isidentifier():
            rest = self.e.let("program", rest)
        banded = self.banded()
        if banded is not None:
            order.remove(banded)
            rest = self.band(banded, rest, order)
        for i in order:
            tile = rest
            if i != order[-1]:
                count = self.tiles(i)
                tile = f"{rest} % {count}"
                rest = self.e.let("program", f"{rest} // {count}")
            self.write_coordinate(i, tile)

    def segment(self, program: str, found: Segments) -> RowTile:
        """Write the row tile of a program, its segment, and the program's number among its other indices.

        The longest rows come first: the last rows of all segments where a row sees the elements before it
        (causal attention), the first rows where it sees the elements after it (gradients of keys). Row tiles
        of a contraction run fastest inside a group (L2 swizzle).
        """
        rows, over = (next(s for s in self.plan.tiled if s.axis == a) for a in (found.axis, found.over))
        tiles = self.e.let("tiles", self.tiles_of_segments(found))
        others = [i for i, s in enumerate(self.plan.tiled) if s not in (rows, over)]
        if self.e.dots.of and self.plan.schedule.group > 1 and self.product(others) != "1":
            later, rest = self.grouped(tiles, program, others[::-1])
            later = f"({later})"
        else:
            later, rest = f"{program} % {tiles}", f"{program} // {tiles}"
        tile = self.e.let("tile", later if self.sees_what_follows(rows.axis) else f"{tiles} - 1 - {later}")
        listed, sizes = self.plan.listed, (str(found.each), str(rows.tile))
        if listed is None:
            search = "segment_near" if rows.tile <= FEW_ROWS else "segment_of"
            owner = self.e.helpers.call(search, f"{found.begin}_ptr", tile, self.extent(over.axis), *sizes)
            name = self.e.let(axis_name(over.axis), owner)
        else:
            bounds, counts = (f"{found.begin}_ptr", f"{found.end}_ptr"), (str(listed), str(padded(listed)))
            owner = self.e.helpers.call("segment_of_few", *bounds, tile, *counts, *sizes)
            name, tile = self.e.names.fresh(axis_name(over.axis)), self.e.names.fresh("tile_of_segment")
            self.e.line(f"{name}, {tile} = {owner}")
        self.coordinates[over.axis] = name
        begin, end = (
            self.e.let(what, f"tl.load({tensor}_ptr + {name}).to(tl.int32) * {found.each}")
            for what, tensor in (("begin", found.begin), ("end", found.end))
        )
        number = f"({tile} - ({begin} // {rows.tile} + {name}))" if listed is None else tile
        first = self.e.let("first", f"{number} * {rows.tile}")
        return RowTile(first, f"{end} - {begin}", rest)

    def tiles_of_segments(self, found: Segments) -> str:
        """Return the number of row tiles of all segments, or more."""
        rows, over = (next(s for s in self.plan.tiled if s.axis == a) for a in (found.axis, found.over))
        whole = self.argument(abi.extent(found.whole))
        count = f"{whole} * {found.each}"
        if self.plan.listed is None:
            return f"{count} // {rows.tile} + {self.extent(over.axis)}"
        return f"tl.minimum({count}, {count} // {rows.tile} + {self.plan.listed})"

    def own_segment(self, tile: RowTile, found: Segments) -> None:
        """Write the indices of a row tile that has rows, and the program's other indices."""
        rows, over = (next(s for s in self.plan.tiled if s.axis == a) for a in (found.axis, found.over))
        if self.e.dots.of:
            self.first[rows.axis] = tile.first
        indices = f"{tile.first} + {self.indices(rows.axis)}" if rows.tile > 1 else tile.first
        self.coordinates[rows.axis] = row = self.e.let(axis_name(rows.axis), indices)
        self.limits[rows.axis] = (f"({row} < {tile.length})", found.inside)
        others = [i for i, s in enumerate(self.plan.tiled) if s not in (rows, over)]
        self.rest(others[::-1], tile.rest)

    def sees_what_follows(self, rows: Axis) -> bool:
        """Return whether loops start later for later rows, and end at the same step for all."""
        loops = [let.node for let in walk(self.plan.kernel.body) if isinstance(let.node, Loop)]
        axes = [(self.e.tile(loop.start).axes, self.e.tile(loop.stop).axes) for loop in loops]
        return any(rows in start and rows not in stop for start, stop in axes)

    def rest(self, order: list[int], program: str) -> None:
        """Write the indices of axes from the rest of a program's number, the first axis fastest."""
        for i in order:
            count = self.tiles(i)
            if count == "1":
                self.write_coordinate(i, "0")
            elif i == order[-1]:
                self.write_coordinate(i, program)
            else:
                rest = self.e.let("program", program)
                self.write_coordinate(i, f"{rest} % {count}")
                program = f"{rest} // {count}"

    def banded(self) -> int | None:
        """Return the parallel axis whose tiles are grouped (L2 swizzle): the row axis of a GEMM."""
        tiled, dims = self.plan.tiled, self.plan.dims
        if self.plan.schedule.group == 1 or not self.e.dots.of or len(tiled) == 1:
            return None
        return next((i for i, s in enumerate(tiled) if s.axis == dims[0].axis and s.tile > 1), None)

    def band(self, rows: int, program: str, others: list[int]) -> str:
        """Write the row tile of a program: rows run fastest inside a group of row tiles; return the rest."""
        row, column = self.grouped(self.tiles(rows), program, others)
        self.write_coordinate(rows, row)
        return self.e.let("column", column)

    def grouped(self, rows: str, program: str, others: list[int]) -> tuple[str, str]:
        """Write the group of a program among so many row tiles; return its row tile and the rest."""
        group = self.plan.schedule.group
        size = self.e.let("band", f"{group} * {self.product(others)}")
        first = self.e.let("band_first", f"{program} // {size} * {group}")
        height = self.e.let("band_rows", f"tl.minimum({rows} - {first}, {group})")
        return f"{first} + {program} % {size} % {height}", f"{program} % {size} // {height}"

    def write_coordinate(self, index: int, tile: str) -> None:
        """Write the indices of one parallel axis that are in a tile."""
        s = self.plan.tiled[index]
        if s.tile > 1 and tile == "0":
            tile = self.indices(s.axis)
        elif s.tile > 1:
            tile = f"({tile})" if " " in tile else tile
            if self.e.dots.of:
                self.first[s.axis] = self.e.let(f"{axis_name(s.axis)}_first", f"{tile} * {s.tile}")
                tile = f"{self.first[s.axis]} + {self.indices(s.axis)}"
            else:
                tile = f"{tile} * {s.tile} + {self.indices(s.axis)}"
        self.place(s, tile)

    def place(self, s: TiledAxis, indices: str) -> None:
        """Write the indices of a parallel axis, and which of them there are."""
        name = axis_name(s.axis)
        self.coordinates[s.axis] = self.e.let(name, indices)
        if not s.exact:
            end = self.extent(s.axis) if s.length is None else str(s.length)
            if s is self.plan.remainder:
                end = f"{end} // {ALIGNED} * {ALIGNED}"
            self.inside[s.axis] = self.e.let(f"{name}_inside", f"{self.coordinates[s.axis]} < {end}")

    @contextmanager
    def last_elements(self) -> Iterator[None]:
        """Restrict the last program to the elements behind the last vector of the plan's remainder."""
        before, coordinates, inside = self.plan, dict(self.coordinates), dict(self.inside)
        whole = before.remainder
        assert whole is not None
        few = replace(whole, tile=ALIGNED)
        tiled = tuple(few if s is whole else s for s in before.tiled)
        end = self.extent(whole.axis) if whole.length is None else str(whole.length)
        with self.e.inner(f"if {self.program} == {end} // {whole.tile}:"):
            dims = (Dim(whole.axis, 0, ALIGNED.bit_length() - 1),)
            self.e.plan = self.plan = replace(before, tiled=tiled, dims=dims, remainder=None)
            self.place(few, f"{end} // {ALIGNED} * {ALIGNED} + {self.indices(whole.axis)}")
            yield
        self.e.plan = self.plan = before
        self.coordinates, self.inside = coordinates, inside

    @contextmanager
    def part(self, plan: TritonPlan, axis: Axis, offset: int) -> Iterator[None]:
        """Restrict tiles to a part of their indices of an axis, from an offset on; `plan` has its length."""
        before, coordinates, inside = self.plan, dict(self.coordinates), dict(self.inside)
        self.e.plan = self.plan = self.e.dots.plan = plan
        tiled = next(s for s in plan.tiled if s.axis == axis)
        start = f"{self.first[axis]} + {offset}" if offset else self.first[axis]
        with self.e.names.scope():
            self.place(tiled, f"{start} + {self.indices(axis)}")
            yield
        self.e.plan = self.plan = self.e.dots.plan = before
        self.coordinates, self.inside = coordinates, inside

    def tiles(self, index: int) -> str:
        """Return the number of tiles of a parallel axis, as an operand."""
        s = self.plan.tiled[index]
        if s.tiles is not None:
            return str(s.tiles)
        return tiles_of(self.extent(s.axis), s.tile)

    def indices(self, axis: Axis) -> str:
        """Return 0, 1, 2, ... along the dims of an axis."""
        terms = []
        dims = self.plan.dims_of((axis,))
        for i, dim in enumerate(dims):
            if dim.axis == axis:
                at = "".join(", :" if j == i else ", None" for j in range(len(dims)))[2:]
                range_ = f"tl.arange(0, {dim.length})" + (f"[{at}]" if len(dims) > 1 else "")
                range_ = f"tl.max_contiguous({range_}, 1)" if axis == self.plan.by_lanes else range_
                terms.append(range_ if dim.low == 0 else f"{range_} * {1 << dim.low}")
        return " + ".join(terms)

    def extent(self, axis: Axis) -> str:
        """Return the extent of an axis; Triton is given static ones too."""
        return self.extent_of_call(axis)

    # --- memory ---------------------------------------------------------------------------------------------

    def rotated(self, window: Window) -> str:
        """Write where a chunk starts in its first vector; return its elements' indices in memory's order."""
        load, lane = self.e.nodes[window.load], self.e.lane(window)
        assert isinstance(load, Load)
        width = VECTOR // self.decls[load.param].type.dtype.bytes
        rows = [
            t for dim, v in enumerate(load.index[:-1]) for t in self.terms(self.decls[load.param], dim, v)
        ]
        start = self.e.let("start", " + ".join([*rows, self.e[window.begin]]))
        shift = self.e.let("shift", f"({start} & {width - 1}).to(tl.int32)")
        self.starts[window.load] = start, shift
        return f"{self.e[window.begin]} + (({lane} - {shift}) & {(window.lanes.chunk or 1) - 1})"

    def window(self, window: Window, load: Load, let: Let) -> str:
        """Write the loads of a rotated chunk: its vectors, and the one after them for its last elements.

        A vector is read if one of its elements is, but in masked steps of the last row, whose vectors may end
        behind the tensor.
        """
        decl, lane, (start, shift) = self.decls[load.param], self.e.lane(window), self.starts[window.load]
        width, name = VECTOR // decl.type.dtype.bytes, let.name or load.param
        bits, vector = width.bit_length() - 1, f"{lane} // {width} * {width}"
        pointer, chunk = f"{decl.name}_ptr + ({start} >> {bits} << {bits}) + {lane}", window.lanes.chunk
        split, first = f"{vector} < {shift}", f"{self.e[window.begin]} - {shift}"
        if window.end is None:
            guards = [self.e[v] for v in window.rows]
            masked = f", mask={' & '.join(guards)}, other=0.0" if guards else ""
            vectors = self.e.let(f"{name}_vectors", f"tl.load({pointer}{masked})")
            mask = " & ".join([f"({split})", *guards]) if guards else split
            after = self.e.let(f"{name}_after", f"tl.load({pointer} + {chunk}, mask={mask}, other=0.0)")
            made = f"tl.where({lane} < {shift}, {after}, {vectors})"
            if load.guard is not None:
                made = f"tl.where({self.e[load.guard]}, {made}, {self.other(load)})"
            return self.e.let(name, made)
        assert load.guard is not None
        found, end, other = self.e.names.fresh(name), self.e[window.end], self.other(load)
        row, rows = self.e[load.index[0]], "".join(f" & {self.e[v]}" for v in window.rows)
        with self.e.inner(f"if {row} + 1 < {self.extent(decl.type.axes[0])}:"):
            mask = f"({first} + {vector} < {end}){rows}"
            vectors = self.e.let(f"{name}_vectors", f"tl.load({pointer}, mask={mask}, other=0.0)")
            mask = f"({split}) & ({first} + {chunk} < {end}){rows}"
            after = self.e.let(f"{name}_after", f"tl.load({pointer} + {chunk}, mask={mask}, other=0.0)")
            whole = f"tl.where({lane} < {shift}, {after}, {vectors})"
            self.e.line(f"{found} = tl.where({self.e[load.guard]}, {whole}, {other})")
        with self.e.inner("else:"):
            address = self.pointer(decl, load.index)
            self.e.line(f"{found} = tl.load({address}, mask={self.e[load.guard]}, other={other})")
        return found

    def other(self, load: Load) -> str:
        """Return what a load gives where its guard is false."""
        if load.fill is not None:
            return self.e[load.fill]
        dtype = self.decls[load.param].type.dtype
        return "0.0" if dtype.is_float and not dtype.is_float8 else "0"

    def load(self, load: Load, let: Let) -> str:
        window = self.plan.windows.get(let.value)
        if window is not None:
            return self.window(window, load, let)
        decl = self.decls[load.param]
        axes = union(*(self.e.tile(i).axes for i in load.index))
        pointer = self.pointer(decl, load.index)
        guarded = () if load.guard is None else self.e.tile(load.guard).axes
        mask = self.mask(axes, load.guard)
        pointer = self.widest(pointer, axes, union(axes, guarded))
        if mask is None:
            return self.e.let(let.name or load.param, f"tl.load({pointer})")
        return self.e.let(
            let.name or load.param, f"tl.load({pointer}, mask={mask}, other={self.other(load)})"
        )

    def store(self, store: Store) -> None:
        decl = self.decls[store.param]
        axes = union(*(self.e.tile(i).axes for i in store.index))
        mask = self.mask(axes, store.guard)
        masked = "" if mask is None else f", mask={mask}"
        pointer = self.widest(
            self.pointer(decl, store.index), axes, union(axes, self.e.tile(store.value).axes)
        )
        self.e.line(f"tl.store({pointer}, {self.e[store.value]}{masked})")

    def widest(self, pointer: str, axes: tuple[Axis, ...], wanted: tuple[Axis, ...]) -> str:
        """Return the pointer, broadcast to the dims of its mask or value."""
        shape = self.plan.shape(wanted)
        return pointer if shape == self.plan.shape(axes) else f"tl.broadcast_to({pointer}, {shape})"

    def mask(self, axes: tuple[Axis, ...], guard: Value | None) -> str | None:
        """Return the mask of an access; None if every lane is in bounds."""
        always = guard is None or self.e.consts.get(guard) == (1, DType.BOOL)
        terms = [] if guard is None or always else [self.e[guard]]
        terms += [name for axis, name in self.inside.items() if axis in axes]
        for axis, (text, limit) in self.limits.items():
            if axis in axes and self.plan.schedule.tile(str(axis)) > 1:
                said = guard is not None and implies(self.e.nodes, guard, limit)
                terms += [] if said else [text]
        return " & ".join(terms) or None

    def pointer(self, decl: Decl, index: tuple[Value, ...]) -> str:
        """Return the address of an element; scalar terms come first, so that they are added once."""
        return self.sum_of(decl, list(enumerate(index)))

    def sum_of(self, decl: Decl, index: list[tuple[int, Value]]) -> str:
        """Return the address of an element whose other dims have index 0."""
        scalars: list[str] = []
        tensors: list[str] = []
        for dim, value in index:
            terms = self.terms(decl, dim, value)
            (tensors if self.e.shape(value) else scalars).extend(terms)
        return " + ".join([f"{decl.name}_ptr", *scalars, *tensors])

    def terms(self, decl: Decl, dim: int, value: Value) -> list[str]:
        """Return the offset of one index in an address, in elements."""
        index = self.e[value]
        if index == "0":
            return []
        if dim == 0 and abi.has_two_row_strides(decl, self.plan.signature):
            inner, outer_stride, inner_stride = map(self.argument, abi.row_strides(decl))
            whole, part = self.wide(value, f"({index} // {inner})"), self.wide(value, f"({index} % {inner})")
            return [f"{whole} * {outer_stride}", f"{part} * {inner_stride}"]
        if abi.has_unit_stride(decl, dim, self.plan.signature):
            return [index]
        return [f"{self.wide(value, index)} * {self.stride(decl, dim)}"]

    def wide(self, value: Value, index: str) -> str:
        """Return an index as i64: rows times a stride may exceed 2**31."""
        if self.e.tile(value).dtype is DType.I64:
            return index
        if value in self.e.consts:
            return index
        return f"{index}.to(tl.int64)"

    # --- checks ---------------------------------------------------------------------------------------------

    def check(self, bad: Value, what: str) -> None:
        """Write the code of a finding and one more than its row into the device's error words."""
        code, axes = self.error_code(what), self.e.tile(bad).axes
        row = self.row(axes)
        found = self.e.let("bad_row", f"tl.where({self.mask(axes, bad)}, {row}, 0)")
        shape = self.plan.shape(axes)
        if shape:
            found = self.e.let("bad_row", f"tl.max(tl.reshape({found}, ({math.prod(shape)},)), 0)")
        for offset, value in (("", str(code)), (" + 1", found)):
            self.e.line(f'tl.atomic_max({ERRORS}_ptr{offset}, {value}, mask={found} > 0, sem="relaxed")')

    def row(self, axes: tuple[Axis, ...]) -> str:
        """Return the text of a row number for the error word, counted from 1."""
        own = (s.axis for s in self.plan.tiled if s.axis in axes)
        return row_number(own, lambda axis: self.coordinates[axis]) or "1"


class Addressed(Writer, Protocol):
    """An emitter with the part that knows addresses."""

    addresses: Addresses
