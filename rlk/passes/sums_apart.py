"""Sums apart: kernels of their own for the sums of one loop, where registers cannot hold all of them."""

from __future__ import annotations

from dataclasses import replace

from rlk.ir.nodes import Block, Check, Dot, Kernel, Launch, Let, Loop, Program, Result, Store, Value, operands
from rlk.passes.simplify import simplify
from rlk.passes.walk import backward_slice, walk


def sums_apart(program: Program) -> Program:
    """Return the program with a kernel for each store of a sum that a loop carries beside others.

    Each kernel computes again what both sums are made of. No operation is changed, nor the order of any.
    Kernels with several loops, with stores or checks inside of one, or whose carried values read each other
    stay as they are, and so do programs with host loops.
    """
    if any(each.turns for each in program.order):
        return program
    parts = {kernel.name: _parted(kernel) for kernel in program.kernels}
    names = {
        name: [name] if len(found) == 1 else [f"{name}_{i + 1}" for i in range(len(found))]
        for name, found in parts.items()
    }
    kernels = [
        replace(kernel, name=given)
        for name, found in parts.items()
        for given, kernel in zip(names[name], found, strict=True)
    ]
    launches = tuple(Launch(given) for each in program.launches for given in names[each.kernel])
    return replace(program, kernels=tuple(kernels), launches=launches)


def _parted(kernel: Kernel) -> list[Kernel]:
    lets = {let.value: let for let in kernel.body.lets}
    loops = [let for let in lets.values() if isinstance(let.node, Loop)]
    stores = [let for let in lets.values() if isinstance(let.node, Store)]
    if len(loops) != 1 or any(isinstance(let.node, Check) for let in walk(kernel.body)):
        return [kernel]
    (let,) = loops
    loop = let.node
    assert isinstance(loop, Loop)
    wanted = [_carried(store, lets) for store in stores]
    apart = [_sum(loop, index) for index in range(len(loop.init))]
    if len(apart) < 2 or not all(apart) or any(len(found) != 1 for found in wanted):
        return [kernel]
    return [_with(kernel, let, store, *found) for store, found in zip(stores, wanted, strict=True)]


def _carried(store: Let, lets: dict[Value, Let]) -> set[int]:
    """Return the indices of the carried values of a loop that a store reads."""
    nodes = (lets[value].node for value in backward_slice([store.value], lets))
    return {node.index for node in nodes if isinstance(node, Result)}


def _sum(loop: Loop, index: int) -> bool:
    """Return whether a carried value is a sum of products that reads no other carried value."""
    inside = {let.value: let for let in loop.body.lets}
    result = inside.get(loop.body.results[index])
    if result is None or not isinstance(result.node, Dot) or result.node.onto != loop.body.args[1 + index]:
        return False
    found = backward_slice([result.value], inside)
    read = {v for value in found for v in operands(inside[value].node)}
    stored = any(isinstance(let.node, Store) for let in inside.values())
    return not stored and read & set(loop.body.args[1:]) == {result.node.onto}


def _with(kernel: Kernel, loop: Let, store: Let, index: int) -> Kernel:
    """Return the kernel with one of its stores, and a loop that carries its sum alone."""
    assert isinstance(loop.node, Loop)
    body = loop.node.body
    inside = {let.value: let for let in body.lets}
    ends = [body.results[index], *([] if loop.node.exists is None else [loop.node.exists])]
    needed = backward_slice(ends, inside)
    alone = replace(
        loop.node,
        init=(loop.node.init[index],),
        types=(loop.node.types[index],),
        body=Block(
            (body.args[0], body.args[1 + index]),
            tuple(let for let in body.lets if let.value in needed),
            (body.results[index],),
        ),
    )
    lets: list[Let] = []
    for let in kernel.body.lets:
        match let.node:
            case Loop():
                lets.append(replace(let, node=alone))
            case Result() as result:
                lets += [replace(let, node=replace(result, index=0))] if result.index == index else []
            case Store():
                lets += [let] if let is store else []
            case _:
                lets.append(let)
    used = backward_slice([store.value], {let.value: let for let in lets}, _reads)
    kept = tuple(let for let in lets if let.value in used)
    return simplify(replace(kernel, body=Block((), kept)))


def _reads(let: Let) -> list[Value]:
    """Return the values that a let reads, inside of a loop too."""
    inner = [let, *(walk(let.node.body) if isinstance(let.node, Loop) else ())]
    return [value for each in inner for value in operands(each.node)]
