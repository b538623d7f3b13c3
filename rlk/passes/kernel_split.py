"""Kernel splitting: before reads of workspaces of other blocks, and for results of different loops."""

from __future__ import annotations

from dataclasses import replace

from rlk.ir.dims import Axis
from rlk.ir.nodes import Block, Check, Dot, Kernel, Let, Load, Loop, Program, Role, Store, Value, operands
from rlk.ir.types import TileType
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk


def cut(program: Program) -> Program:
    """Return the program with every kernel cut before its first read of a workspace written in it.

    The later kernel recomputes the values of the earlier one that it needs, without its stores and checks.
    Stores that need different contractions, or loops along different axes, get kernels of their own, but for
    those that need a part of another's contractions, if all of these have results of the same axes; and so do
    stores that need none and lie along an axis that another store contracts.
    """
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        for part in _cut(kernel):
            kernels += _parted(part)
    if len(kernels) == 1:
        return replace(program, kernels=tuple(kernels))
    named = (Kernel(f"{program.name}_{i + 1}", k.params, k.body) for i, k in enumerate(kernels))
    return replace(program, kernels=tuple(named))


def _cut(kernel: Kernel) -> list[Kernel]:
    lets = kernel.body.lets
    written: set[str] = set()
    work = {d.name for d in kernel.params if d.role is Role.WORK}
    for i, let in enumerate(lets):
        inner = tuple(walk(Block((), (let,))))
        if any(isinstance(n.node, Load) and n.node.param in written for n in inner):
            soon = _independent(lets[i:], written, work)
            first = Kernel(kernel.name, kernel.params, Block((), lets[:i] + soon))
            again = tuple(x for x in (_without_effects(x) for x in lets[:i]) if x is not None)
            stored = {let.value for let in soon if isinstance(let.node, Store)}
            left = tuple(let for let in lets[i:] if let.value not in stored)
            rest = Kernel(kernel.name, kernel.params, Block((), again + left))
            return [simplify(first), *_cut(simplify(rest))]
        written |= {n.node.param for n in inner if isinstance(n.node, Store) and n.node.param in work}
    return [kernel]


def _independent(lets: tuple[Let, ...], written: set[str], work: set[str]) -> tuple[Let, ...]:
    """Return the stores to workspaces that depend on no load from a written one, with their backward slices.

    So independent values that are materialized one after the other share a launch.
    """
    written, waits, found = set(written), set[Value](), list[Let]()
    for let in lets:
        inner = tuple(walk(Block((), (let,))))
        reads = any(isinstance(x.node, Load) and x.node.param in written for x in inner)
        keeps = isinstance(let.node, Store) and let.node.param in work
        needs = {v for x in inner for v in operands(x.node)}
        if reads or not waits.isdisjoint(needs) or (_acts(let) and not keeps):
            waits.add(let.value)
            # later loads of its workspaces wait for this loop
            written |= {x.node.param for x in inner if isinstance(x.node, Store)}
            continue
        if isinstance(let.node, Store):
            written.add(let.node.param)
        found.append(let)
    return tuple(found)


def _parted(kernel: Kernel) -> list[Kernel]:
    """Return a kernel for each set of loops and contractions of stores; stores without any join the first."""
    needs = _joined(kernel, _needs(kernel))
    sets = list(dict.fromkeys(needs[let.value] for let in kernel.body.lets if _acts(let)))
    kept = [found for found in sets if found] or [frozenset()]
    join = not _along_contracted(kernel, needs, kept[0])
    kept += [] if join or frozenset() in kept else [frozenset()]
    if len(kept) == 1:
        return [kernel]
    parts = []
    for found in kept:
        mine = {found, frozenset()} if join and found == kept[0] else {found}
        each = (let if needs[let.value] in mine else _without_effects(let) for let in kernel.body.lets)
        lets = tuple(let for let in each if let is not None)
        parts.append(simplify(replace(kernel, body=Block((), lets))))
    return parts


def _joined(
    kernel: Kernel, needs: dict[Value, frozenset[Value | Axis]]
) -> dict[Value, frozenset[Value | Axis]]:
    """Let stores that need a part of another's contractions, with results of the same axes, join that one."""
    types = {let.value: let.type for let in kernel.body.lets}
    sets = {needs[let.value] for let in kernel.body.lets if _acts(let)}

    def axes(values: frozenset[Value | Axis]) -> set[frozenset[Axis]]:
        found = (types[v] for v in values if not isinstance(v, Axis))
        return {frozenset(type.axes) for type in found if isinstance(type, TileType)}

    def whole(part: frozenset[Value | Axis]) -> frozenset[Value | Axis]:
        more = [s for s in sets if part < s and not any(isinstance(v, Axis) for v in s) and len(axes(s)) == 1]
        return max(more, key=len) if part and more else part

    return {value: whole(found) for value, found in needs.items()}


def _along_contracted(
    kernel: Kernel, needs: dict[Value, frozenset[Value | Axis]], first: frozenset[Value | Axis]
) -> bool:
    """Return whether a store without contractions lies along an axis that those of the first set contract."""
    types = {let.value: let.type for let in kernel.body.lets}
    contracted = {let.node.over.name for let in kernel.body.lets
                  if isinstance(let.node, Dot) and let.value in first}  # fmt: skip
    for let in kernel.body.lets:
        if isinstance(let.node, Store) and not needs[let.value]:
            found = (types[i] for i in let.node.index)
            if any(a.name in contracted for t in found if isinstance(t, TileType) for a in t.axes):
                return True
    return False


def _acts(let: Let) -> bool:
    return any(isinstance(x.node, Store | Check) for x in walk(Block((), (let,))))


def _needs(kernel: Kernel) -> dict[Value, frozenset[Value | Axis]]:
    """Return the contractions and the axes of loops that each value of the outermost block depends on."""
    found: dict[Value, frozenset[Value | Axis]] = {}
    for let in kernel.body.lets:
        inner = tuple(walk(Block((), (let,))))
        read = {v for x in inner for v in operands(x.node)}
        mine: set[Value | Axis] = {x.value for x in inner if isinstance(x.node, Dot)}
        mine |= {let.node.axis} if isinstance(let.node, Loop) else set()
        found[let.value] = frozenset(mine).union(*(found.get(v, frozenset()) for v in read))
    return found


def _without_effects(let: Let) -> Let | None:
    match let.node:
        case Store() | Check():
            return None
        case Loop() as loop:
            kept = tuple(x for x in (_without_effects(x) for x in loop.body.lets) if x is not None)
            return replace(let, node=replace(loop, body=Block(loop.body.args, kept, loop.body.results)))
        case _:
            return let
