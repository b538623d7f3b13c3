"""Kernels of their own that write computed factors of contractions, or products, to workspaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from rlk.ir.build import Builder
from rlk.ir.dims import Part
from rlk.ir.nodes import (
    Block,
    Const,
    Decl,
    Dot,
    Elementwise,
    Extent,
    Kernel,
    Launch,
    Let,
    Load,
    Param,
    Pos,
    Program,
    Role,
    Store,
    Value,
)
from rlk.ir.types import TileType
from rlk.passes.mask import bounds, whole_axes, without_bounds
from rlk.passes.prologue import prologue
from rlk.passes.simplify import simplify
from rlk.passes.walk import backward_slice

OF_ELEMENTS = Elementwise | Load | Pos | Param | Const | Extent
Pays = Callable[[Kernel, Let, Value], bool]
"""Whether to write a factor first: a kernel, its contraction, and the factor."""


def factors_apart(program: Program, pays: Pays = lambda kernel, dot, factor: True) -> Program:
    """Return the program with a kernel before each contraction that writes its computed factors.

    A factor is stored in the dtype that it has in the contraction, which loads what it computed before: no
    operation is changed, nor the order of any. Factors of parts of axes and of rows in segments stay where
    they are, and so do programs with host loops. pays: which of the others are written; by default all.

    A kernel keeps its name, by which tables of schedules know it; one that writes a factor has this name and
    that of the workspace.
    """
    return _apart(program, lambda kernel: _written(kernel, pays))


def products_apart(program: Program, wide: Callable[[Kernel, Let], bool]) -> Program:
    """Return the program with a kernel before each that has wide products, which writes them.

    A product is stored in the dtype of its sums, so that no bit changes. Its factors are loaded, or computed
    elementwise; other products stay where they are, and so do programs with host loops. wide: whether to
    write a product of a kernel.
    """

    def chosen(kernel: Kernel) -> tuple[Value, ...]:
        lets = {let.value: let for let in kernel.body.lets}
        dots = (let for let in kernel.body.lets if isinstance(let.node, Dot))
        return tuple(let.value for let in dots if _can_be_written(let.value, lets) and wide(kernel, let))

    return _apart(program, chosen)


def _apart(program: Program, chosen: Callable[[Kernel], Collection[Value]]) -> Program:
    """Return the program with a kernel for each of the values that are chosen of its kernels."""
    if any(each.turns for each in program.order):
        return program
    found = {kernel.name: chosen(kernel) for kernel in program.kernels}
    if not any(found.values()):
        return program
    workspaces = {decl.name for kernel in program.kernels for decl in kernel.params}
    taken = _Taken(workspaces, {kernel.name for kernel in program.kernels})
    parts = {
        kernel.name: _parted(kernel, found[kernel.name], taken) if found[kernel.name] else (kernel,)
        for kernel in program.kernels
    }
    launches = tuple(Launch(each.name) for launch in program.order for each in parts[launch.kernel])
    return replace(program, kernels=tuple(k for made in parts.values() for k in made), launches=launches)


def computed_factors(kernel: Kernel) -> Iterator[tuple[Let, Value]]:
    """Yield the contractions of a kernel outside of loops, with each computed factor that can be written."""
    lets = {let.value: let for let in kernel.body.lets}
    for let in kernel.body.lets:
        if isinstance(let.node, Dot):
            for factor in dict.fromkeys((let.node.a, let.node.b)):
                if prologue(factor, let.node.over, lets) and _can_be_written(factor, lets):
                    yield let, factor


def _can_be_written(factor: Value, lets: Mapping[Value, Let]) -> bool:
    type = lets[factor].type
    assert isinstance(type, TileType)
    whole = all(axis.part is Part.ALL and axis.over is None for axis in type.axes)
    made = (lets[value].node for value in backward_slice([factor], lets) if value != factor)
    return whole and all(isinstance(node, OF_ELEMENTS) for node in made)


def _written(kernel: Kernel, pays: Pays) -> tuple[Value, ...]:
    return tuple({factor: None for dot, factor in computed_factors(kernel) if pays(kernel, dot, factor)})


class _Taken(NamedTuple):
    """The names of a program's tensors and kernels, of which no new one has any."""

    tensors: set[str]
    kernels: set[str]


def _parted(kernel: Kernel, factors: Collection[Value], taken: _Taken) -> tuple[Kernel, ...]:
    """Return the kernels that write some factors, and the kernel that loads them. taken: gets their names."""
    lets = {let.value: let for let in kernel.body.lets}
    padded = whole_axes(kernel)
    before: list[Kernel] = []
    loading = _builder(kernel, [])
    for let in kernel.body.lets:
        if let.value not in factors:
            loading.open[0].append(let)
            continue
        made = backward_slice([let.value], lets)
        stored = [each for each in kernel.body.lets if each.value in made]
        storing = _builder(kernel, without_bounds(stored, padded))
        decl = _workspace(let, [lets[value] for value in made], taken.tensors)
        storing.params[decl.name] = loading.params[decl.name] = decl
        storing.loc = loading.loc = let.loc
        index = tuple(storing.let(Pos(axis), axis.name.lower()) for axis in decl.type.axes)
        storing.let(Store(decl.name, index, let.value))
        before.append(
            replace(_built(kernel, storing), name=_new(f"{kernel.name}_{decl.name}", taken.kernels))
        )
        index = tuple(loading.let(Pos(axis), axis.name.lower()) for axis in decl.type.axes)
        inside = bounds(loading, None, index, padded)
        loading.open[0].append(replace(let, node=Load(decl.name, index, inside)))
    return (*before, _built(kernel, loading))


def _builder(kernel: Kernel, lets: list[Let]) -> Builder:
    """Return a builder that goes on behind some lets of a kernel."""
    every = {let.value: let.type for let in kernel.body.lets}
    return Builder({decl.name: decl for decl in kernel.params}, every, max(every) + 1, open=[lets])


def _built(kernel: Kernel, builder: Builder) -> Kernel:
    return simplify(Kernel(kernel.name, tuple(builder.params.values()), Block((), tuple(builder.open[0]))))


def _workspace(let: Let, made: list[Let], taken: set[str]) -> Decl:
    """Return the workspace of a value, named after it or its widest tensor, and its dtype."""
    assert isinstance(let.type, TileType)
    if isinstance(let.node, Dot):
        return Decl(_new(f"{let.name or 'product'}_{let.type.dtype.value}", taken), let.type, Role.WORK)
    wide = {each.node.param: _rank(each) for each in made if isinstance(each.node, Load)}
    stem = f"{max(sorted(wide), key=wide.__getitem__)}_{let.type.dtype.value}"
    return Decl(_new(stem, taken), let.type, Role.WORK)


def _new(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken, with a number behind it where needed, and take it."""
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def _rank(let: Let) -> int:
    return len(let.type.axes) if isinstance(let.type, TileType) else 0
