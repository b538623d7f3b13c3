"""Cut a kernel where it would read a workspace that all its programs write: one launch becomes several."""

from __future__ import annotations

from dataclasses import replace

from rlk.ir.nodes import Block, Check, Kernel, Let, Load, Loop, Program, Role, Store
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk


def cut(program: Program) -> Program:
    """Return the program with every kernel cut before its first read of a workspace written in it.

    The later kernel computes again what it needs of the earlier one's values; it repeats no store and no
    check.
    """
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        kernels += _cut(kernel)
    if len(kernels) == 1:
        return Program(program.name, tuple(kernels))
    named = (Kernel(f"{program.name}_{i + 1}", k.params, k.body) for i, k in enumerate(kernels))
    return Program(program.name, tuple(named))


def _cut(kernel: Kernel) -> list[Kernel]:
    lets = kernel.body.lets
    written: set[str] = set()
    work = {d.name for d in kernel.params if d.role is Role.WORK}
    for i, let in enumerate(lets):
        inner = tuple(walk(Block((), (let,))))
        if any(isinstance(n.node, Load) and n.node.param in written for n in inner):
            first = Kernel(kernel.name, kernel.params, Block((), lets[:i]))
            again = tuple(x for x in (_without_effects(x) for x in lets[:i]) if x is not None)
            rest = Kernel(kernel.name, kernel.params, Block((), again + lets[i:]))
            return [simplify(first), *_cut(simplify(rest))]
        written |= {n.node.param for n in inner if isinstance(n.node, Store) and n.node.param in work}
    return [kernel]


def _without_effects(let: Let) -> Let | None:
    match let.node:
        case Store() | Check():
            return None
        case Loop() as loop:
            kept = tuple(x for x in (_without_effects(x) for x in loop.body.lets) if x is not None)
            return replace(let, node=replace(loop, body=Block(loop.body.args, kept, loop.body.results)))
        case _:
            return let
