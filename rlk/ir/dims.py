"""Axes and their parts: chunk, split, piece and leaf are numerics, never schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from math import gcd, lcm
from types import MappingProxyType

from rlk.errors import Code, LaunchError, SpecError, author


class Part(Enum):
    """The share of an axis that a tile dim runs over."""

    ALL = ""
    PIECE = "piece"
    STEP = "step"
    WITHIN = "within"
    LANE = "lane"

    __hash__ = object.__hash__  # members are singletons; Enum's own hashes the name, by a Python function


def is_power_of_two(n: int) -> bool:
    """Return whether n is 1, 2, 4, ..."""
    return n >= 1 and n & (n - 1) == 0


@dataclass(frozen=True, slots=True)
class Share:
    """An extent that follows from that of another axis: `N // 4`, `N * 2`, `-(-N // 128)`.

    axis: the other axis, by name. times, per: it is the other's extent times `times`, divided by `per`, which
    divides the product. up: rounded up instead. minus: half of a rounding up, which is no extent. dynamic:
    whether the other axis is.
    """

    axis: str
    times: int = 1
    per: int = 1
    up: bool = False
    minus: bool = False
    dynamic: bool = False

    def __mul__(self, times: int) -> Share:
        if self.per != 1 or not _is_count(times):
            raise SpecError(Code.EXTENT_OF, author(), what=f"({self}) * {times!r}")
        return replace(self, times=self.times * times)

    __rmul__ = __mul__

    def __floordiv__(self, per: int) -> Share:
        if self.up or not _is_count(per):
            raise SpecError(Code.EXTENT_OF, author(), what=f"({self}) // {per!r}")
        return replace(self, per=self.per * per)

    def __neg__(self) -> Share:
        return replace(self, minus=not self.minus, up=self.minus)

    def __add__(self, other: object) -> Share:
        return _no_extent(self, "+", other)

    def __radd__(self, other: object) -> Share:
        return _no_extent(other, "+", self)

    def __sub__(self, other: object) -> Share:
        return _no_extent(self, "-", other)

    def __rsub__(self, other: object) -> Share:
        return _no_extent(other, "-", self)

    def __truediv__(self, other: object) -> Share:
        return _no_extent(self, "/", other)

    def __str__(self) -> str:
        times = f"{self.axis}*{self.times}" if self.times != 1 else self.axis
        if self.minus:
            return f"-{times}" if self.per == 1 else f"-{times}//{self.per}"
        if self.up:
            return f"-(-{times}//{self.per})"
        return times if self.per == 1 else f"{times}//{self.per}"

    def of(self, extent: int) -> int | None:
        """Return the extent for one of the other axis; None where `per` does not divide it."""
        product = extent * self.times
        return -(-product // self.per) if self.up or product % self.per == 0 else None

    @property
    def step(self) -> int:
        """The smallest extent of the other axis of which the share is whole."""
        return 1 if self.up else self.per // gcd(self.per, self.times)


def _is_count(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 1


def _no_extent(a: object, sign: str, b: object) -> Share:
    """Raise for arithmetic that gives no extent; the arithmetic of others, as of tiles, is theirs."""
    if not all(isinstance(x, int | float | Axis | Share) for x in (a, b)):
        return NotImplemented  # type: ignore[no-any-return]
    raise SpecError(Code.EXTENT_OF, author(), what=f"{a} {sign} {b}")


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis of the index space. Axes are equal if all of their fields are.

    chunk: the number of elements that a stream takes in one step (a power of two); of a dynamic axis also
    what a reduction of the whole axis takes, which is a stream then.
    split: the number of pieces, of ceil(extent / split) elements each; as a fold's, they merge pairwise.
    piece: the number of elements of a piece, from the start of the axis (or of the segment of a ragged
    axis).
    fan_in: the number of pieces whose sums are added at once, by halving (a power of two); None: one.
    leaf: where a fold restarts its state: at each "chunk", at each "piece", or only at each "segment".
    over: for a ragged axis, the name of the axis that has one segment of it per index.
    dynamic: the extent is a run-time value and never part of a cache key.
    extent: a number, or an extent that follows from another axis: `N // 4` (4 must divide N), `N * 2`,
    `-(-N // 128)` (rounded up). Calls with another extent are ARG_EXTENT. No tensor need have the axis.

    Shapes: `Tensor[f32, T, N]` has the dims T and N, outermost first. An extent comes from the tensors of
    a call, or is declared; it is part of the code unless `dynamic`, which an axis is whose extent follows
    from a dynamic one. The first dim of the first tensor, if dynamic, stands for any number of leading dims.
    Dtypes: none. All but `name`, `over` and `dynamic` are numerics: a change of one is another numerics
    id.
    Raises: AXIS_SIZE, AXIS_TWO_CUTS, AXIS_FAN_IN, AXIS_LEAF, AXIS_LEAF_SIZE, AXIS_SEGMENT, AXIS_EXTENT,
    EXTENT_OF.

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
    >>> D = Axis("D", extent=N * 2)                 # no tensor has it
    >>> y.at(L.pos(D) // 2)                         # each column twice
    [10, 10, 20, 20, 30, 30, 40, 40]
    >>> Axis("A", extent=0)
    [AXIS_EXTENT]
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
    extent: int | Share | None = None

    def __post_init__(self) -> None:
        if self.extent is not None:
            self._check_extent()
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

    def _check_extent(self) -> None:
        """Raise for what is no extent; an axis is dynamic if its extent follows from a dynamic one."""
        match self.extent:
            case Share(minus=False, axis=axis, dynamic=dynamic) if axis != self.name and self.over is None:
                object.__setattr__(self, "dynamic", self.dynamic or dynamic)
            case extent if not _is_count(extent) or self.dynamic or self.over is not None:
                shown = str(extent) if isinstance(extent, Axis | Share) else repr(extent)
                why = " of a ragged axis" if self.over is not None else " of a dynamic axis" * self.dynamic
                raise SpecError(Code.AXIS_EXTENT, author(), axis=self.name, extent=shown, why=why)

    def __floordiv__(self, per: int) -> Share:
        return self._share() // per if isinstance(per, int | float) else _no_extent(self, "//", per)

    def __mul__(self, times: int) -> Share:
        return self._share() * times if isinstance(times, int | float) else _no_extent(self, "*", times)

    __rmul__ = __mul__
    __add__, __radd__, __sub__, __rsub__ = Share.__add__, Share.__radd__, Share.__sub__, Share.__rsub__
    __truediv__ = Share.__truediv__

    def __neg__(self) -> Share:
        return -self._share()

    def _share(self) -> Share:
        if self.part is not Part.ALL or self.over is not None:
            raise SpecError(Code.EXTENT_OF, author(), what=f"a share of {self}")
        return Share(self.name, dynamic=self.dynamic)

    def __hash__(self) -> int:
        # axes differ in these, but for mistakes; hashing all fields takes several times as long
        return hash((self.name, self.part))

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
        return _part(self, Part.PIECE)

    @property
    def within(self) -> Axis:
        """The axis that counts the elements of one piece of this one.

        Shapes: an axis of `piece` elements, or of ceil(extent / split).
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", piece=64).within
        A.within
        """
        return _part(self, Part.WITHIN)

    @property
    def steps(self) -> Axis:
        """The axis that counts the chunks of a piece of this one.

        Shapes: an axis of `steps_of_piece` elements.
        Dtypes: none.
        Raises: nothing.

        >>> Axis("A", chunk=16, piece=64).steps
        A.step
        """
        return _part(self, Part.STEP)

    @property
    def lanes(self) -> Axis:
        """The axis that counts the elements of one chunk of this one.

        Shapes: an axis of `chunk` elements.
        Dtypes: none.
        Raises: nothing.

        >>> kept = L.total(kept=True)
        >>> for v in L.stream(V):
        ...     kept.absorb(q[v])
        >>> L.sum(kept.value, over=V.lanes)
        [16, 17]
        """
        return _part(self, Part.LANE)

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
        return self if self.part is Part.ALL else _part(self, Part.ALL)


@lru_cache(1 << 12)
def _part(axis: Axis, part: Part) -> Axis:
    """Return a part of an axis. Passes ask for the same ones for every value of a program."""
    return replace(axis, part=part)


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


def completed(
    op: str,
    axes: Iterable[Axis],
    extents: Mapping[str, int],
    owners: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, int]:
    """Return extents with those that axes declare; raise LaunchError for one that is not as declared.

    Of axes whose extent follows from an unknown one nothing is known. owners: tensors that have the axes.
    """
    found = dict(extents)
    left = {a.name: a.extent for a in axes if a.extent is not None}
    while known := {n: x for n, x in left.items() if not isinstance(x, Share) or x.axis in found}:
        for name, declared in known.items():
            wanted, why = declared if isinstance(declared, int) else None, ""
            if isinstance(declared, Share):
                other, of = declared.axis, found[declared.axis]
                why = f", which is {declared} where {other} = {of}"
                wanted = declared.of(of)
                if wanted is None:
                    raise LaunchError(
                        Code.ARG_EXTENT_STEP, op=op, axis=other, got=of, step=declared.step, of=name,
                        share=declared,
                    )  # fmt: skip
            assert wanted is not None
            if found.setdefault(name, wanted) != wanted:
                who, got = owners.get(name, "a tensor"), found[name]
                raise LaunchError(
                    Code.ARG_EXTENT, op=op, name=who, axis=name, got=got, wanted=f"{wanted}{why}"
                )
            del left[name]
    return found


def steps_of(axes: Iterable[Axis]) -> dict[str, int]:
    """Return, for each axis that extents of others follow from, what its extent is a multiple of."""
    found: dict[str, int] = {}
    for axis in axes:
        if isinstance(axis.extent, Share):
            found[axis.extent.axis] = lcm(found.get(axis.extent.axis, 1), axis.extent.step)
    return found


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
