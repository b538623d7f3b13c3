"""Factors of contractions in memory, and the values that exist only for a contraction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rlk.errors import Loc, LoweringError
from rlk.ir.dims import Axis, Part, union
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import (
    Bits,
    Cast,
    Dot,
    Fma,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    Node,
    Pos,
    Reduce,
    Select,
    Store,
    Value,
    operands,
)
from rlk.ir.types import TileType
from rlk.passes.prologue import elementwise, prologue
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of
from rlk.target.facts import Target


@dataclass(frozen=True, slots=True)
class Factor:
    """A tensor that a contraction reads: the index of dim `at` runs along the contracted axis.

    base: the sum of these scalars is its first index there. axes: of the other indices. prologue: what a
    computed or gathered factor is made of along the contracted axis, in order, the factor itself last.
    `load`, `at` and `base` are then those of the only tensor that it loads there; `at` is -1 where there are
    several, or one whose elements do not lie along a dim.
    """

    load: Load
    at: int
    axes: tuple[Axis, ...]
    name: str
    base: tuple[Value, ...] = ()
    prologue: tuple[Let, ...] = ()


@dataclass(frozen=True, slots=True)
class Contraction:
    """A `Dot` of two tensors in memory, or of values that are computed elementwise from such.

    stop: a scalar; from there on the axis has no elements. batched: every index of other axes has a
    contraction of its own.
    """

    a: Factor
    b: Factor
    over: Axis
    model: DotModel
    stop: Value | None = None
    batched: bool = False


@dataclass(frozen=True, slots=True)
class Contractions:
    """The contractions of a kernel by value; never_materialized: values that exist only inside of them."""

    of: dict[Value, Contraction]
    never_materialized: frozenset[Value]


Refusal = Callable[[str, Target, Loc, str], LoweringError]
"""Returns the error of a lowering, given what it lacks, a target, a place, and what to write instead."""


def contractions_of_loads(kernel: Kernel, target: Target, refused: Refusal) -> Contractions:
    """Return the contractions of a kernel; raise a lowering's error where a factor is computed."""
    return _without(kernel, target, refused, lambda factor: bool(factor.prologue))


def contractions_of_tiles(kernel: Kernel, target: Target, refused: Refusal) -> Contractions:
    """Return the contractions of a kernel, each of whose factors is one tile of a tensor at a step.

    Factors may be computed from their tile, from its indices and from numbers of its rows. Raises a
    lowering's error where one needs several tiles, or a gathered one.
    """
    return _without(kernel, target, refused, lambda factor: factor.at < 0)


def _without(
    kernel: Kernel, target: Target, refused: Refusal, lacks: Callable[[Factor], bool]
) -> Contractions:
    found = contractions(kernel)
    lets = {let.value: let for let in walk(kernel.body)}
    for value, contraction in found.of.items():
        for factor in filter(lacks, (contraction.a, contraction.b)):
            last, dot = factor.prologue[-1], lets[value]
            gathered = isinstance(last.node, Load)
            error = gathered_error(last, dot) if gathered else computed_factor_error(dot, lets)
            raise refused(error.lacks, target, error.loc, error.instead)
    return found


def contractions(kernel: Kernel) -> Contractions:
    """Return the contractions of a kernel.

    Raises LoweringError where a factor is neither a tensor in memory nor computed elementwise from such.
    """
    lets = {let.value: let for let in walk(kernel.body)}
    axes = {v: type.axes for v, type in types_of(kernel).items() if isinstance(type, TileType)}
    found = {v: _contraction(let, lets, axes) for v, let in lets.items() if isinstance(let.node, Dot)}
    computed = {let.value for c in found.values() for f in (c.a, c.b) for let in f.prologue}
    over = {c.over for c in found.values()}
    never_materialized = frozenset(v for v in lets if not over.isdisjoint(axes.get(v, ())))
    batches = {axis for let in lets.values() if isinstance(let.node, Dot) for axis in let.node.each or ()}
    for let in lets.values():
        if isinstance(let.node, Reduce) and let.node.over in batches:
            axis, x = let.node.over, lets.get(let.node.x)
            what = f"a reduction over {axis} in the kernel of contractions, one for every index of {axis}"
            raise LoweringError(what, kept([x.name] if x is not None else [], let.loc, _PRODUCTS), let.loc)
        if isinstance(let.node, Reduce) and let.node.over in over:
            raise LoweringError(
                f"a kernel that contracts and reduces one axis, {let.node.over}", _APART, let.loc
            )
        if never_materialized.isdisjoint(operands(let.node)) or isinstance(let.node, Dot | Load):
            continue
        if let.value in computed:
            continue
        if (
            let.value not in never_materialized
            or not isinstance(let.type, TileType)
            or let.type.dtype.is_float
        ):
            along = next(a for a in over if a in axes.get(let.value, ()) or _reads(let, a, axes))
            what = f"a kernel that contracts {along} with L.dot and uses values along {along} elsewhere, too"
            raise LoweringError(what, _APART, let.loc)
    return Contractions(found, never_materialized)


def covered(kernel: Kernel, value: Value, guard: Value) -> bool:
    """Return whether elements of a contraction where a guard is false are masked before they are used."""
    nodes = {let.value: let.node for let in walk(kernel.body)}
    exposed = {value}
    for let in walk(kernel.body):
        read = exposed.intersection(operands(let.node))
        match let.node:
            case Loop(body=body) if exposed.intersection(body.results):
                return False
            case _ if not read:
                pass
            case Select(cond=cond, b=b) if implies(nodes, cond, guard) and not read & {cond, b}:
                pass
            case Store(index=index, guard=mask) if mask is not None and implies(nodes, mask, guard):
                if read.intersection((*index, mask)):
                    return False
            case Map1() | Map2() | Math() | Fma() | Select() | Cast() | Bits():
                exposed.add(let.value)
            case _:
                return False
    return True


def implies(nodes: Mapping[Value, Node], condition: Value, guard: Value) -> bool:
    """Return whether a condition is a conjunction that contains a guard."""
    node = nodes.get(condition)
    match node:
        case _ if condition == guard:
            return True
        case Map2(fn=Fn2.AND, a=a, b=b):
            return implies(nodes, a, guard) or implies(nodes, b, guard)
        case _:
            return False


def _contraction(let: Let, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]) -> Contraction:
    assert isinstance(let.node, Dot)
    dot, over = let.node, let.node.over
    a, b = (_computed(v, dot, lets, axes) or _factor(let, v, lets, axes) for v in (dot.a, dot.b))
    # a computed factor is 0 beyond an end, by the pass that made it
    loaded = [v for v, factor in ((dot.a, a), (dot.b, b)) if not factor.prologue]
    stops = {_stop(dot, lets[v].node, lets, axes) for v in loaded}
    for rows, gathered in ((a, b), (b, a)):
        _refuse_gathered(let, rows, gathered, lets, axes)
    if len(stops) > 1:
        what = f"a contraction over {over} whose factors end at different elements"
        raise LoweringError(what, "give both the same bound, or mask the result with L.where", let.loc)
    return Contraction(a, b, over, dot.model, next(iter(stops), None), bool(dot.each))


def _refuse_gathered(
    let: Let, rows: Factor, gathered: Factor, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]
) -> None:
    """Raise LoweringError where each single row of a factor has a matrix that is gathered for it."""
    assert isinstance(let.node, Dot)
    each = let.node.each or ()
    by_index = [
        axis for v in gathered.load.index for axis in axes[v] if axis in each and lets[v].node != Pos(axis)
    ]
    if by_index and set(rows.axes) <= set(each):
        error = gathered_matrices_error(let, rows.name, gathered.name)
        raise LoweringError(f"{error.lacks} for each row of {by_index[0]}", error.instead, error.loc)


def _stop(
    dot: Dot, node: Node, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]
) -> Value | None:
    """Return the end of the contracted axis according to a factor's guard."""
    guard = node.guard if isinstance(node, Load) else None
    match None if guard is None else lets[guard].node:
        case Map2(fn=Fn2.LT, a=a, b=b) if a in lets and lets[a].node == Pos(dot.over):
            return b if _one_number(axes[b], dot) else None
        case _:
            return None


def _one_number(axes: tuple[Axis, ...], dot: Dot) -> bool:
    """Return whether a value is a scalar in a tile: a tile has one piece, and one index of a batch axis."""
    return all(axis.part is Part.PIECE or axis in (dot.each or ()) for axis in axes)


def _computed(
    value: Value, dot: Dot, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]
) -> Factor | None:
    """Return a factor that is computed elementwise from loads; None for any other."""
    made = prologue(value, dot.over, lets)
    return _of_prologue(made, dot, lets, axes) if made else None


def _of_prologue(
    made: tuple[Let, ...], dot: Dot, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]
) -> Factor:
    loads = [let.node for let in made if isinstance(let.node, Load)]
    others = tuple(axis for axis in axes[made[-1].value] if axis != dot.over)
    name = made[-1].name or loads[0].param
    found = _along(dot, loads[0], lets, axes) if len(loads) == 1 else None
    guard = loads[0].guard
    if found is None or loads[0].fill is not None or (guard is not None and dot.over in axes[guard]):
        return Factor(loads[0], -1, others, name, prologue=made)
    return Factor(loads[0], found[0], others, name, found[1], made)


def _along(
    dot: Dot, load: Load, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]
) -> tuple[int, tuple[Value, ...]] | None:
    """Return the dim of a load that runs along the contracted axis, and the scalars of its first index."""
    along = [i for i, v in enumerate(load.index) if dot.over in axes[v]]
    nodes = {v: found.node for v, found in lets.items()}
    counted = [count_up(load.index[i], nodes, lambda v: _one_number(axes[v], dot)) for i in along]
    return (along[0], counted[0][0]) if len(counted) == 1 and counted[0] is not None else None


def _factor(dot: Let, value: Value, lets: dict[Value, Let], axes: Mapping[Value, tuple[Axis, ...]]) -> Factor:
    assert isinstance(dot.node, Dot)
    contraction, over, let = dot.node, dot.node.over, lets.get(value)
    if let is None or not isinstance(let.node, Load):
        raise computed_factor_error(dot, lets)
    load = let.node
    along = _along(contraction, load, lets, axes)
    bounded = load.guard is not None and over in axes[load.guard]
    masked = load.fill is not None or (bounded and _stop(contraction, load, lets, axes) is None)
    if bounded and not masked:
        load = replace(load, guard=None)
    if along is None or masked:
        made = elementwise(value, over, lets)
        if not made:
            raise gathered_error(let, dot)
        return _of_prologue(made, contraction, lets, axes)
    others = (axes[v] for i, v in enumerate(load.index) if i != along[0])
    return Factor(load, along[0], union(*others), let.name or load.param, along[1])


def count_up(
    value: Value, nodes: Mapping[Value, Node], scalar: Callable[[Value], bool]
) -> tuple[tuple[Value, ...], Axis] | None:
    """Return an index of the form (sum of scalars) + position as those scalars and the axis."""
    match nodes.get(value):
        case Pos(axis=axis) if not scalar(value):
            return (), axis
        case Map2(fn=Fn2.ADD, a=a, b=b):
            for one, rest in ((a, b), (b, a)):
                inner = count_up(rest, nodes, scalar) if scalar(one) else None
                if inner is not None:
                    return (one, *inner[0]), inner[1]
            return None
        case _:
            return None


_FACTOR = 'y = L.keep(..., "y") of the factor, then L.dot(y, ...)'
_PRODUCTS = 'y = L.keep(..., "y") of what is reduced, and the reduction of y'
_APART = (
    'a kernel of its own for the other result: s = L.keep(s, "s"); '
    "or the tensor once more, as a parameter whose axis has another name"
)


def _reads(let: Let, axis: Axis, axes: Mapping[Value, tuple[Axis, ...]]) -> bool:
    return any(axis in axes.get(v, ()) for v in operands(let.node))


def kept(names: Iterable[str], loc: Loc, otherwise: str = _FACTOR) -> str:
    """Return what to write for values that are not in memory as another nest reads them.

    names: of values; those that the line does not mention are no names of the author. otherwise: what to
    write without one.
    """
    mine = [name for name in names if loc.mentions(name)]
    lines = "; ".join(f'{name} = L.keep({name}, "{name}")' for name in mine)
    return f"{lines} in the line before" if mine else otherwise


def gathered_error(let: Let, dot: Let) -> LoweringError:
    """Return the error of a factor whose elements are gathered along the contracted axis, or have a fill."""
    assert isinstance(let.node, Load) and isinstance(dot.node, Dot)
    name, over = let.node.param, dot.node.over
    lacks = f"a contraction over {over} of elements of {name} that do not lie along one of its dims"
    return LoweringError(lacks, kept([] if let.name == name else [let.name], dot.loc), dot.loc)


def gathered_matrices_error(dot: Let, x: str, w: str) -> LoweringError:
    """Return the error of a contraction of single rows x with a matrix of w that is gathered for each."""
    assert isinstance(dot.node, Dot)
    instead = (
        f'rows sorted by index, R = Ragged("R", over=E): {x}.at(begin + L.pos(R), ..., when=...), '
        f"{w}.at(E, ...) and each=(E,), as in rlk/specs/grouped.py"
    )
    return LoweringError(f"a contraction over {dot.node.over} of {w} gathered", instead, dot.loc)


def computed_factor_error(dot: Let, lets: Mapping[Value, Let]) -> LoweringError:
    """Return the error of a contraction whose factor is computed in the same kernel."""
    assert isinstance(dot.node, Dot)
    computed = [v for v in (dot.node.a, dot.node.b) if v not in lets or not isinstance(lets[v].node, Load)]
    names = [lets[v].name for v in computed if v in lets and lets[v].name]
    factors = "both factors are" if len(computed) > 1 else "one factor is"
    lacks = f"a contraction over {dot.node.over} of which {factors} computed in the same kernel"
    return LoweringError(lacks, kept(names, dot.loc), dot.loc)


def dense_rows_error(kernel: Kernel) -> LoweringError:
    """Return the error of fused attention of rows that are no segments, where those alone are supported."""
    error = unfused_error(kernel)
    lets = {let.value: let for let in walk(kernel.body)}
    types = [lets[let.value].type for let in lets.values() if isinstance(let.node, Dot)]
    rows = next((t.axes[0] for t in types if isinstance(t, TileType) and t.axes), None)
    instead = 'rows of Ragged("Q", over=B), as in rlk/specs/attention.py, or backend triton'
    lacks = f"fused attention whose query rows {rows} are not the segments of a ragged axis"
    return LoweringError(lacks, instead, error.loc)


def unfused_error(kernel: Kernel) -> LoweringError:
    """Return the error of a kernel with a computed factor that is no fused attention: it has no rows."""
    lets = {let.value: let for let in walk(kernel.body)}
    stepped = {x.value for let in lets.values() if isinstance(let.node, Loop) for x in walk(let.node.body)}
    dots = [
        let
        for let in lets.values()
        if isinstance(let.node, Dot)
        and any(v not in lets or not isinstance(lets[v].node, Load) for v in (let.node.a, let.node.b))
    ]
    dot = dots[0]
    if dot.value not in stepped:
        return computed_factor_error(dot, lets)
    assert isinstance(dot.node, Dot)
    type = lets[dot.node.a].type if dot.node.a in lets else None
    rows = [axis for axis in type.axes if axis != dot.node.over] if isinstance(type, TileType) else []
    of_each = f" for each {', '.join(map(str, rows))}" if rows else ", which has no other axis"
    lacks = f"a contraction over {dot.node.over} of a computed vector{of_each}"
    return LoweringError(lacks, "absorb(p * v.to(f32)) of the fold, without by=", dot.loc)
