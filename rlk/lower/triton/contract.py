"""A contraction as text: one accumulator, and a loop over the contracted axis in ascending order."""

from __future__ import annotations

from rlk.errors import Code, LoweringError, ScheduleError
from rlk.ir.dims import Axis, Part, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Const, Decl, Extent, Fn2, Let, Load, Loop, Map2, Param, Pos, Turn, Value, const_bits
from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.contract import Contraction, Factor, contractions, count_up, covered
from rlk.lower.common.names import axis_name
from rlk.lower.triton import text
from rlk.lower.triton.addresses import Addressed
from rlk.lower.triton.plan import SMALLEST_TILE
from rlk.lower.triton.tma_tiles import LARGEST_TMA_TILE


class Dots:
    """The part of an emitter that knows contractions."""

    def __init__(self, emitter: Addressed) -> None:
        self.e = emitter
        self.plan = emitter.plan
        found = contractions(self.plan.kernel)
        self.of, self.never_materialized = found.of, found.never_materialized
        self.turned: frozenset[Value] = frozenset()
        self.masked: dict[Value, tuple[Let, ...]] = {}
        self.descriptors: dict[tuple[str, tuple[int, ...]], str] = {}
        self.described: set[tuple[Value, int]] = set()  # contractions, and the dim of a factor

    def leave(self) -> None:
        """End the scope of a region: no name outlives it here."""

    def enter(self, loop: Loop) -> None:
        """Write the prologue of a loop: empty here."""

    def prepare(self) -> None:
        """Declare every stride and extent, and write the descriptors that all tiles of a program share."""
        for contraction in self.of.values():
            for factor in (contraction.a, contraction.b):
                if not factor.prologue:
                    self.arguments(factor)
        for value, contraction in self.of.items():
            if contraction.model is DotModel.CHAIN16:
                for side, factor in enumerate(self.sides(contraction)):
                    if self.describable(value, contraction, factor):
                        self.described.add((value, side))
                        self.describe(factor)

    def arguments(self, factor: Factor) -> None:
        """Declare the parameters of a factor's addresses; they are the same for pointers and descriptors."""
        decl = self.decl(factor)
        for axis in decl.type.axes:
            self.extent(axis)
        for dim in range(len(decl.type.axes) - 1):
            if not (dim == 0 and abi.has_two_row_strides(decl, self.plan.signature)):
                self.e.addresses.stride(decl, dim)

    def decl(self, factor: Factor) -> Decl:
        return self.e.addresses.decls[factor.load.param]

    def extent(self, axis: Axis) -> str:
        known = fixed_extent(axis, dict(self.plan.signature.extents))
        return self.e.addresses.extent(axis) if known is None else str(known)

    @property
    def one_loop(self) -> bool:
        """Return whether a tile is one loop of one contraction with TMA loads only and no branch."""
        loops = [let for let in self.plan.kernel.body.lets if isinstance(let.node, Loop)]
        return not loops and not self.e.one_hot and len(self.of) == 1 and len(self.described) == 2

    # --- tiles ----------------------------------------------------------------------------------------------

    def sides(self, contraction: Contraction) -> tuple[Factor, Factor]:
        """Return the factors of the outer and of the inner dim of the accumulator."""
        dims = self.plan.dims
        for left, right in ((contraction.a, contraction.b), (contraction.b, contraction.a)):
            if len(dims) == 2 and dims[0].axis in left.axes and dims[1].axis in right.axes:
                if min(dims[0].length, dims[1].length) >= SMALLEST_TILE:
                    return left, right
        self.check_dims(contraction)
        raise ScheduleError(
            Code.SCHEDULE_FIELD,
            field="tiles",
            value=", ".join(f"{d.axis}={d.length}" for d in dims) or "1",
            why=f"one tile of {SMALLEST_TILE} or more along each factor of a contraction, and no other",
        )

    def check_dims(self, contraction: Contraction) -> None:
        """Raise LoweringError for a contraction with a vector, or beside an axis that neither factor has."""
        target, over = self.plan.target.name, contraction.over
        of_factors = {*contraction.a.axes, *contraction.b.axes}
        apart = [d.axis for d in self.plan.dims if d.axis not in of_factors]
        for factor in (contraction.a, contraction.b):
            if not factor.axes:
                lacks = f"a contraction over {over} with a vector: {factor.name} has no other axis"
                instead = f"L.sum(a.to(f32) * {factor.name}.to(f32), over={over}, tree=Tree.halving)"
                raise LoweringError(lacks, instead, backend="triton", target=target)
        if apart:
            lacks = f"a contraction over {over} beside a value along {apart[0]}, which no factor has"
            whole = apart[0].whole
            instead = f'x = L.keep(x, "x") of what is reduced over {whole}, in a kernel of its own'
            raise LoweringError(lacks, instead, backend="triton", target=target)

    def describe(self, factor: Factor) -> None:
        """Write the descriptor of a factor's tensor, once for tiles of one shape."""
        decl = self.decl(factor)
        block = self.block(factor, self.plan.schedule.depth)
        if (decl.name, block) not in self.descriptors:
            shape = ", ".join(self.extent(axis) for axis in decl.type.axes)
            strides = ", ".join([*(self.e.addresses.stride(decl, d) for d in range(len(block) - 1)), "1"])
            self.descriptors[decl.name, block] = self.e.let(
                f"{decl.name}_tiles",
                f"tl.make_tensor_descriptor({decl.name}_ptr, shape=[{shape}], strides=[{strides}], "
                f"block_shape=[{', '.join(map(str, block))}])",
            )

    def block(self, factor: Factor, depth: int) -> tuple[int, ...]:
        """Return the shape of a factor's tile in the order of its tensor's dims; 1 along a batch axis."""
        length = next(d.length for d in self.plan.dims if d.axis in factor.axes)
        tiled = (factor.at, self.across(factor))
        return tuple(
            1 if dim not in tiled else depth if dim == factor.at else length
            for dim in range(len(factor.load.index))
        )

    def across(self, factor: Factor) -> int:
        """Return the dim that a factor's tile has beside the contracted one; -1 if that is not one dim."""
        load = factor.load
        found = [d for d, v in enumerate(load.index) if d != factor.at and self.e.shape(v)]
        return found[0] if len(found) == 1 else -1

    def describable(self, value: Value, contraction: Contraction, factor: Factor) -> bool:
        """Return whether a tile of a factor can be a TMA load: a rectangle of its tensor."""
        if factor.prologue:
            return False
        decl, load = self.decl(factor), factor.load
        signature, across = self.plan.signature, self.across(factor)
        used = self.plan.target.descriptors and self.plan.schedule.descriptors
        last = len(load.index) - 1
        if last < 1 or last not in (factor.at, across) or across < 0 or not used:
            return False
        if abi.has_two_row_strides(decl, signature):
            return False
        batch = [v for d, v in enumerate(load.index) if d not in (factor.at, across)]
        if any(self.e.tile(v).dtype is not DType.I32 for v in batch):
            return False
        strides = {self.e.addresses.stride(decl, d) for d in range(last)}
        aligned = {decl.name, *strides} <= signature.divisible
        small = max(self.block(factor, self.plan.schedule.depth)) <= LARGEST_TMA_TILE
        if not aligned or not small or not (contraction.batched or self.zeros_beyond(contraction)):
            return False
        unguarded = load.guard is None or covered(self.plan.kernel, value, load.guard)
        unguarded = unguarded or self.guarded_by_dim(load, decl)
        return unguarded and self.tma_tile(load.index[across]) is not None

    def zeros_beyond(self, contraction: Contraction) -> bool:
        """Return whether TMA reads zeros past the end of the contracted axis, or may read what is there.

        It reads zeros past the end of a tensor's dim: a contraction with an end of its own, and a factor
        whose index has an offset, end elsewhere. What follows there may be infinite, which zeros of the other
        factor turn into NaN. Only one factor of a piece may have it: what follows is of the same sum. A
        batched contraction without has TMA loads in the steps that do not pass the end.
        """
        if contraction.stop is not None:
            return False
        length = fixed_extent(contraction.over, dict(self.plan.signature.extents))
        if length is not None and length % self.plan.schedule.depth == 0:
            return True
        factors = contraction.a, contraction.b
        if any(f.prologue for f in factors):
            return False
        ends = [not f.base and self.decl(f).type.axes[f.at] == contraction.over for f in factors]
        of_piece = [bool(f.base) and all(self.begins_piece(v, contraction) for v in f.base) for f in factors]
        return any(ends) and all(end or piece for end, piece in zip(ends, of_piece, strict=True))

    def guarded_by_dim(self, load: Load, decl: Decl) -> bool:
        """Return whether a load's guard is false only beyond the end of a dim, where TMA reads zeros."""
        guard = None if load.guard is None else self.e.nodes[load.guard]
        if not isinstance(guard, Map2) or guard.fn is not Fn2.LT or guard.a not in load.index:
            return False
        axis, end = decl.type.axes[load.index.index(guard.a)], self.e.nodes.get(guard.b)
        known = fixed_extent(axis, dict(self.plan.signature.extents))
        return end == Extent(axis) or (known is not None and end == Const(const_bits(known, DType.I32)))

    def begins_piece(self, value: Value, contraction: Contraction) -> bool:
        """Return whether a term of an index is the start of a launch's piece of the contracted axis."""
        match self.e.nodes[value]:
            case Map2(fn=Fn2.MUL, a=piece) if contraction.over.part is Part.WITHIN:
                return self.e.nodes[piece] == Param(Turn(contraction.over).index)
            case _:
                return False

    def tma_tile(self, value: Value) -> tuple[tuple[Value, ...], Axis] | None:
        """Return the scalars whose sum is the first index of a factor, and the axis of its position."""
        return count_up(value, self.e.nodes, lambda v: not self.e.shape(v))

    # --- the loop -------------------------------------------------------------------------------------------

    def dot(self, let: Let) -> str:
        """Write a contraction and return the accumulator's name."""
        contraction = self.of[let.value]
        shape = self.plan.shape(self.e.tile(let.value).axes)
        kind = text.TYPES[self.e.tile(let.value).dtype]
        name = self.e.let(let.name or "acc", f"tl.zeros({shape}, {kind})")
        length = self.extent(contraction.over) if contraction.stop is None else self.e[contraction.stop]
        match contraction.model:
            case DotModel.FMA:
                self.chain(contraction, name, length)
            case DotModel.CHAIN16 | DotModel.CDNA3 | DotModel.CDNA2 | DotModel.INTEGER:
                self.groups(let.value, contraction, name, length)
        return name

    def chain(self, contraction: Contraction, name: str, length: str) -> None:
        """Write one fma an element of the axis."""
        rows = ["" if f.prologue else self.pointer(f) for f in (contraction.a, contraction.b)]
        step = self.e.names.fresh(axis_name(contraction.over))
        with self.e.inner(f"for {step} in tl.range(0, {length}):"):
            tiles = [
                self.computed(contraction, f, step, None)
                if f.prologue
                else self.load(f, at, step, self.mask(f, None))
                for f, at in zip((contraction.a, contraction.b), rows, strict=True)
            ]
            self.e.line(f"{name} = tl.fma({tiles[0]}, {tiles[1]}, {name})")
        self.e.names.taken.discard(step)

    def groups(self, value: Value, contraction: Contraction, name: str, length: str) -> None:
        """Write the loop over full steps, then, where lanes need masks, the rest, filled with zeros."""
        sides = self.sides(contraction)
        padded = self.zeros_beyond(contraction)
        every = {
            i: "" if f.prologue else self.pointer(f)
            for i, f in enumerate(sides)
            if (value, i) not in self.described or not padded
        }
        rows = {i: start for i, start in every.items() if (value, i) not in self.described}
        depth = self.plan.schedule.depth
        full = str(int(length) // depth * depth) if length.isdigit() else f"{length} // {depth} * {depth}"
        if not every:
            full = length  # hardware fills the last step with zeros
        if full != "0":
            self.steps(contraction, name, f"0, {full}", None, rows)
        if full != length:
            self.steps(contraction, name, f"{full}, {length}", length, every)

    def steps(
        self, contraction: Contraction, name: str, bounds: str, end: str | None, rows: dict[int, str]
    ) -> None:
        """Write a loop of dots; end: of the axis where a step may pass it; rows: of factors by pointer."""
        stem, depth = axis_name(contraction.over), self.plan.schedule.depth
        first = self.e.names.fresh(f"{stem}_first")
        with self.e.inner(f"for {first} in tl.range({bounds}, {depth}):"):
            along = self.e.let(stem, f"{first} + tl.arange(0, {depth})") if rows else ""
            tiles = []
            for side, factor in enumerate(self.sides(contraction)):
                if side not in rows:
                    turned = (factor.at < self.across(factor)) == (side == 0)
                    tiles.append(self.copied(contraction, factor, first, turned))
                else:
                    spread = f"{along}[{'None, :' if side == 0 else ':, None'}]"
                    within = None if end is None else f"({spread} < {end})"
                    if factor.prologue:
                        tiles.append(self.computed(contraction, factor, spread, within))
                        continue
                    tiles.append(self.load(factor, rows[side], spread, self.mask(factor, within)))
            # with the option, which is for 8-bit floats, Triton does not fold a sum with the product into the
            # accumulator's initial value, as it would where a loop of one step is removed
            integer = contraction.model is DotModel.INTEGER
            apart = ", out_dtype=tl.int32" if integer else ", max_num_imprecise_acc=1"
            self.e.line(f"{name} = tl.dot({tiles[0]}, {tiles[1]}, {name}{apart})")
        self.e.names.taken.discard(first)

    def copied(self, contraction: Contraction, factor: Factor, step: str, turned: bool) -> str:
        """Write the TMA load of a tile; return it with the contracted axis where tl.dot expects it."""
        decl = self.decl(factor)
        load, across = factor.load, self.across(factor)
        found = self.tma_tile(load.index[across])
        assert found is not None
        scalars, axis = found
        tile_first = self.e.addresses.first.get(axis)
        start = self.total(scalars, tile_first)
        along = self.total(factor.base, step)
        first = {factor.at: along, across: start}
        at = ", ".join(first[d] if d in first else self.e[v] for d, v in enumerate(load.index))
        block = self.block(factor, self.plan.schedule.depth)
        text = f"{self.descriptors[decl.name, block]}.load([{at}])"
        if len(block) > 2:
            text = f"{text}.reshape([{', '.join(str(n) for d, n in enumerate(block) if d in first)}])"
        tile = self.e.let(factor.name, text)
        return f"{tile}.T" if turned else tile

    def total(self, scalars: tuple[Value, ...], last: str | None) -> str:
        """Return the text of a sum of scalars."""
        terms = [self.e[s] for s in scalars if self.e[s] != "0"]
        return " + ".join([*terms, *([last] if last is not None else [])]) or "0"

    # --- computed factors -----------------------------------------------------------------------------------

    def computed(self, contraction: Contraction, factor: Factor, along: str, within: str | None) -> str:
        """Write the loads of a factor at a step and what is computed of them; return its tile's name.

        along: the indices of the step along the contracted axis, spread as the tile is. within: the mask of
        those before the end, beyond which the tile is 0 whatever is computed of nothing.
        """
        over, hidden = contraction.over, self.never_materialized
        self.never_materialized = frozenset()
        inside = self.e.addresses.inside
        if within is not None:
            inside[over] = within
        for let in factor.prologue:
            if let.node == Pos(over):
                self.e.text[let.value] = along
            else:
                self.e.block((let,))
        inside.pop(over, None)
        self.never_materialized = hidden
        last = factor.prologue[-1].value
        made, dtype = self.e[last], self.e.tile(last).dtype
        by_mma = self.plan.target.vendor == "nvidia" and contraction.model is DotModel.CHAIN16
        if by_mma and self.loads_bytes(factor):
            made = self.e.let(factor.name, self.e.helpers.call("keep_k_order", made))
        if within is None:
            return made
        return self.e.let(factor.name, f"tl.where({within}, {made}, {'0.0' if dtype.is_float else '0'})")

    def loads_bytes(self, factor: Factor) -> bool:
        """Return whether a computed factor is made of elements of 8 bits."""
        loads = (let for let in factor.prologue if isinstance(let.node, Load))
        return any(self.e.tile(let.value).dtype.bytes == 1 for let in loads)

    # --- pointers -------------------------------------------------------------------------------------------

    def pointer(self, factor: Factor) -> str:
        """Write the addresses of a factor's elements at the start of the contracted axis."""
        decl = self.decl(factor)
        index = [(dim, v) for dim, v in enumerate(factor.load.index) if dim != factor.at]
        index += [(factor.at, v) for v in factor.base]
        return self.e.let(f"{factor.name}_start", self.e.addresses.sum_of(decl, index))

    def load(self, factor: Factor, start: str, along: str, mask: str | None) -> str:
        decl = self.decl(factor)
        if factor.at < len(decl.type.axes) - 1:
            along = f"{along}.to(tl.int64) * {self.e.addresses.stride(decl, factor.at)}"
        zero = "0.0" if decl.type.dtype.is_float else "0"
        masked = "" if mask is None else f", mask={mask}, other={zero}"
        return self.e.let(factor.name, f"tl.load({start} + {along}{masked})")

    def mask(self, factor: Factor, within: str | None) -> str | None:
        rows = self.e.addresses.mask(factor.axes, factor.load.guard)
        return " & ".join(term for term in (rows, within) if term is not None) or None
