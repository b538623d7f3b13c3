"""GEMM producer coordinates, consumer epilogue, and tile coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from rlk.ir.dims import fixed_extent, is_power_of_two, union
from rlk.ir.nodes import (
    Cast,
    Check,
    Const,
    Dot,
    Elementwise,
    Fn2,
    Let,
    Load,
    Map2,
    Param,
    Pos,
    Reduce,
    Select,
    Store,
    Value,
    operands,
)
from rlk.ir.tree import padded
from rlk.ir.types import DType, tile_axes
from rlk.lower.common.contract import contractions
from rlk.lower.common.hoist_masks import NOWHERE, never_negative
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name, stem
from rlk.lower.common.one_hot import OneHotSum, one_hot_sums
from rlk.lower.cute import text
from rlk.lower.cute.emit import Emitter
from rlk.lower.cute.epilogue_vectorize import Vectors, vectors
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.memory import Span
from rlk.lower.cute.plan import ROWS_OF_WARPGROUP, ContractionPlan, TmaTile, refused
from rlk.passes.walk import backward_slice

ROWS = 2  # accumulator rows of a thread
MOST_PARTS = 4  # column parts of an epilogue
MAGIC = {DType.BF16: 0x43004300, DType.F16: 0x64006400}  # 128 and 1024: 7 bits lower are whole numbers
PLACE = "8 * (c // 2) + c % 2"  # column of element c, from the thread's first column
OF_FRAME = frozenset(
    "thread block blocks warp group rank memory ring items item tiles put get free full k r c mine "
    "share unit fragment acc a b a_tiles b_tiles a_from b_from a_to b_to layout_a layout_b row stream "
    "programs band rest first height column quad first_of_quad part steps epilogue_tile vectors i "
    "parts piece sums spilled slot shape fours registers spare ends segment_tiles total left "
    "a_rows a_values a_pair a_offsets a_places a_bytes b_bytes b_places "
    "magic".split()
)


def operands_of(plan: ContractionPlan) -> set[str]:
    """Return the names of what instructions read, unless a tensor has one: then it is called an operand."""
    sides = ("a", len(plan.a_tiles)), ("b", len(plan.b_tiles))
    return {text.numbered(side, i) for side, count in sides for i in range(count)}


def names_of(plan: ContractionPlan) -> set[str]:
    """Return the names that the template has for products and tiles beyond the first."""
    found = {f"{tile}{end}" for tile in operands_of(plan) for end in ("", "_tiles", "_from", "_to")}
    return found | {text.numbered(n, i) for n in ("acc", "fragment") for i in range(len(plan.products))}


@dataclass(frozen=True, slots=True)
class Start:
    """The coordinates of a TMA tile: its first row, its first element of the contracted axis, other dims."""

    first: str
    along: str
    batch: tuple[str, ...]


class GemmEmitter(Emitter):
    """Writes the lines of a GEMM that its template does not have: coordinates and epilogue."""

    plan: ContractionPlan

    def __init__(self, plan: ContractionPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.plan = plan
        own = OF_FRAME | names_of(plan)
        given = {decl.name for decl in plan.kernel.params}
        for name in sorted(own.intersection(given) - operands_of(plan)):
            lacks = f"a tensor or number named {name} in a kernel with a contraction, whose own name it is"
            raise refused(lacks, plan.target, instead=f"{name}_value")
        self.names.taken |= own
        self.acc = {product.value: text.numbered("acc", i) for i, product in enumerate(plan.products)}
        self.never_materialized = contractions(plan.kernel).never_materialized
        self.lets = {let.value: let for let in plan.kernel.body.lets}
        self.nodes = {value: let.node for value, let in self.lets.items()}
        self.one_hot = one_hot_sums(plan.kernel)
        self.waiting = {let.value for p in self.one_hot.values() for let in p.inside}
        self.of_piece = self.along_pieces()
        self.rowwise: set[Value] = set()  # written before the mainloop, for both rows of a thread
        self.per_element: set[Value] = set()  # one element at a time, in no list
        self.counted: dict[Value, str] = {}  # column indices: the first of a thread
        self.vectorized = False  # whether the epilogue stores vectors
        self.place_in_row = PLACE  # of an element of a list that is written now
        self.columns_end = ""  # of the tile's columns from a thread's first on, where some do not exist
        self.columns_left = ""  # the same, of a row that may not exist either
        self.of_both = False  # whether values are lists over the rows of a thread
        self.ends: dict[Value, str] = {}  # comparisons with a column index: the other operand
        self.combined = {n.x for n in self.nodes.values() if isinstance(n, Reduce)}
        self.computing_first: tuple[Line, ...] = ()  # what computes a factor at the first step, and at others
        self.computing: tuple[Line, ...] = ()

    def axes(self, value: Value) -> tuple[object, ...]:
        return tile_axes(self.types[value])

    def __getitem__(self, value: Value) -> str:
        if value in self.per_element:
            return self.text[value]
        if value in self.counted:
            return f"({self.counted[value]} + {self.place_in_row})"
        if value in self.ends:
            return f"({self.ends[value]} {self.sign(value)} {self.place_in_row})"
        return f"{super().__getitem__(value)}[r]" if value in self.rowwise else super().__getitem__(value)

    def along_pieces(self) -> set[Value]:
        """Return the values that differ between the pieces of a block, but for the products."""
        found: set[Value] = set()
        by = self.plan.pieces or self.plan.loop
        if by is None:
            return found
        self.names.taken.add(by.index)
        number = Param(by.index)
        for let in self.plan.kernel.body.lets:
            numbers = let.node == number or found.intersection(operands(let.node))
            if numbers and not isinstance(let.node, Dot):
                found.add(let.value)
        return found

    # --- the place of a tile --------------------------------------------------------------------------------

    def place_of(self) -> tuple[tuple[Line, ...], str]:
        """Return the lines that compute tile coordinates from a tile index, and their names."""
        names, rest, found = [], "column", []
        others = list(reversed(self.plan.others))
        for i, tiled in enumerate(others):
            name = f"{axis_name(tiled.axis)}_tile"
            names.append(name)
            last = i == len(others) - 1
            found.append(Line(f"{name} = {rest if last else f'{rest} % {tiled.tiles}'}"))
            rest = f"{rest} // {tiled.tiles}" if rest == "column" else f"({rest}) // {tiled.tiles}"
        return tuple(found), ", ".join(["row_tile", *names])

    def write_coordinates(self) -> None:
        """Write the tile coordinates."""
        for tiled in self.plan.others:
            name = f"{axis_name(tiled.axis)}_tile"
            if tiled.axis == self.plan.fragment.axis:
                place = self.of_segment(name) if self.plan.columns_of_segments else name
                self.text_first = self.let(f"{axis_name(tiled.axis)}_first", f"{place} * {tiled.tile}")
            else:
                self.memory.coordinates[tiled.axis] = self.let(axis_name(tiled.axis), name)
        of_rows = self.plan.segments is not None and not self.plan.columns_of_segments
        place = self.of_segment("row_tile") if of_rows else "row_tile"
        place = place if self.plan.cluster == 1 else f"({place} * {self.plan.cluster} + rank)"
        axis = axis_name(self.plan.rows.axis)
        self.first = self.let(f"{axis}_first", f"{place} * {self.plan.rows.tile}")

    def of_segment(self, tile: str) -> str:
        """Write the segment of a tile; return the number of the tile in it."""
        assert self.plan.segments is not None
        over = self.plan.segments.over
        owner, place = self.names.fresh(axis_name(over)), self.names.fresh("tile_of_segment")
        self.line(f"{owner}, {place} = {self.call('segment_of_tile', 'ends', tile)}")
        self.memory.coordinates[over] = owner
        return place

    def has_rows(self) -> str:
        """Return the condition that some row of a warpgroup is in the segment; empty where one always is."""
        found, alone = self.plan.segments, self.plan.rows.tile * self.plan.cluster == ROWS_OF_WARPGROUP
        if found is None or self.plan.columns_of_segments or alone or self.plan.steps is None:
            return ""
        owner = self.memory.coordinates[found.over]
        begin, end = (f"{name}[{owner}].to(Int32)" for name in (found.begin, found.end))
        first = f"{self.first} + {ROWS_OF_WARPGROUP} * (group - 1)"
        return self.call("any_lane", f"{first} < {end} - {begin}")

    def needed(self, values: Sequence[Value]) -> list[Let]:
        """Return the lets that some values are made of, in order."""
        wanted = backward_slice(values, self.lets)
        return [let for let in self.plan.kernel.body.lets if let.value in wanted]

    def along(self, tma_tile: TmaTile) -> str:
        """Return the K coordinate of a factor's first element."""
        return " + ".join(self[v] for v in tma_tile.factor.base if self[v] != "Int32(0)") or "0"

    @property
    def in_pieces(self) -> bool:
        """Return whether a block has a loop over pieces of the contracted axis."""
        return self.plan.pieces is not None or self.plan.loop is not None

    def stops(self) -> list[Value]:
        """Return the end of the contracted axis, and the number of its pieces, where a tile counts them."""
        stop, loop = self.plan.contraction.stop, self.plan.loop
        return [*([] if stop is None else [stop]), *([] if loop is None else [loop.pieces])]

    def length(self) -> str:
        """Return the length of the contracted axis, where it is not static."""
        contraction = self.plan.contraction
        if contraction.stop is not None:
            return self[contraction.stop]
        return self.memory.extent(contraction.over)

    def count(self) -> None:
        """Write the number of K steps of a tile."""
        if self.plan.steps is None:
            depth = self.plan.depth
            self.line(f"steps = ({self.length()} + {depth - 1}) // {depth}")

    def start(self, tma_tile: TmaTile) -> str:
        """Return the coordinate of the first row of a TMA tile."""
        terms = [self[v] for v in tma_tile.first if self.consts.get(v) != (0, DType.I32)]
        if tma_tile.axis == self.plan.rows.axis:
            terms.append(self.first)
        elif any(o.axis == tma_tile.axis for o in self.plan.others):
            terms.append(self.text_first)
        return " + ".join(terms) or "0"

    # --- the roles ------------------------------------------------------------------------------------------

    def coordinates(self) -> tuple[tuple[Line, ...], tuple[Line, ...], list[Start]]:
        """Return the producer's lines for a tile and for a piece, and the coordinates of its TMA tiles."""
        with self.names.scope():
            before = dict(self.text), dict(self.consts), dict(self.memory.coordinates)
            self.write_coordinates()
            values = [
                v
                for tma_tile in self.plan.tma_tiles
                for v in (*tma_tile.first, *tma_tile.factor.base, *(at for _, at in tma_tile.batch))
            ]
            needed = self.needed([*values, *self.stops()])
            self.block([let for let in needed if let.value not in self.of_piece])
            of_tile = lines(self.lines)
            self.block([let for let in needed if let.value in self.of_piece])
            self.count()
            if not self.in_pieces:
                of_tile = (*of_tile, *lines(self.lines))
            starts = [
                Start(self.start(each), self.along(each), tuple(self[at] for _, at in each.batch))
                for each in self.plan.tma_tiles
            ]
            self.text, self.consts, self.memory.coordinates = before
        return of_tile, lines(self.lines), starts

    def computed(self, first: str) -> tuple[Line, ...]:
        """Return the lines that compute a thread's elements of A from its tile, in the list `a_values`.

        first: the index of the step's first element along the contracted axis.
        """
        plan, texts = self.plan, (dict(self.text), dict(self.consts))
        tile, over = plan.a_tiles[0], plan.contraction.over
        casts = plan.of_bytes
        whole = casts[-1].value if casts else None
        self.line("a_values = []")
        if whole is not None:
            size = tile.rows * plan.depth
            self.line(f"a_offsets = [place + {size} * get.index for place in a_places]")
        ends = fixed_extent(over, dict(plan.signature.extents)) or 0
        with self.inner(f"for i in cutlass.range_constexpr({plan.depth // 8}):"):
            with self.inner(f"for r in cutlass.range_constexpr({ROWS}):"):
                if whole is not None:
                    word = self.call(
                        "byte_pair", "a_bytes", f"a_offsets[i // 2] + ({8 * plan.depth} * r + i % 2 * 8)"
                    )
                    kind = text.TYPES[self.tile(whole).dtype]
                    self.line(f"a_pair = {self.call('bytes_as_floats', word, 'magic', kind)}")
                else:
                    reads = "pair_across" if tile.transposed else "pair_along"
                    given = "a_tiles", "row + 8 * r", "8 * i + quad", "get.index"
                    self.line(f"a_pair = {self.call(reads, *given)}")
                with self.inner("for c in cutlass.range_constexpr(2):"):
                    at = f"({first} + 8 * i + quad + c)"
                    for let in plan.prologue:
                        self.note(let)
                        if let.node == Pos(over):
                            self.text[let.value] = at
                        elif let.value == whole or isinstance(let.node, Load):
                            self.text[let.value] = "a_pair[c]"
                        elif let in casts:
                            pass
                        else:
                            self.node(let)
                    last = plan.prologue[-1]
                    value = self.typed(last.value)
                    if ends % plan.depth:
                        zero = f"{text.TYPES[self.tile(last.value).dtype]}(0.0)"
                        value = self.call("select", f"{at} < {ends}", value, zero)
                    self.line(f"a_values.append({value})")
        self.text, self.consts = texts
        return lines(self.lines)

    def of_prologue(self) -> list[Let]:
        """Return what a computed factor needs beside its tile, with all that it is made of."""
        read = [v for let in self.plan.prologue if not isinstance(let.node, Load) for v in operands(let.node)]
        return self.needed([v for v in read if v not in self.never_materialized])

    def epilogue(self) -> tuple[tuple[Line, ...], tuple[Line, ...], tuple[Line, ...]]:
        """Return a consumer's prologue, that of a piece whose length a tile counts, and its epilogue."""
        self.write_coordinates()
        rows = self.plan.rows
        later = self.after_products()
        early = [
            let for let in self.plan.kernel.body.lets if let.value not in later | self.never_materialized
        ]
        first = (*self.hoisted(early), *self.needed(self.stops()), *self.of_prologue())
        ahead = {let.value for let in first}
        of_tile = [let for let in early if let.value in ahead and not self.by_row(let.value)]
        self.block([let for let in of_tile if let.value not in self.of_piece])
        if self.plan.loop is None:
            self.count()
        name = axis_name(rows.axis)
        # the template has names of its own, such as k: an axis of that name has another in the text
        both = self.memory.coordinates[rows.axis] = self.let(name, self.both(f"{self.first} + row + 8 * r"))
        masked = self.plan.segments is not None and rows.axis == self.plan.segments.axis  # by every store
        if not masked and (rows.length is None or rows.length % (rows.tile * self.plan.cluster)):
            end = self.memory.extent(rows.axis)
            inside = self.let(f"{name}_inside", self.both(f"{both}[r] < {end}"))
            self.memory.inside[rows.axis] = f"{inside}[r]"
        self.memory.coordinates[rows.axis] = f"{both}[r]"
        for let in early:
            if let.value in ahead and self.by_row(let.value):
                self.row_ahead(let)
        before = lines(self.lines)
        if self.plan.prologue:
            firsts = "0", f"{self.plan.depth} * k"
            self.computing_first, self.computing = (self.computed(first) for first in firsts)
        of_piece: tuple[Line, ...] = ()
        if self.plan.loop is not None:
            self.block([let for let in of_tile if let.value in self.of_piece])
            self.count()
            of_piece = lines(self.lines)
        done = ahead | self.never_materialized | self.of_piece
        rest = [let for let in self.plan.kernel.body.lets if let.value not in done]
        self.columns()
        shared = [let for let in rest if not self.by_row(let.value) and not self.acts(let)]
        shared = [let for let in shared if let.value not in self.waiting]
        self.block(shared)
        written = {let.value for let in shared}
        with self.inner(f"for r in cutlass.range_constexpr({ROWS}):"):
            self.row_of_tile([let for let in rest if let.value not in written | self.waiting])
        return before, of_piece, lines(self.lines)

    def columns(self) -> None:
        """Write a thread's first column, and elect one of four threads for row values."""
        fragment = self.plan.fragment
        self.memory.writer = "first_of_quad"
        tiled = next((o for o in self.plan.others if o.axis == fragment.axis), None)
        self.first_column = "quad"
        if tiled is not None:
            self.first_column = self.let(axis_name(fragment.axis), f"{self.text_first} + quad")
            masked = self.plan.columns_of_segments
            if not masked and not tiled.exact:
                self.columns_end = f"{self.memory.extent(fragment.axis)} - {self.first_column}"
                self.bound_columns()

    def node(self, let: Let) -> None:
        """Write one node; column indices stay symbolic until an element needs them."""
        match let.node:
            case Pos(axis=axis) if axis == self.plan.fragment.axis:
                self.counted[let.value] = self.first_column
            case Store() as store if (by := self.by_vectors(store)) is not None:
                self.store_vectors(store, by)
            case Map2(fn=Fn2.ADD, a=a, b=b) if (a in self.counted) != (b in self.counted):
                index, more = (a, b) if a in self.counted else (b, a)
                if self.listed(more) or self.by_row(more):
                    super().node(let)
                else:
                    total = f"{self.operand(more, index)} + {self.counted[index]}"
                    self.counted[let.value] = self.let(let.name or stem(let), total)
            case _:
                super().node(let)

    def store_vectors(self, store: Store, by: Vectors) -> None:
        """Store a part of a row's list by vectors."""
        mask, at = self.of_vector(store, by)
        assert self.memory.span is not None
        first, end = self.memory.span.first, self.memory.span.end
        with self.inner(f"for c in cutlass.range_constexpr({first}, {end}, {by.elements}):"):
            given = f"{self.text[store.value]}[c : c + {by.elements}]"
            made = self.call("to_vectors", "epilogue_tile", f"{store.param}.element_type", given)
            self.line(f"vectors = {made}")
            with self.inner(f"for i in cutlass.range_constexpr({by.count}):"):
                self.line(self.call("store_vector_where", mask, store.param, at, "vectors[i]"))

    def by_vectors(self, access: Load | Store) -> Vectors | None:
        """Return the vectorized access of the current column part, if there is one."""
        value = access.value if isinstance(access, Store) else None
        if not self.memory.span or value is not None and not self.listed(value):
            return None
        if isinstance(access, Store) and access.guard is not None and not self.listed(access.guard):
            access = replace(access, guard=None)  # of a whole row
        return vectors(access, self.plan.fragment.count // self.parts, self.plan, self.consts)

    def load_vectors(self, let: Let, load: Load, by: Vectors) -> str:
        """Load a part of a row's list by vectors; return their name."""
        mask, at = self.of_vector(load, by)
        assert self.memory.span is not None
        first, end = self.memory.span.first, self.memory.span.end
        indices = f"for c in range({first}, {end}, {by.elements}) for i in range({by.count})"
        zero = f"{text.TYPES[by.dtype]}(0)"
        each = self.call("load_vector_where", mask, load.param, at, zero, str(by.width))
        return self.let(f"{self.text[let.value]}_vectors", f"[{each} {indices}]")

    def of_vector(self, access: Load | Store, by: Vectors) -> tuple[str, str]:
        """Return the predicate of a vector, and its coordinates."""
        self.vectorized = True
        axes = union(*(self.tile(i).axes for i in access.index))
        with self.elements_at(by.place):
            mask = self.memory.mask(axes, access.guard) or "Boolean(True)"
            return mask, self.memory.index(access.index)

    def compared(self, let: Let) -> tuple[Value, Value] | None:
        """Return the column index of a comparison, and the row value that it is compared with."""
        match let.node:
            case Map2(fn=Fn2.EQ | Fn2.NE | Fn2.LT, a=a, b=b):
                index, wanted = self.uncast(a), b
                if index not in self.counted and let.node.fn is not Fn2.LT:
                    index, wanted = self.uncast(b), a
                # two non-negative i32 do not overflow; for (in)equality overflow is harmless
                bounded = let.node.fn is not Fn2.LT or all(
                    never_negative(v, self.nodes) for v in (index, wanted)
                )
                fits = index in self.counted and not self.listed(wanted) and bounded
                return (index, wanted) if fits else None
            case _:
                return None

    def compare(self, index: Value, wanted: Value) -> str:
        """Write the other operand of a column comparison, once a row."""
        kind = text.TYPES[self.tile(wanted).dtype]
        begin = self.counted[index]
        begin = begin if self.tile(wanted).dtype is DType.I32 else f"{kind}({begin})"
        return self.let("at", f"{self[wanted]} - {begin}")

    def sign(self, value: Value) -> str:
        """Return the operator of a column comparison with its operands swapped."""
        node = self.nodes[value]
        assert isinstance(node, Map2)
        return {Fn2.EQ: "==", Fn2.NE: "!=", Fn2.LT: ">"}[node.fn]

    def masks(self, let: Let) -> bool:
        """Return whether a value masks the end of a row, which most tiles do not contain."""
        match let.node:
            case Select(cond=cond, a=a, b=b):
                node = self.nodes.get(cond)
                ends = isinstance(node, Map2) and node.fn is Fn2.LT and self.by_row(cond)
                fixed = isinstance(self.nodes.get(b), Const) and self.listed(a)
                combined = let.value in self.combined - self.waiting
                return ends and fixed and combined and self.compared(self.lets[cond]) is not None
            case _:
                return False

    def mask(self, let: Let, select: Select) -> None:
        """Write the mask of a row's end, behind a warp vote."""
        count = self.plan.fragment.count
        last = 8 * ((count - 1) // 2) + (count - 1) % 2
        name = self.let(let.name or stem(let), f"tuple({self.text[select.a]})")
        with self.inner(f"if {self.call('any_lane', f'{self.ends[select.cond]} <= {last}')}:"):
            self.line(f"{name} = tuple([{self.expression(let)} for c in range({count})])")
        self.text[let.value] = name

    def uncast(self, value: Value) -> Value:
        """Return an index before it was widened."""
        node = self.nodes.get(value)
        return node.x if isinstance(node, Cast) and node.x in self.counted else value

    def row_of_tile(self, lets: list[Let]) -> None:
        """Write the values of a row: one-hot sums first, since later values overwrite their operands."""
        picks = [let for let in lets if let.value in self.one_hot]
        wanted = {let.value for let in self.needed([v for let in picks for v in self.operands(let)])}
        first = [let for let in lets if let.value in wanted or let in picks]
        rest = [let for let in lets if let not in first]
        self.both_inside()
        for let in lets:
            if self.lasting(let):
                self.text[let.value] = self.let(let.name or stem(let), "[]")
        self.ordered(first, lets)
        self.ordered(rest, [])

    def both_inside(self) -> None:
        """Write the end of a row's columns: 0 for an out-of-bounds row."""
        rows, columns = self.plan.rows.axis, self.plan.fragment.axis
        if {rows, columns} <= set(self.memory.inside):
            counts, end = self.memory.inside[rows], self.memory.extent(columns)
            inside = f"Int32({end}) - {self.first_column}"
            left = self.call("select", counts, inside, f"Int32({NOWHERE})")
            self.columns_left = self.let(f"{axis_name(columns)}_left", left)
            self.bound_columns()

    def bound_columns(self) -> None:
        """Say of which elements of a list the columns exist."""
        rows, columns = self.plan.rows.axis, self.plan.fragment.axis
        if self.columns_end:
            self.memory.inside[columns] = f"{self.place_in_row} < {self.columns_end}"
        if self.columns_left:
            here = f"{self.columns_left} > {self.place_in_row}"
            self.memory.together = frozenset({rows, columns}), here

    @contextmanager
    def elements_at(self, place: str) -> Iterator[None]:
        """Let the elements of lists be at other places of a row: those of a vector's elements."""
        self.place_in_row = place
        self.bound_columns()
        yield
        self.place_in_row = PLACE
        self.bound_columns()

    def ordered(self, lets: list[Let], later: list[Let]) -> None:
        """Write values: fused elementwise groups, then reductions.

        This keeps few lists live. later: other users of the values.
        """
        left = list(lets)
        while left:
            missing = {let.value for let in left}
            ready: list[Let] = []
            group: list[Let] = []
            for let in left:
                needs = missing.intersection(self.operands(let))
                if self.elementwise(let):
                    if not needs - {g.value for g in group}:
                        group.append(let)
                elif not needs and not isinstance(let.node, Reduce | Store):
                    ready.append(let)
            if group and not ready:
                written = [let for let in left if self.follows(let, missing - {g.value for g in group})]
                rest = [let for let in (*left, *later) if let not in group]
                self.in_parts(group, written, rest)
                ready = [*group, *written]
            else:
                ready = ready or [let for let in left if not missing.intersection(self.operands(let))]
                for let in ready:
                    self.note(let)
                    self.of_row(let)
            left = [let for let in left if let not in ready]

    def follows(self, let: Let, missing: set[Value]) -> bool:
        """Return whether a store can follow its elementwise group directly."""
        known = isinstance(let.node, Store) and self.listed(let.node.value)
        return known and not missing.intersection(operands(let.node))

    @property
    def parts(self) -> int:
        """Return the number of sequential column parts of the epilogue, to bound registers.

        Reductions need the whole row at once.
        """
        lets, count = self.plan.kernel.body.lets, self.plan.fragment.count
        if any(isinstance(let.node, Reduce) for let in lets):
            return 1
        if not is_power_of_two(count):  # of whole vectors, where they can be
            return next((count // each for each in (16, 8) if count % each == 0), 1)
        reads = sum(isinstance(let.node, Load) and self.lasting(let) for let in lets)
        most = max(1, min(MOST_PARTS, count // 16))
        return min(most, 2 * padded(reads)) if reads else most

    def in_parts(self, group: list[Let], written: list[Let], rest: list[Let]) -> None:
        """Write an elementwise group and its stores, column part by column part."""
        group = [let for let in group if not self.widened(let)]
        needed = {v for let in (*written, *rest) for v in self.operands(let)}
        crossing = [let for let in group if let.value in needed and not self.lasting(let)]
        reads = [let for let in group if self.lasting(let)]
        names = {let.value: self.names.fresh(let.name or stem(let)) for let in crossing}
        self.note(group[0])
        if names:
            self.line(f"{', '.join(names.values())} = {', '.join('[]' for _ in crossing)}")
        self.text.update(names)
        assert self.fragment is not None
        parts = self.parts
        size = self.fragment.count // parts
        span = Span(f"{size} * part + {size}", f"{size} * part") if parts > 1 else Span(str(size))
        with self.inner(f"for part in cutlass.range_constexpr({parts}):") if parts > 1 else nullcontext():
            self.memory.span = span
            self.read(reads, span)
            with self.inner(f"for c in cutlass.range_constexpr({span}):"):
                for let in group:
                    if let not in reads:
                        self.note(let)
                        self.element(let, let in crossing)
            for let in written:
                self.note(let)
                self.node(let)
            self.memory.span = None
        self.per_element.difference_update(let.value for let in group)

    def widened(self, let: Let) -> bool:
        """Return whether a value is a widened column index."""
        return isinstance(let.node, Cast) and let.node.x in self.counted

    def read(self, reads: list[Let], span: Span) -> None:
        """Load a part of some lists: all vector loads are issued first, then single elements."""
        wide: dict[Value, str] = {}
        for let in reads:
            assert isinstance(let.node, Load)
            by = self.by_vectors(let.node)
            if by is not None:
                self.note(let)
                wide[let.value] = self.load_vectors(let, let.node, by)
        for value, name in wide.items():
            made = self.call("from_vectors", "epilogue_tile", text.TYPES[self.tile(value).dtype], name)
            self.line(f"{self.text[value]} += {made}")
        narrow = [let for let in reads if let.value not in wide]
        if narrow:
            with self.inner(f"for c in cutlass.range_constexpr({span}):"):
                for let in narrow:
                    self.note(let)
                    self.append(let)

    def append(self, let: Let) -> None:
        """Read one element of a list."""
        assert isinstance(let.node, Load)
        self.line(f"{self.text[let.value]}.append({self.memory.read(let.node)})")

    def element(self, let: Let, crossing: bool) -> None:
        """Write a value of one element; append it to a list where others need it."""
        made = f"{self.acc[let.value]}[r, c]" if isinstance(let.node, Dot) else self.expression(let)
        if crossing:
            self.line(f"{self.text[let.value]}.append({made})")
            return
        self.per_element.add(let.value)
        self.text[let.value] = self.let(let.name or stem(let), made)

    def lasting(self, let: Let) -> bool:
        """Return whether a value is a load of a row's elements."""
        return isinstance(let.node, Load) and self.listed(let.value) and self.by_row(let.value)

    def operands(self, let: Let) -> set[Value]:
        """Return the operands of a value; of a one-hot sum those of its whole body."""
        if let.value not in self.one_hot:
            return set(operands(let.node))
        one_hot = self.one_hot[let.value]
        needs = {v for each in (*one_hot.inside, let) for v in operands(each.node)}
        return needs - self.waiting | {one_hot.first, one_hot.wanted}

    def elementwise(self, let: Let) -> bool:
        known = isinstance(let.node, Elementwise | Dot)
        if not known or not self.listed(let.value):
            return self.lasting(let)
        return self.compared(let) is None and not self.masks(let)

    def of_row(self, let: Let) -> None:
        """Write one node of a row of the tile."""
        match let.node:
            case Reduce() as reduce if let.value in self.one_hot:
                self.pick(let, reduce, self.one_hot[let.value])
            case Map2() if (found := self.compared(let)) is not None:
                self.ends[let.value] = self.compare(*found)
            case Select() as select if self.masks(let):
                self.mask(let, select)
            case _:
                self.node(let)

    def pick(self, let: Let, reduce: Reduce, one_hot: OneHotSum) -> None:
        """Write a one-hot sum, behind a warp vote on whether the tile has the index of some row."""
        hint = let.name or f"selected_{axis_name(one_hot.lane)}"
        name = self.let(hint, self.literal(-0.0, self.tile(let.value).dtype))
        kind = text.TYPES[self.tile(one_hot.wanted).dtype]
        ahead = self.let("ahead", f"{self[one_hot.wanted]} - {kind}({self[one_hot.first]})")
        here = f"({ahead} >= 0) & ({ahead} < {self.plan.fragment.length})"
        with self.inner(f"if {self.call('any_lane', here)}:"):
            for each in one_hot.inside:
                self.note(each)
                if not self.widened(each):
                    self.of_row(each)
            self.line(f"{name} = {self.reduced(let, reduce)}")
        self.text[let.value] = name

    def both(self, expression: str) -> str:
        return f"[{expression} for r in range({ROWS})]"

    def row_ahead(self, let: Let) -> None:
        """Write a row value before the mainloop, as a list over the rows of a thread."""
        count = len(self.lines)
        self.note(let)
        self.of_both = True
        self.node(let)
        self.of_both = False
        if len(self.lines) > count:
            self.rowwise.add(let.value)

    def let(self, hint: str, expression: str) -> str:
        return super().let(hint, self.both(expression) if self.of_both else expression)

    def by_row(self, value: Value) -> bool:
        return self.plan.rows.axis in self.axes(value)

    def acts(self, let: Let) -> bool:
        return isinstance(let.node, Store | Check | Dot)

    def after_products(self) -> set[Value]:
        """Return stores, checks, and the values that depend on the products."""
        later: set[Value] = set()
        for let in self.plan.kernel.body.lets:
            if self.acts(let) or later.intersection(operands(let.node)):
                later.add(let.value)
        return later

    def hoisted(self, early: list[Let]) -> list[Let]:
        """Return loads of row values with their backward slice: their latency overlaps the mainloop."""
        reads = [
            let.value
            for let in early
            if isinstance(let.node, Load)
            and (self.by_row(let.value) or self.plan.segments is not None)
            and not self.listed(let.value)
        ]
        return [let for let in self.needed(reads) if not self.listed(let.value)]
