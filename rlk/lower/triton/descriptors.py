"""Tensor descriptors (TMA) of the tiles that a loop streams, and their loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.nodes import Decl, Let, Load, Value
from rlk.ir.types import TileType
from rlk.lower.common.tma_tiles import TmaTile
from rlk.lower.triton.addresses import Addressed

WIDEST_STRIDE = 40  # bits that a descriptor has for a stride in bytes
ALIGNED = 8  # elements of 16 bits: of the stride of a dim that has one index


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a tensor under a TMA descriptor, in text: the address of the first, extents and strides.

    block: the shape of one load, with the same dims.
    """

    decl: Decl
    base: str
    shape: tuple[str, ...]
    strides: tuple[str, ...]
    block: tuple[int, ...]

    def alike(self, other: _Rows) -> bool:
        """Return whether the descriptors of two tensors differ only in base pointers and strides."""
        types = self.decl.type.dtype == other.decl.type.dtype
        return types and (self.shape, self.block) == (other.shape, other.block)


@dataclass(frozen=True, slots=True)
class _Described:
    """The name of a tensor's descriptor, and its index in it if two tensors share one."""

    name: str
    index: str | None = None


class Descriptors:
    """TMA descriptors of an emitter: a program makes one for each tensor, up to its sequence's end.

    To make one takes a twentieth of a program's time if sequences are short. So by
    `Schedule.shared_kv_descriptor` two tensors of equal shape and strides (different base pointers) share
    one: a leading dim of 2 whose stride is the distance of the tensors.
    """

    def __init__(self, emitter: Addressed) -> None:
        self.e = emitter
        self.plan = emitter.plan
        self.of: dict[Value, _Described] = {}
        self.made: dict[_Rows, _Described] = {}

    def describe(self, lets: Iterable[Let]) -> None:
        """Write the descriptors of the TMA loads among the lets of a loop."""
        found = {let.value: self.rows(let) for let in lets if let.value in self.plan.tma_tiles}
        new = [rows for rows in dict.fromkeys(found.values()) if rows not in self.made]
        if self.plan.schedule.shared_kv_descriptor and len(new) == 2 and new[0].alike(new[1]):
            self.made |= self.shared_kv_descriptor(new[0], new[1])
        else:
            for rows in new:
                made = _tensor(rows.base, rows.shape, rows.strides, rows.block)
                self.made[rows] = _Described(self.e.let(f"{rows.decl.name}_rows", made))
        self.of |= {value: self.made[rows] for value, rows in found.items()}

    def rows(self, let: Let) -> _Rows:
        """Return the rows of a tensor up to their end."""
        load, tma_tile = let.node, self.plan.tma_tiles[let.value]
        assert isinstance(load, Load)
        decl, last = self.e.addresses.decls[load.param], len(load.index) - 1
        heads = () if len(tma_tile.dims) == 1 else (tma_tile.each,)
        extent = fixed_extent(decl.type.axes[last], dict(self.plan.signature.extents))
        fixed = [(dim, v) for dim, v in enumerate(load.index) if dim not in (*tma_tile.dims, last)]
        return _Rows(
            decl,
            self.e.addresses.sum_of(decl, fixed),
            (_tokens(self.e[tma_tile.end], tma_tile), *map(str, heads), str(extent)),
            (*(self.e.addresses.stride(decl, dim) for dim in tma_tile.dims[::-1]), "1"),
            (self.steps(let) // tma_tile.each, *heads, self.length(decl.type.axes[last])),
        )

    def shared_kv_descriptor(self, a: _Rows, b: _Rows) -> dict[_Rows, _Described]:
        """Write one descriptor of two tensors, that with the lower address as its first half.

        A program makes the second descriptor too if this is impossible: strides differ, both tensors have one
        address, or their distance exceeds the range of a stride.
        """
        e, name = self.e, [rows.decl.name for rows in (a, b)]
        bases = [e.let(f"{n}_base", rows.base) for n, rows in zip(name, (a, b), strict=True)]
        apart = e.let("apart", f"{bases[1]}.to(tl.int64) - {bases[0]}.to(tl.int64)")
        differ = [f"({s} != {t})" for s, t in zip(a.strides, b.strides, strict=True) if s != t]
        near = f"(tl.abs({apart}) >= 1 << {WIDEST_STRIDE})"
        alone = e.let("alone", " | ".join([*differ, f"({apart} == 0)", near]))
        ordered = e.let("ordered", f"{alone} | ({apart} > 0)")
        index = [e.let(f"{name[0]}_half", f"tl.where({ordered}, 0, 1)")]
        index.append(e.let(f"{name[1]}_half", f"1 - {index[0]}"))
        base = f"tl.where({ordered}, {bases[0]}, {bases[1]})"
        stride = f"tl.where({alone}, {ALIGNED}, tl.abs({apart}) // 2)"
        block = (1, *a.block)
        made = _tensor(base, ("2", *a.shape), (stride, *a.strides), block)
        rows = [e.let(f"{name[0]}_rows", made)]
        rows.append(e.let(f"{name[1]}_rows", rows[0]))
        with e.inner(f"if {alone}:"):
            made = _tensor(bases[1], ("1", *b.shape), (str(ALIGNED), *b.strides), block)
            e.line(f"{index[1]}, {rows[1]} = 0, {made}")
        return {a: _Described(rows[0], index[0]), b: _Described(rows[1], index[1])}

    def load(self, let: Let) -> str:
        """Write a TMA load of consecutive rows; return its name."""
        assert isinstance(let.node, Load)
        tma_tile, described = self.plan.tma_tiles[let.value], self.of[let.value]
        first, hint = _tokens(self.e[tma_tile.first], tma_tile), let.name or let.node.param
        half = () if described.index is None else (described.index,)
        at = _listed(*half, first, *(0 for _ in tma_tile.dims))
        tile = f"{described.name}.load({at})"
        if half or len(tma_tile.dims) > 1:
            width = self.length(self.e.addresses.decls[let.node.param].type.axes[-1])
            tile = f"tl.reshape({tile}, ({self.steps(let)}, {width}))"
        return self.e.let(hint, tile)

    def steps(self, let: Let) -> int:
        """Return the number of rows of one load."""
        type = self.e.types[let.value]
        assert isinstance(type, TileType)
        return self.length(next(axis for axis in type.axes if axis.chunk is not None))

    def length(self, axis: Axis) -> int:
        return next(dim.length for dim in self.plan.dims if dim.axis == axis)


def _tensor(base: str, shape: Iterable[str], strides: Iterable[str], block: Iterable[int]) -> str:
    dims = f"shape={_listed(*shape)}, strides={_listed(*strides)}, block_shape={_listed(*block)}"
    return f"tl.make_tensor_descriptor({base}, {dims})"


def _listed(*items: object) -> str:
    return f"[{', '.join(map(str, items))}]"


def _tokens(row: str, tma_tile: TmaTile) -> str:
    """Return the text of a row's coordinate along the slowest dim of its TMA tile."""
    return row if tma_tile.each == 1 else f"{row} // {tma_tile.each}"
