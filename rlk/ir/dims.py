"""Axes and their parts: chunk, split, piece and leaf are numerics, never schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from rlk.errors import Code, SpecError, author


class Part(Enum):
    """The share of an axis that a tile dim runs over."""

    ALL = ""
    PIECE = "piece"
    STEP = "step"
    WITHIN = "within"
    LANE = "lane"


def is_power_of_two(n: int) -> bool:
    """Return whether n is 1, 2, 4, ..."""
    return n >= 1 and n & (n - 1) == 0


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis of the index space. Axes are equal if all of their fields are.

    chunk: the number of elements that a stream takes in one step (a power of two).
    split: the number of pieces, of ceil(extent / split) elements each; as a fold's, they merge pairwise.
    piece: the number of elements of a piece, from the start of the axis (or of the segment of a ragged
    axis).
    fan_in: the number of pieces whose sums are added at once, by halving (a power of two); None: one.
    leaf: where a fold restarts its state: at each "chunk", at each "piece", or only at each "segment".
    over: for a ragged axis, the name of the axis that has one segment of it per index.
    dynamic: the extent is a run-time value and never part of a cache key.

    Shapes: `Tensor[f32, T, N]` has the dims T and N, outermost first. An extent comes from the tensors of
    a call; it is part of the code unless `dynamic`. The first dim of the first tensor, if dynamic, stands
    for any number of leading dims.
    Dtypes: none. All but `name`, `over` and `dynamic` are numerics: a change of one is another numerics
    id.
    Raises: AXIS_SIZE, AXIS_TWO_CUTS, AXIS_FAN_IN, AXIS_LEAF, AXIS_LEAF_SIZE, AXIS_SEGMENT.

    >>> pairs, halves = L.total(), L.total(kept=True)
    >>> for v in L.stream(V):                       # V has chunk=2
    ...     pairs.absorb(z[v])
    ...     halves.absorb(z[v])
    >>> L.out(total=pairs.value, lanes=L.max(halves.value, over=V.lanes))
    total: [10, 9]
    lanes: [6, 9]
    >>> Axis("A", chunk=16, piece=64, fan_in=4, leaf="piece").lanes
    A.lane
    >>> Axis("A", chunk=3)
    [AXIS_SIZE]
    >>> Axis("A", split=8, piece=64)
    [AXIS_TWO_CUTS]
    """

    name: str
    chunk: int | None = None
    split: int | None = None
    piece: int | None = None
    fan_in: int | None = None
    leaf: str = "chunk"
    over: str | None = None
    dynamic: bool = False
    part: Part = Part.ALL

    def __post_init__(self) -> None:
        for field, value in (("chunk", self.chunk), ("split", self.split), ("fan_in", self.fan_in)):
            if value is not None and not is_power_of_two(value):
                raise SpecError(Code.AXIS_SIZE, author(), axis=self.name, field=field, value=value)
        if self.split is not None and self.piece is not None:
            raise SpecError(Code.AXIS_TWO_CUTS, author(), axis=self.name)
        if self.fan_in is not None and self.piece is None:
            raise SpecError(Code.AXIS_FAN_IN, author(), axis=self.name)
        if self.leaf not in ("chunk", "piece", "segment"):
            raise SpecError(Code.AXIS_LEAF, author(), axis=self.name, leaf=self.leaf)
        chunk, piece = self.chunk or 0, self.piece or 0
        if self.leaf == "piece" and (not chunk or not piece or piece % chunk):
            raise SpecError(Code.AXIS_LEAF_SIZE, author(), axis=self.name, piece=piece, chunk=chunk)
        if self.leaf == "segment" and (not chunk or self.piece or self.split):
            raise SpecError(Code.AXIS_SEGMENT, author(), axis=self.name, chunk=chunk)

    def __hash__(self) -> int:
        # axes differ in these, but for mistakes; hashing all fields takes several times as long
        return hash((self.name, self.part._value_))

    def __str__(self) -> str:
        return self.name if self.part is Part.ALL else f"{self.name}.{self.part.value}"

    @property
    def steps_of_piece(self) -> int:
        """The number of chunks of a piece.

        Shapes: none: a Python number.
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", chunk=16, piece=64).steps_of_piece
        4
        """
        return (self.piece or 1) // (self.chunk or 1)

    @property
    def pieces(self) -> Axis:
        """The axis that counts this one's pieces.

        Shapes: an axis for states that are kept for each piece.
        Dtypes: none.
        Raises: nothing.

        >>> kept = L.total(kept=True)
        >>> for v in L.stream(V):
        ...     kept.absorb(z[v])
        >>> kept.value.axes
        T, V.lane
        """
        return replace(self, part=Part.PIECE)

    @property
    def within(self) -> Axis:
        """The axis that counts the elements of one piece of this one.

        Shapes: an axis of `piece` elements, or of ceil(extent / split).
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", piece=64).within
        A.within
        """
        return replace(self, part=Part.WITHIN)

    @property
    def steps(self) -> Axis:
        """The axis that counts the chunks of a piece of this one.

        Shapes: an axis of `steps_of_piece` elements.
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", chunk=16, piece=64).steps
        A.step
        """
        return replace(self, part=Part.STEP)

    @property
    def lanes(self) -> Axis:
        """The axis that counts the elements of one chunk of this one.

        Shapes: an axis of `chunk` elements.
        Dtypes: none.
        Raises: nothing.

        >>> kept = L.total(kept=True)
        >>> for v in L.stream(V):
        ...     kept.absorb(c[v])
        >>> L.sum(kept.value, over=V.lanes)
        [16, 17]
        """
        return replace(self, part=Part.LANE)

    @property
    def fan(self) -> Axis | None:
        """The axis of the pieces whose sums are added at once, of an axis of pieces with a fan_in; else None.

        Shapes: an axis of `fan_in` elements.
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", piece=64, fan_in=4).pieces.fan
        A_piece.lane
        """
        if self.fan_in is None or self.part is not Part.PIECE:
            return None
        return Axis(f"{self.name}_{self.part.value}", chunk=self.fan_in).lanes

    @property
    def whole(self) -> Axis:
        """The axis that this one is a part of.

        Shapes: the axis itself, of a part of it.
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", chunk=16).lanes.whole
        A
        """
        return self if self.part is Part.ALL else replace(self, part=Part.ALL)


def Ragged(name: str, over: Axis, *, chunk: int = 1, piece: int | None = None, leaf: str = "chunk") -> Axis:
    """Return a ragged axis: a segment of packed elements for each index of another axis.

    A stream says where they are: `L.stream(S, begin=..., end=...)`; positions count through the packed
    tensor. Where its elements are rows of a kernel, not streamed, segments are in ascending order and do not
    overlap: end[i] <= begin[i + 1], for empty segments too. Kernels find a row's segment by bisection; in
    other orders rows may be left out, and no error says so.

    Shapes: the segment of index i of `over` is [begin[i], end[i]).
    Dtypes: none.
    Raises: as Axis: AXIS_SIZE, AXIS_LEAF, AXIS_LEAF_SIZE, AXIS_SEGMENT.

    >>> most = L.argmax()
    >>> for e in L.stream(S, begin=begin, end=end):
    ...     most.absorb(p.at(e.pos))
    >>> most.index
    [1, 5]
    """
    return Axis(name, chunk=chunk, piece=piece, leaf=leaf, over=over.name, dynamic=True)


def extent_of(axis: Axis, whole: int) -> int:
    """Return the extent of an axis, given the extent of the whole axis that it is a part of."""
    match axis.part:
        case Part.ALL:
            return whole
        case Part.LANE:
            return axis.chunk or 1
        case Part.PIECE if axis.split is not None:
            return axis.split
        case Part.PIECE:
            return -(-whole // (axis.piece or 1))
        case Part.WITHIN:
            return min(axis.piece, whole) if axis.piece is not None else -(-whole // (axis.split or 1))
        case Part.STEP:
            longest = axis.piece or -(-whole // (axis.split or 1))
            return -(-longest // (axis.chunk or 1))


def fixed_extent(axis: Axis, extents: Mapping[str, int]) -> int | None:
    """Return the extent of an axis, or None if it is unknown or pieces differ in it."""
    if axis.part is Part.PIECE and axis.split is not None:
        return axis.split
    if axis.name not in extents:
        return None
    whole = extents[axis.name]
    if axis.part is Part.WITHIN and whole % (axis.piece or axis.split or 1):
        return None
    return extent_of(axis, whole)


def union(*groups: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes of all groups, each once, in the order of first appearance."""
    return tuple(dict.fromkeys(axis for group in groups for axis in group))


def without(axes: tuple[Axis, ...], gone: Axis) -> tuple[Axis, ...]:
    """Return the axes except one."""
    return tuple(axis for axis in axes if axis != gone)
